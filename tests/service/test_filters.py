"""Filters and facets over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

SEARCH = "/v1/collections/small/search"


def test_only_documents_that_pass_the_filter_are_found(service: Any) -> None:
    reply = service.search("a star", filter={"kind": "animal", "legs": {"$gte": 3}}).json()
    assert {hit["id"] for hit in reply["hits"]} == {"cats", "dogs"}
    assert reply["total"] == 2
    without = service.search("a star", filter={"legs": {"$exists": False}}, top_k=14).json()
    assert (len(without["hits"]), without["total"]) == (11, 11)


def test_a_search_without_a_filter_counts_all(service: Any) -> None:
    reply = service.search("a star", top_k=1).json()
    assert (reply["total"], reply["facets"]) == (14, {})
    assert service.search("a star", top_k=1, filter={}).json()["total"] == 14


def test_facets_count_what_passes_the_filter(service: Any) -> None:
    wanted = {"$not": {"kind": {"$in": ["odd", "code"]}}}
    reply = service.search("a star", top_k=1, filter=wanted, facets=["kind", "legs"]).json()
    assert reply["facets"] == {
        "kind": {
            "values": [
                {"value": "animal", "count": 3},
                {"value": "food", "count": 2},
                {"value": "space", "count": 2},
            ],
            "others": 0,
        },
        "legs": {"values": [{"value": 4, "count": 2}, {"value": 2, "count": 1}], "others": 0},
    }


def test_a_vector_is_searched_under_a_filter_too(service: Any) -> None:
    body = {"vector": [1.0] * 384, "filter": {"kind": "food"}}
    reply = service.client.post(SEARCH, json=body).json()
    assert {hit["id"] for hit in reply["hits"]} == {"bread", "soup"}


def test_a_filter_in_an_address_is_json(service: Any) -> None:
    wanted = {"kind": {"$prefix": "sp"}}
    parameters = {"q": "a star", "filter": json.dumps(wanted), "facets": ["kind", "legs"]}
    by_address = service.client.get(SEARCH, params=parameters).json()
    by_body = service.search("a star", filter=wanted, facets=["kind", "legs"]).json()
    for part in ("hits", "total", "facets"):
        assert by_address[part] == by_body[part]
    refused = service.client.get(SEARCH, params={"q": "a star", "filter": "{kind: 1}"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "filter"


@pytest.mark.parametrize(
    ("wanted", "field", "told"),
    [
        ({"legs": "4"}, "filter.legs", "'4', expected a finite number"),
        ({"wings": 2}, "filter.wings", "no such metadata; there is: kind, legs"),
        ({"$or": [{"kind": {"$like": "a"}}]}, "filter.$or[0].kind.$like", "no such operator"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused_with_its_place(
    service: Any, wanted: dict[str, Any], field: str, told: str
) -> None:
    refused = service.search("cats", filter=wanted)
    assert refused.status_code == 422
    problem = refused.json()
    assert problem["type"] == "urn:lamina:problem:invalid-filter"
    assert problem["errors"][0]["field"] == field
    assert told in problem["errors"][0]["message"]
    batch = {"searches": [{"query": "cats"}, {"query": "dogs", "filter": wanted}]}
    refused = service.client.post(f"{SEARCH}/batch", json=batch)
    assert refused.json()["errors"][0]["field"] == f"searches[1].{field}"


def test_a_facet_of_a_field_that_there_is_not_is_refused(service: Any) -> None:
    refused = service.search("cats", facets=["kind", "wings"])
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"field": "facets", "message": "no such metadata: 'wings'; there is: kind, legs"}
    ]
    assert service.search("cats", facets=["kind"] * 17).status_code == 422


def test_a_filter_of_great_depth_is_refused(service: Any) -> None:
    wanted: dict[str, Any] = {"kind": "food"}
    for _ in range(17):
        wanted = {"$not": wanted}
    refused = service.search("cats", filter=wanted)
    assert refused.status_code == 422
    assert "nested more than 16 deep" in refused.json()["detail"]
    deep = b'{"query": "cats", "filter": ' + b'{"$not":' * 50_000 + b"{}" + b"}" * 50_001
    refused = service.client.post(
        SEARCH, content=deep, headers={"Content-Type": "application/json"}
    )
    assert refused.status_code == 422
