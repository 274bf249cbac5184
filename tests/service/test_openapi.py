"""The OpenAPI document against the running service: what it says is what is answered."""

import re
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from lamina_service.app import create_app
from lamina_service.errors import REQUEST_PROBLEMS
from lamina_service.settings import Settings

CHECKS = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.positive_data_acceptance,
)

PROBLEMS_BEYOND_A_SCHEMA = {
    "blank-text",
    "invalid-filter",
    "invalid-cursor",
    "index-factory",
    "documents-refused",
}
RULES_BEYOND_A_SCHEMA = re.compile(
    r"no such metadata: |this service has no reranker|a vector has no words"
    r"|\d+ numbers, expected 384|-?\d+, this encoder gives 384|\d+, but \S+ reads 254 of a part"
    r"|offset \+ top_k is |group_size goes with |top_k times group_size is |they ask for up to "
    r"|their rerank add up to |rerank goes with |min_score goes with "
    r"|expected overlap to be at most half |expected min_overlap, or queries with expected ids"
    r"|'.*' (has a blank name|has a NUL or a lone surrogate in its name)"
)
"""What a schema cannot say: how fields go together, and what encoder and collection are like."""


def _asked() -> list[Any]:
    """Each route with data that fits, and each that takes a body or a query with others."""
    document = create_app(Settings(data=Path())).openapi()
    operations = [
        found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()
    ]
    return [
        pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
        for operation in operations
        for mode in GenerationMode
        if mode.is_positive or operation.body or operation.query
    ]


@pytest.mark.parametrize(("operation", "mode"), _asked())
def test_every_reply_is_as_documented(
    changing_service: Any, operation: Any, mode: GenerationMode
) -> None:
    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),  # one query or one vector: much is filtered
    )
    @given(operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        reads = case.method in ("GET", "POST")  # others make and delete collections
        if mode is GenerationMode.POSITIVE and reads and "collection" in case.path_parameters:
            case.path_parameters["collection"] = "small"
        if isinstance(case.body, dict | list):
            case.body = _whole(case.body)
        reply = case.call(base_url=changing_service.url)
        unfit = mode is GenerationMode.POSITIVE and _is_beyond_a_schema(reply)
        excluded = [checks.positive_data_acceptance] if unfit else []
        if reply.status_code == 431:  # of an address too long, whatever it says
            excluded = [checks.positive_data_acceptance, checks.negative_data_rejection]
        case.validate_response(reply, checks=CHECKS, excluded_checks=excluded)

    ask()


def _whole(value: Any) -> Any:
    """Write 2.0 as 2: JSON Schema takes both for an integer, the service only the latter."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value


def _is_beyond_a_schema(reply: Any) -> bool:
    """Tell whether a request was refused for reasons that no schema can tell, and no other."""
    if reply.status_code != 422:
        return False
    problem = reply.json()
    return problem["type"].rpartition(":")[2] in PROBLEMS_BEYOND_A_SCHEMA or all(
        RULES_BEYOND_A_SCHEMA.match(fault["message"]) for fault in problem["errors"]
    )


QUERIES = {
    "/v1/collections/{collection}/search": {
        "q": "cats",
        "top_k": "3",
        "offset": "1",
        "fields": ["kind", "legs"],
        "min_score": "0.1",
        "filter": '{"kind": "animal"}',
        "facets": ["kind", "legs"],
        "mode": "hybrid",
        "fusion": "ranks",
        "lexical_weight": "0.5",
        "explain": "true",
        "highlight": "true",
        "rerank": "3",
        "group_by": "kind",
        "group_size": "2",
        "collapse": "0.9",
    },
    "/v1/collections/{collection}/documents": {
        "limit": "2",
        "cursor": "",  # the first page's
        "filter": '{"kind": "animal"}',
    },
    "/v1/collections/{collection}/documents/{document_id}": {"vector": "true"},
}
"""A value for each query parameter that there is."""


def test_every_documented_query_parameter_is_taken_and_no_get_has_a_body(
    reranking_service: Any,
) -> None:
    client = reranking_service.client
    first = client.get("/v1/collections/small/documents?limit=1").json()
    documented = {}
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            assert method != "get" or "requestBody" not in operation, path
            names = [one["name"] for one in operation.get("parameters", []) if one["in"] == "query"]
            if names:
                documented[path] = names
            for name in names:
                asked = {"q": "cats"} if "q" in names else {}
                asked |= {"group_by": "kind"} if name == "group_size" else {}
                asked[name] = first["next_cursor"] if name == "cursor" else QUERIES[path][name]
                address = path.format(collection="small", document_id="cats")
                reply = client.request(method, address, params=asked)
                assert reply.status_code == 200, (path, asked, reply.text)
    assert documented == {path: list(values) for path, values in QUERIES.items()}


def test_a_query_parameter_is_documented_as_it_is_read(service: Any) -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    found = {
        one["name"]: one
        for one in paths["/v1/collections/{collection}/search"]["get"]["parameters"]
    }
    assert [name for name, one in found.items() if one["required"]] == ["collection", "q"]
    assert found["fields"]["schema"]["type"] == "array"  # repeatable, and never null
    [(media_type, content)] = found["filter"]["content"].items()
    assert (media_type, content["schema"]["type"]) == ("application/json", "object")


def test_every_route_under_v1_documents_its_problems_and_its_key(service: Any) -> None:
    document = service.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            problems = {
                status: reply
                for status, reply in operation["responses"].items()
                if not status.startswith("2")
            }
            if path.startswith("/v1"):
                assert {"401", "403", "500", "503"} <= problems.keys(), path
                assert operation["security"] == [{}, {"key": []}]
            for reply in problems.values():
                assert list(reply["content"]) == ["application/problem+json"]


def test_documented_problem_statuses_are_those_that_a_request_can_meet(service: Any) -> None:
    document = service.client.get("/openapi.json").json()
    documented = {
        status
        for operations in document["paths"].values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    assert documented == {"200", "201"} | {str(found.status) for found in REQUEST_PROBLEMS.values()}
