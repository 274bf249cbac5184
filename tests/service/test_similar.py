"""Groups, near-duplicates and similar documents over HTTP."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

SIMILAR = "/v1/collections/small/similar"


def test_hits_are_the_best_of_each_value(service: Any) -> None:
    reply = service.search("pets", group_by="kind", top_k=20).json()
    kinds = [hit["group"] for hit in reply["hits"]]
    assert sorted(kinds) == ["animal", "code", "food", "odd", "space"]
    assert (reply["total"], reply["total_groups"]) == (14, 5)
    assert all(hit["metadata"]["kind"] == hit["group"] for hit in reply["hits"])
    alone = service.search("pets", group_by="legs", top_k=20).json()
    assert alone["total_groups"] == 2 + 11
    assert sum(hit["group"] is None for hit in alone["hits"]) == 11


def test_a_group_gives_as_many_hits_as_asked_for(service: Any) -> None:
    hits = service.search("pets", group_by="kind", group_size=2, top_k=2, fields=[]).json()["hits"]
    assert [hit["rank"] for hit in hits] == [1, 1, 2, 2]
    assert hits[0]["group"] == hits[1]["group"] == "animal"
    assert hits[0]["metadata"] == {}


def test_near_duplicates_are_folded_under_the_best(service: Any) -> None:
    reply = service.search("Two documents say this.", collapse=0.99, top_k=14).json()
    assert [hit["id"] for hit in reply["hits"]].count("twin-a") == 1
    assert reply["hits"][0]["duplicates"] == {"count": 1, "ids": ["twin-b"]}
    assert reply["hits"][1]["duplicates"] == {"count": 0, "ids": []}
    assert len(reply["hits"]) == 13
    plain = service.search("cats").json()
    assert "total_groups" not in plain
    assert not {"group", "duplicates"} & plain["hits"][0].keys()


def test_a_search_by_address_takes_groups_too(service: Any) -> None:
    by_address = service.client.get(
        "/v1/collections/small/search",
        params={"q": "pets", "group_by": "kind", "group_size": "2", "collapse": "0.9"},
    )
    by_body = service.search("pets", group_by="kind", group_size=2, collapse=0.9)
    assert by_address.json()["hits"] == by_body.json()["hits"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"group_by": "wings"}, "group_by: no such metadata: 'wings'; there is: kind, legs"),
        ({"group_by": "kind", "group_size": 0}, "group_size: expected an integer from 1 to 100"),
        ({"group_by": "kind", "group_size": 2.0}, "group_size: expected an integer from 1 to 100"),
        ({"group_size": 2}, "group_size goes with group_by"),
        ({"group_by": "kind", "group_size": 11, "top_k": 100}, "top_k times group_size is 1100"),
        ({"collapse": 0}, "collapse"),
        ({"collapse": 1.01}, "collapse"),
        ({"collapse": "0.9"}, "collapse"),
    ],
)
def test_groups_that_cannot_be_made_are_refused(
    service: Any, more: dict[str, Any], told: str
) -> None:
    for reply in (
        service.search("cats", **more),
        service.client.post(f"{SIMILAR}/cats", json=more),
    ):
        assert reply.status_code == 422
        assert told in reply.json()["detail"]


def test_similar_documents_come_without_the_document_itself(service: Any) -> None:
    for document in service.documents:
        for safe in ("", "/"):
            path = f"{SIMILAR}/{quote(document['id'], safe=safe)}"
            reply = service.client.post(path, json={"top_k": 20}).json()
            assert len(reply["hits"]) == reply["total"] == 13
            assert document["id"] not in [hit["id"] for hit in reply["hits"]]
    reply = service.client.post(f"{SIMILAR}/twin-a").json()
    assert reply["hits"][0]["id"] == "twin-b"
    assert reply["hits"][0]["score"] == pytest.approx(1)
    assert reply["took"]["encode"] == reply["token_count"] == 0
    assert (reply["top_k"], reply["offset"]) == (10, 0)


def test_similar_documents_are_narrowed_as_a_search_is(service: Any) -> None:
    wanted = {"filter": {"kind": "animal"}, "facets": ["legs"], "fields": ["legs"], "offset": 1}
    reply = service.client.post(f"{SIMILAR}/cats", json=wanted).json()
    assert reply["total"] == 2
    assert len(reply["hits"]) == 1
    assert set(reply["hits"][0]["metadata"]) == {"legs"}
    assert reply["facets"]["legs"]["values"] == [
        {"value": 2, "count": 1},
        {"value": 4, "count": 1},
    ]
    assert service.client.post(f"{SIMILAR}/cats", json={"min_score": 1}).json()["hits"] == []
    grouped = service.client.post(f"{SIMILAR}/cats", json={"group_by": "kind"}).json()
    assert grouped["total_groups"] == len(grouped["hits"]) == 5


def test_what_similar_documents_are_wanted_of_must_be_there(service: Any) -> None:
    for path, slug in [
        (f"{SIMILAR}/unicorns", "document-not-found"),
        (f"{SIMILAR}/cats%20", "document-not-found"),
        ("/v1/collections/large/similar/cats", "collection-not-found"),
    ]:
        reply = service.client.post(path, json={})
        assert reply.status_code == 404
        assert reply.json()["type"] == f"urn:lamina:problem:{slug}"
    told = service.client.post(f"{SIMILAR}/unicorns").json()["detail"]
    assert told == "collection 'small' has no document 'unicorns'"
    refused = service.client.post(f"{SIMILAR}/cats", json={"mode": "hybrid"})
    assert refused.status_code == 422
