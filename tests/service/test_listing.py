"""Listing documents over HTTP, page by page, while others write."""

import itertools
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from lamina_service.keys import Scope, opened
from replies import problem

SMALL = "/v1/collections/small"
DOCUMENTS = f"{SMALL}/documents"


def pages(client: httpx.Client, address: str = DOCUMENTS, **asked: Any) -> Iterator[list[Any]]:
    """The documents of all pages, each asked for by the cursor of the one before."""
    while True:
        reply = client.get(address, params=asked)
        assert reply.status_code == 200, reply.text
        page = reply.json()
        yield page["documents"]
        if page["next_cursor"] is None:
            return
        asked["cursor"] = page["next_cursor"]


def listed(client: httpx.Client, **asked: Any) -> list[str]:
    return [document["id"] for page in pages(client, **asked) for document in page]


def test_all_documents_are_given_as_they_are_kept_and_in_their_order(service: Any) -> None:
    sizes = [len(page) for page in pages(service.client, limit=5)]
    assert sizes == [5, 5, 4]
    documents = [document for page in pages(service.client, limit=5) for document in page]
    for document, sent in zip(documents, service.documents, strict=True):
        metadata = {name: value for name, value in sent.items() if name not in ("id", "text")}
        assert document == {"id": sent["id"], "text": sent["text"], "metadata": metadata}
    assert service.client.get(DOCUMENTS).json() == {
        "collection": "small",
        "documents": documents,
        "next_cursor": None,
    }


def test_a_filter_lists_what_passes(service: Any) -> None:
    found = listed(service.client, limit=2, filter=json.dumps({"kind": {"$in": ["food", "space"]}}))
    assert found == ["bread", "soup", "moon", "sun"]
    refused = service.client.get(DOCUMENTS, params={"filter": '{"colour": "red"}'})
    assert problem(refused) == (422, "invalid-filter")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "ten", "", "1.0"])
def test_a_limit_that_is_none_is_refused_with_the_range(service: Any, limit: str) -> None:
    refused = service.client.get(DOCUMENTS, params={"limit": limit})
    assert problem(refused) == (422, "invalid-request")
    told = {"field": "limit", "message": "expected an integer from 1 to 1000"}
    assert refused.json()["errors"] == [told]


@pytest.mark.parametrize("cursor", ["", "1", "x" * 5000, "é", "AAAAAAAAAAAAAAAAAAAAAAAAAAA"])
def test_a_cursor_that_no_page_gave_is_refused(service: Any, cursor: str) -> None:
    refused = service.client.get(DOCUMENTS, params={"cursor": cursor})
    assert problem(refused) == (422, "invalid-cursor")
    [error] = refused.json()["errors"]
    assert error["field"] == "cursor"
    assert "expected that of the page before" in error["message"]
    assert len(error["message"]) < 200


def test_a_cursor_ends_with_the_collection_that_gave_it(start: Any, folder: Path) -> None:
    client = start(data=folder).client
    cursor = client.get(DOCUMENTS, params={"limit": 3}).json()["next_cursor"]
    assert client.delete(SMALL).status_code == 200
    assert problem(client.get(DOCUMENTS, params={"cursor": cursor})) == (
        404,
        "collection-not-found",
    )
    assert client.put(SMALL).status_code == 201
    refused = client.get(DOCUMENTS, params={"cursor": cursor})
    assert problem(refused) == (422, "invalid-cursor")
    assert "begin anew" in refused.json()["detail"]
    assert client.get(DOCUMENTS).json()["documents"] == []


def test_a_listing_follows_an_alias_and_says_where_it_led(start: Any, folder: Path) -> None:
    client = start(data=folder).client
    client.put("/v1/aliases/live", json={"collection": "small"})
    reply = client.get("/v1/collections/live/documents", params={"limit": 1}).json()
    assert (reply["collection"], len(reply["documents"])) == ("small", 1)


def test_split_documents_are_listed_as_their_parts(start: Any, folder: Path) -> None:
    client = start(data=folder).client
    client.put("/v1/collections/split", json={"chunking": {"tokens": 5}})
    text = "One two three four. Five six seven eight."
    client.post("/v1/collections/split/documents", json=[{"id": "a", "text": text}])
    [parts] = pages(client, "/v1/collections/split/documents")
    assert [(part["id"], part["metadata"]["parent"]) for part in parts] == [
        ("a#1", "a"),
        ("a#2", "a"),
    ]


def test_whoever_may_read_may_list(start: Any, folder: Path) -> None:
    scopes: tuple[Scope, ...] = ("read", "write")
    with opened(folder) as keys:
        tokens = [keys.create(scope)[1] for scope in scopes]
    client = start(data=folder).client
    assert problem(client.get(DOCUMENTS)) == (401, "key-required")
    for token in tokens:
        reply = client.get(DOCUMENTS, headers={"Authorization": f"Bearer {token}"})
        assert reply.status_code == 200


STEADY = [f"steady-{n}" for n in range(120)]


def write_on(client: httpx.Client, name: str, over: threading.Event) -> int:
    """Store, replace and delete documents of one's own until told to end; how many writes."""
    chance = random.Random(name)
    for number in itertools.count(1):
        if over.is_set():
            return number
        own = [f"{name}-{chance.randrange(30)}" for _ in range(chance.randrange(1, 6))]
        if chance.random() < 0.7:
            documents = [{"id": each, "text": f"text {number}"} for each in set(own)]
            assert client.post(DOCUMENTS, json=documents).status_code == 200
        else:
            reply = client.post(f"{DOCUMENTS}/delete", json={"ids": own})
            assert reply.status_code == 200
        if number % 10 == 0:
            assert client.post(f"{SMALL}/compact").status_code in (200, 409)
    raise AssertionError  # it never ends by itself


def test_pages_miss_and_repeat_nothing_while_others_write_and_compact(
    serving: Any, folder: Path
) -> None:
    with serving(folder, "--workers", "2") as url, ThreadPoolExecutor(2) as pool:

        def connect() -> httpx.Client:
            return httpx.Client(base_url=url, timeout=60, trust_env=False)

        over = threading.Event()
        with_kind = '{"kind": {"$exists": true}}'
        with connect() as client, connect() as one, connect() as other:
            for start in range(0, len(STEADY), 40):  # between the documents that come and go
                steady = [{"id": each, "text": each} for each in STEADY[start : start + 40]]
                assert client.post(DOCUMENTS, json=steady).status_code == 200
                moving = [{"id": f"one-{n}", "text": "text"} for n in range(start, start + 30)]
                assert client.post(DOCUMENTS, json=moving).status_code == 200
            kinds = listed(client, filter=with_kind)
            assert len(kinds) == 14
            writers = [
                pool.submit(write_on, writer, name, over)
                for writer, name in ((one, "one"), (other, "other"))
            ]
            try:
                for limit in (3, 7, 10, 50):
                    found: list[str] = []
                    for page in pages(client, limit=limit):
                        found += [document["id"] for document in page]
                        if len(found) > 1000:
                            break  # the end moves on with the writers
                    kept = [each for each in found if each.startswith("steady")]
                    assert kept == STEADY
                    assert listed(client, limit=limit, filter=with_kind) == kinds
            finally:
                over.set()
            assert min(writer.result() for writer in writers) > 5
