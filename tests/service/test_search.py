import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from lamina_index.cli import main
from lamina_index.encoder import OnnxEncoder

SEARCH = "/v1/collections/small/search"
TOP_K_RANGE = "expected an integer from 1 to 1000"


def test_the_nearest_in_meaning_comes_first_with_all_that_is_promised(service: Any) -> None:
    reply = service.search("animals that bark", top_k=3).json()
    first = reply["hits"][0]
    assert first["id"] == "dogs"
    assert first["text"] == "Dogs like to run after a ball."
    assert first["metadata"] == {"kind": "animal", "legs": 4}
    assert first["rank"] == 1
    assert first["scores"] == {"dense": first["score"]}
    assert (reply["top_k"], reply["offset"], reply["truncated"]) == (3, 0, False)
    assert reply["token_count"] == 5  # three words and two special tokens
    scores = [hit["score"] for hit in reply["hits"]]
    assert scores == sorted(scores, reverse=True)


def test_scores_are_the_cosines_of_query_and_text(
    service: Any, default_encoder: OnnxEncoder
) -> None:
    (hit,) = service.search("what is bread made of", top_k=1).json()["hits"]
    query = default_encoder.encode(["what is bread made of"], role="query").embeddings[0]
    text = default_encoder.encode([hit["text"]], role="document").embeddings[0]
    assert hit["score"] == pytest.approx(float(query @ text), abs=1e-6)


def test_a_text_and_its_own_vector_find_the_same(
    service: Any, default_encoder: OnnxEncoder
) -> None:
    vector = default_encoder.encode(["stars and planets"], role="query").embeddings[0]
    by_vector = service.client.post(SEARCH, json={"vector": (vector * 1e30).tolist()}).json()
    by_text = service.search("stars and planets").json()
    assert [hit["id"] for hit in by_vector["hits"]] == [hit["id"] for hit in by_text["hits"]]
    assert by_vector["hits"][0]["score"] == pytest.approx(by_text["hits"][0]["score"], abs=1e-6)
    assert (by_vector["token_count"], by_vector["truncated"]) == (0, False)


def test_a_vector_of_any_length_is_normalised(service: Any, default_encoder: OnnxEncoder) -> None:
    vector = default_encoder.encode(["soup"], role="query").embeddings[0].astype(float)
    replies = [
        service.client.post(SEARCH, json={"vector": (vector * factor).tolist(), "top_k": 1}).json()
        for factor in (1e-300, 1.0, 1e300)
    ]
    assert {reply["hits"][0]["score"] for reply in replies} == {replies[0]["hits"][0]["score"]}


def test_equal_scores_are_ordered_by_id(service: Any) -> None:
    hits = service.search("Two documents say this.", top_k=2).json()["hits"]
    assert [hit["id"] for hit in hits] == ["twin-a", "twin-b"]
    assert hits[0]["score"] == hits[1]["score"]


def test_pages_join_to_the_whole_without_gap_or_repeat(service: Any) -> None:
    whole = service.search("animals", top_k=14).json()["hits"]
    pages = [service.search("animals", top_k=5, offset=at).json()["hits"] for at in (0, 5, 10, 15)]
    assert [hit for page in pages for hit in page] == whole
    assert [hit["rank"] for hit in whole] == list(range(1, 15))


def test_more_asked_than_there_are_gives_all_and_invents_none(service: Any) -> None:
    reply = service.search("anything", top_k=1000).json()
    assert len(reply["hits"]) == len({hit["id"] for hit in reply["hits"]}) == 14
    assert reply["top_k"] == 1000


def test_min_score_leaves_out_what_is_lower(service: Any) -> None:
    every = service.search("a star", top_k=14).json()["hits"]
    bound = every[4]["score"]
    kept = service.search("a star", top_k=14, min_score=bound).json()["hits"]
    assert kept == every[:5]
    assert service.search("a star", min_score=1).json()["hits"] == []


def test_words_meaning_and_both_tell_what_each_leg_says(service: Any) -> None:
    lexical = service.search("balls", mode="lexical", explain=True).json()
    (hit,) = lexical["hits"]
    assert hit["id"] == "dogs"
    assert hit["scores"] == {"lexical": hit["score"]}
    assert hit["explanation"] == {"lexical": {"score": hit["score"], "rank": 1}}
    assert (lexical["token_count"], lexical["took"]["encode"]) == (0, 0)
    hybrid = service.search("a ball", mode="hybrid", explain=True, top_k=14).json()["hits"]
    assert len(hybrid) == 14
    assert hybrid[0]["id"] == "dogs"
    for hit in hybrid:
        legs = hit["explanation"]
        assert hit["scores"] == {leg: legs[leg]["score"] for leg in ("dense", "lexical")}
    assert hybrid[-1]["scores"]["lexical"] is None
    assert "explanation" not in service.search("a ball", mode="hybrid").json()["hits"][0]


def test_weight_and_fusion_change_the_score_of_a_hybrid_search(service: Any) -> None:
    dense = service.search("dogs", top_k=14).json()["hits"]
    alike = service.search("dogs", mode="hybrid", lexical_weight=0, top_k=14).json()["hits"]
    assert [hit["id"] for hit in alike] == [hit["id"] for hit in dense]
    by_ranks = service.search("dogs", mode="hybrid", fusion="ranks", top_k=1).json()["hits"][0]
    assert by_ranks["score"] == pytest.approx(1 / 61)


def test_words_of_the_query_are_marked_in_the_text(service: Any) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        hit = service.search("running dog", mode=mode, highlight=True).json()["hits"][0]
        assert [hit["text"][start:end] for start, end in hit["highlights"]] == ["Dogs", "run"]


def test_modes_can_be_mixed_in_a_batch_and_asked_for_by_address(service: Any) -> None:
    modes = ["lexical", "dense", "hybrid", "lexical"]
    body = {"searches": [{"query": "dogs run", "mode": mode} for mode in modes]}
    results = service.client.post(f"{SEARCH}/batch", json=body).json()["results"]
    for mode, result in zip(modes, results, strict=True):
        assert result["hits"] == service.search("dogs run", mode=mode).json()["hits"]
        address = {"q": "dogs run", "mode": mode, "highlight": "true", "explain": "true"}
        hit = service.client.get(SEARCH, params=address).json()["hits"][0]
        assert (hit["id"], hit["highlights"]) == ("dogs", [[0, 4], [13, 16]])
        assert hit["explanation"]


@pytest.mark.parametrize(
    "query",
    [
        '"',
        "don't",
        "a AND",
        "NEAR(",
        "-a",
        "text:what",
        "the of and",
        "🎸",
        "中文字",
        "*",
        "(" * 500,
    ],
)
def test_any_text_is_searched_by_words(service: Any, query: str) -> None:
    for mode in ("lexical", "hybrid"):
        assert service.search(query, mode=mode).status_code == 200


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"query": "a", "mode": "words"}, "mode"),
        ({"query": "a", "mode": "lexical", "min_score": 0.1}, "min_score goes with mode dense"),
        ({"query": "a", "mode": "hybrid", "min_score": 0.1}, "min_score goes with mode dense"),
        ({"query": " ", "mode": "lexical"}, "blank"),
        ({"query": "", "mode": "hybrid"}, "blank"),
        ({"query": "a", "mode": "hybrid", "lexical_weight": 1}, "lexical_weight"),
        ({"query": "a", "mode": "hybrid", "lexical_weight": -0.1}, "lexical_weight"),
        ({"query": "a", "mode": "hybrid", "lexical_weight": "0.5"}, "lexical_weight"),
        ({"query": "a", "explain": 1}, "explain"),
        ({"query": "a", "fusion": "sum"}, "fusion"),
        ({"vector": [0.1] * 384, "mode": "hybrid"}, "a vector has no words"),
        ({"vector": [0.1] * 384, "highlight": True}, "a vector has no words"),
    ],
)
def test_a_search_by_words_that_is_none_is_refused(
    service: Any, body: dict[str, Any], told: str
) -> None:
    refused = service.client.post(SEARCH, json=body)
    assert refused.status_code == 422
    assert told in refused.json()["detail"]


def test_only_the_fields_asked_for_are_returned(service: Any) -> None:
    (hit,) = service.search("birds fly", top_k=1, fields=["legs"]).json()["hits"]
    assert hit["metadata"] == {"legs": 2}
    (hit,) = service.search("birds fly", top_k=1, fields=[]).json()["hits"]
    assert hit["metadata"] == {}
    refused = service.search("birds fly", fields=["legs", "wings"])
    assert refused.status_code == 422
    assert refused.json()["detail"] == "fields: no such metadata: 'wings'; there is: kind, legs"


def test_a_search_by_address_equals_one_by_body(service: Any) -> None:
    by_address = service.client.get(
        SEARCH, params={"q": "food & drink", "top_k": 2, "offset": 1, "fields": ["kind"]}
    )
    by_body = service.search("food & drink", top_k=2, offset=1, fields=["kind"])
    assert by_address.json()["hits"] == by_body.json()["hits"]


def test_a_batch_answers_each_search_in_its_place(service: Any) -> None:
    queries = ["cats", "bread", "moon", "birds", "soup"]
    body = {"searches": [{"query": query, "top_k": 2} for query in queries]}
    results = service.client.post(f"{SEARCH}/batch", json=body).json()["results"]
    alone = [service.search(query, top_k=2).json() for query in queries]
    assert [reply["hits"] for reply in results] == [reply["hits"] for reply in alone]


def test_one_bad_search_of_a_batch_refuses_all_and_is_named(service: Any) -> None:
    body = {"searches": [{"query": "cats"}, {"query": "\u200b \n"}]}
    refused = service.client.post(f"{SEARCH}/batch", json=body)
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("searches[1].query:")
    body = {"searches": [{"query": "cats"}, {"query": "dogs", "top_k": 0}]}
    refused = service.client.post(f"{SEARCH}/batch", json=body)
    assert refused.json()["errors"] == [{"field": "searches[1].top_k", "message": TOP_K_RANGE}]


def test_times_by_stage_are_told_in_the_body_and_in_a_header(service: Any) -> None:
    reply = service.search("cats")
    took = reply.json()["took"]
    stages = dict(part.split(";dur=") for part in reply.headers["server-timing"].split(", "))
    assert {stage: float(value) for stage, value in stages.items()} == took
    assert list(took) == ["queue", "encode", "search", "fetch", "total"]
    assert took["encode"] > 0
    assert took["total"] >= sum(took[stage] for stage in ("queue", "encode", "search", "fetch"))


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"mode": "hybrid", "explain": True},
        {"group_by": "kind", "collapse": 0.9, "offset": 1, "filter": {"kind": {"$ne": "odd"}}},
    ],
)
def test_the_command_line_prints_the_reply_of_the_service(
    asked: dict[str, Any], service: Any, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = service.search("cats", top_k=3, highlight=True, **asked).json()
    words = ["search", str(data / "small"), "cats", "--top-k", "3", "--json"]
    for name, value in asked.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(json.dumps(value) if isinstance(value, dict) else str(value))
    assert main(words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("query") == "cats"
    assert list(printed) == list(reply)
    assert list(printed.pop("took")) == list(reply.pop("took"))
    assert printed == reply


def test_a_long_query_is_cut_and_says_so(service: Any) -> None:
    whole, cut = "test " * 200, "test " * 1000
    reply = service.search(whole).json()
    assert (reply["token_count"], reply["truncated"]) == (202, False)
    reply = service.search(cut).json()
    assert (reply["token_count"], reply["truncated"]) == (256, True)


def test_a_query_without_spaces_is_answered(service: Any) -> None:
    assert service.search("x" * 12_345).status_code == 200


@pytest.mark.parametrize(
    "top_k", ["0", "-1", str(2**31), str(2**63), "1e9", '"10"', "10.0", "true", "null", "1001"]
)
def test_a_top_k_that_is_none_is_refused_with_the_range(service: Any, top_k: str) -> None:
    refused = service.client.post(
        SEARCH,
        content=f'{{"query": "cats", "top_k": {top_k}}}',
        headers={"Content-Type": "application/json"},
    )
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["type"] == "urn:lamina:problem:invalid-request"
    assert problem["errors"] == [{"field": "top_k", "message": TOP_K_RANGE}]


@pytest.mark.parametrize("top_k", ["0", "-1", "1001", "ten", "1.5", "", "９９"])
def test_the_same_holds_in_an_address(service: Any, top_k: str) -> None:
    refused = service.client.get(SEARCH, params={"q": "cats", "top_k": top_k})
    assert refused.status_code == (200 if top_k == "９９" else 422)


D = 384


@pytest.mark.parametrize(
    ("vector", "told"),
    [
        ([], "vector: 0 items, expected at least 1"),
        ([1.0] * (D - 1), "383 numbers, expected 384"),
        ([0.0] * D, "all zero"),
        ([1.0] * (D - 1) + [float("nan")], "finite"),
        ([1.0] * (D - 1) + [float("inf")], "finite"),
        ([True] * D, "vector[0]: expected a number, found a boolean"),
        ("abc", 'vector: expected a list, found the string "abc"'),
    ],
    ids=["empty", "wrong dimension", "zero", "NaN", "infinite", "booleans", "text"],
)
def test_a_vector_that_is_none_is_refused(service: Any, vector: Any, told: str) -> None:
    refused = service.client.post(
        SEARCH,
        content=json.dumps({"vector": vector}),
        headers={"Content-Type": "application/json"},
    )
    assert refused.status_code == 422
    assert told in refused.json()["detail"]
    assert refused.json()["errors"][0]["field"].startswith("vector")


@pytest.mark.parametrize("query", ["", " \n\t", "\u200b", "\x00", "\ufeff"])
def test_a_query_without_a_token_is_refused_as_blank(service: Any, query: str) -> None:
    refused = service.search(query)
    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:lamina:problem:blank-text"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (rb'{"query": "emoji \ud83d"}', 422),  # half of a pair is no text
        (rb'{"query": "emoji \ud83d\ude00"}', 200),
        (b'{"query": "\xff"}', 422),
        (b'{"query": "cats"', 422),
        (b"", 422),
        (b"[" * 100_000, 422),
        (b'{"query": "cats", "topk": 3}', 422),
        (b'{"query": "cats", "vector": [1]}', 422),
        (b'{"query": null}', 422),
        (b"{}", 422),
        (b'{"query": "cats", "offset": 9995, "top_k": 10}', 422),
        (b'{"query": "a\\u0000b"}', 200),
    ],
)
def test_bodies_are_taken_or_refused_but_never_fail(service: Any, body: bytes, status: int) -> None:
    reply = service.client.post(SEARCH, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status, reply.text


def test_a_body_that_is_not_declared_as_json_is_refused(service: Any) -> None:
    for content_type in ["text/plain", "application/x-www-form-urlencoded", ""]:
        refused = service.client.post(
            SEARCH, content=b'{"query": "cats"}', headers={"Content-Type": content_type}
        )
        assert refused.status_code == 415
    taken = service.client.post(
        SEARCH,
        content=b'{"query": "cats"}',
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
    assert taken.status_code == 200


def test_a_text_longer_than_the_limit_is_refused(service: Any) -> None:
    refused = service.search("x" * 32_769)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "query: 32769 characters, expected at most 32768"


def test_a_batch_longer_than_the_limit_is_refused(service: Any) -> None:
    body = {"searches": [{"query": "cats"}] * 257}
    refused = service.client.post(f"{SEARCH}/batch", json=body)
    assert refused.status_code == 422
    assert "257 items, expected at most 256" in refused.json()["detail"]


def test_a_batch_whose_hits_would_be_too_many_is_refused(service: Any) -> None:
    body = {"searches": [{"query": "cats", "top_k": 1000}] * 10}
    assert service.client.post(f"{SEARCH}/batch", json=body).status_code == 200
    body["searches"].append({"query": "cats", "top_k": 1})
    refused = service.client.post(f"{SEARCH}/batch", json=body)
    assert refused.status_code == 422
    told = "they ask for up to 10001 hits, expected at most 10000"
    assert refused.json()["errors"] == [{"field": "searches", "message": told}]


def test_searches_at_the_same_time_do_not_mix(service: Any) -> None:
    queries = ["cats", "bread", "moon", "rust", "birds"] * 20
    with ThreadPoolExecutor(16) as pool:
        found = list(
            pool.map(lambda query: service.search(query, top_k=1).json()["hits"][0]["id"], queries)
        )
    assert found == queries


def test_a_document_is_given_by_its_id_whatever_it_holds(service: Any) -> None:
    for document in service.documents:
        for safe in ("", "/"):
            path = f"/v1/collections/small/documents/{quote(document['id'], safe=safe)}"
            found = service.client.get(path).json()
            assert (found["id"], found["text"]) == (document["id"], document["text"])


def test_what_is_not_there_is_told_by_type(service: Any) -> None:
    get: Callable[[str], Any] = service.client.get
    for path, slug in [
        ("/v1/collections/small/documents/unicorns", "document-not-found"),
        ("/v1/collections/large/search?q=cats", "collection-not-found"),
        ("/v1/collections/..%2Fsmall", "not-found"),
        ("/v1/collections/large", "collection-not-found"),
        ("/v1/nothing", "not-found"),
    ]:
        reply = get(path)
        assert reply.status_code == 404, path
        assert reply.json()["type"] == f"urn:lamina:problem:{slug}"
    refused = service.client.put(SEARCH)
    assert refused.status_code == 405
    assert refused.json()["type"] == "urn:lamina:problem:method-not-allowed"


def test_base64_and_numbers_are_the_same_embedding(service: Any) -> None:
    def embed(encoding_format: str) -> Any:
        body = {"input": "cats", "encoding_format": encoding_format}
        return service.client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

    numbers = np.array(embed("float"), dtype=np.float32)
    decoded = np.frombuffer(base64.b64decode(embed("base64")), dtype="<f4")
    assert np.array_equal(numbers, decoded)
