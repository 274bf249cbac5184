"""What a request that does not fit is told: expected and found, in our words, by its place."""

from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import core_schema

from lamina_service.collection_schemas import AliasRequest, CollectionRequest, CompactRequest
from lamina_service.document_schemas import DeleteRequest, GetParameters
from lamina_service.errors import MAX_FAULTS
from lamina_service.schemas import EmbeddingsRequest, Request
from lamina_service.search_schemas import BatchRequest, SearchParameters, SearchRequest
from lamina_service.validation import message_of

JSON = {"Content-Type": "application/json"}
BODIES: list[type[BaseModel]] = [
    SearchRequest,
    BatchRequest,
    EmbeddingsRequest,
    DeleteRequest,
    CollectionRequest,
    AliasRequest,
    CompactRequest,
]
QUERIES: list[type[BaseModel]] = [SearchParameters, GetParameters]
PYDANTICS_OWN = set(get_args(core_schema.ErrorType))


def told(reply: httpx.Response) -> tuple[str, str]:
    """Field and message of the first error, which the detail gives, too."""
    assert reply.status_code == 422
    problem = reply.json()
    assert problem["type"] == "urn:lamina:problem:invalid-request"
    field, message = problem["errors"][0]["field"], problem["errors"][0]["message"]
    assert problem["detail"] == (f"{field}: {message}" if field else message)
    return field, message


def test_a_byte_order_mark_before_a_body_is_passed_over(service: Any) -> None:
    def search(body: bytes) -> httpx.Response:
        return service.client.post("/v1/collections/small/search", content=body, headers=JSON)

    body = b'{"query": "cats", "top_k": 1}'
    assert search(b"\xef\xbb\xbf" + body).json()["hits"] == search(body).json()["hits"]
    assert told(search(b"\xef\xbb\xbf")) == ("", "empty; expected JSON")


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("search", b"", "", "empty; expected JSON"),
        ("search", b"[1]", "", "expected an object, found a list"),
        ("search", b'{"query": 1}', "query", "expected a string, found the number 1"),
        (
            "search",
            b'{"query": "a", "topk": 1}',
            "topk",
            "unknown; leave it out, or mind its spelling",
        ),
        (
            "search",
            b'{"query": "a", "mode": "sparse"}',
            "mode",
            "expected 'dense', 'lexical' or 'hybrid', found the string \"sparse\"",
        ),
        (
            "search",
            b'{"query": "a", "min_score": 1.5}',
            "min_score",
            "expected at most 1, found the number 1.5",
        ),
        (
            "search",
            b'{"query": "a", "fields": ["kind", null]}',
            "fields[1]",
            "expected a string, found null",
        ),
        ("search/batch", b"{}", "searches", "missing; it has to be given"),
        ("search/batch", b'{"searches": []}', "searches", "0 items, expected at least 1"),
        ("documents/delete", b'{"ids": []}', "ids", "0 items, expected at least 1"),
        ("documents/delete", b'{"ids": [1]}', "ids[0]", "expected a string, found the number 1"),
        ("documents/delete", b'{"filter": [1]}', "filter", "expected an object, found a list"),
    ],
)
def test_a_body_that_does_not_fit_is_told_what_was_expected_and_found(
    service: Any, path: str, body: bytes, field: str, message: str
) -> None:
    reply = service.client.post(f"/v1/collections/small/{path}", content=body, headers=JSON)
    assert told(reply) == (field, message)


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ("", "q", "missing; it has to be given"),
        ("q=a&q=b", "q", "expected a string, found a list"),
        ("q=a&explain=perhaps", "explain", 'expected true or false, found the string "perhaps"'),
        ("q=a&min_score=x", "min_score", 'expected a number, found the string "x"'),
        ("q=a&filter=", "filter", "empty; expected JSON"),
    ],
)
def test_a_query_string_is_told_the_same(
    service: Any, query: str, field: str, message: str
) -> None:
    reply = service.client.get(f"/v1/collections/small/search?{query}")
    assert told(reply) == (field, message)


def test_texts_that_are_none_are_told_without_the_types_that_they_might_have_had(
    service: Any,
) -> None:
    reply = service.client.post("/v1/embeddings", json={"input": ["a", None]})
    assert told(reply) == ("input", "expected a text or a list of at least one text")


def test_no_more_faults_are_named_than_a_reader_wants(service: Any) -> None:
    body = {"ids": [1] * 5000}
    reply = service.client.post("/v1/collections/small/documents/delete", json=body)
    assert told(reply) == ("ids[0]", "expected a string, found the number 1")
    assert len(reply.json()["errors"]) == MAX_FAULTS


def names_in(model: type[BaseModel]) -> set[str]:
    """Names of the fields of a model and of those inside it."""
    inner = [name for part in Request.__subclasses__() for name in part.model_fields]
    return {*model.model_fields, *inner, "other"}


@given(data=st.data())
@pytest.mark.parametrize("model", [*BODIES, *QUERIES])
def test_no_check_of_pydantics_is_told_in_its_words(model: type[BaseModel], data: Any) -> None:
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
    names = st.sampled_from(sorted(names_in(model)))
    values = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=8,
    )
    given_fields = st.dictionaries(names, values, max_size=5)
    try:
        model.model_validate(data.draw(given_fields if model in QUERIES else given_fields | values))
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            message = message_of(problem)
            if problem["type"] in PYDANTICS_OWN:
                assert message != problem["msg"], problem["type"]
