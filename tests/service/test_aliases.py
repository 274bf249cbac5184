"""Aliases over HTTP: one step, every worker, and only to what passes its canary."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lamina_index.collection_changes import remove_collection
from lamina_index.errors import CollectionNotFoundError
from lamina_index.store import DocumentStore
from lamina_service.aliases import Aliases, is_plain
from lamina_service.canary import overlap_of
from lamina_service.errors import AliasChangedError, AliasNotFoundError, NameTakenError
from lamina_service.keys import KeyStore
from replies import problem


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """A data folder with `blue`, and `green` which lacks all animals."""
    for name in ("blue", "green"):
        shutil.copytree(data / "small", tmp_path / "data" / name)
    with DocumentStore.open(tmp_path / "data" / "green") as store:
        store.delete(["cats", "dogs", "birds"])
    return tmp_path / "data"


@pytest.fixture
def app(start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A service whose background thread is too slow to help."""
    monkeypatch.setattr("lamina_service.catalog.REFRESH_SECONDS", 1000)
    return start(data=folder, snapshots=folder.parent / "archives")


def put(app: Any, alias: str, collection: str, **canary: Any) -> Any:
    body = {"collection": collection, **({"canary": canary} if canary else {})}
    return app.client.put(f"/v1/aliases/{alias}", json=body)


def test_an_alias_is_made_switched_listed_and_ended(app: Any) -> None:
    made = put(app, "live", "blue").json()
    assert (made["name"], made["collection"], made["previous"]) == ("live", "blue", None)
    switched = put(app, "live", "green").json()
    assert (switched["collection"], switched["previous"]) == ("green", "blue")
    expected = {"name": "live", "collection": "green", "changed": switched["changed"]}
    assert app.client.get("/v1/aliases/live").json() == expected
    assert app.client.get("/v1/aliases").json() == {"aliases": [expected]}
    assert app.client.get("/info").json()["aliases"] == {"live": "green"}
    assert app.client.delete("/v1/aliases/live").json() == expected
    assert problem(app.client.delete("/v1/aliases/live")) == (404, "alias-not-found")
    assert problem(app.client.get("/v1/aliases/live")) == (404, "alias-not-found")
    assert app.client.get("/v1/aliases").json() == {"aliases": []}
    assert problem(app.client.get("/v1/collections/live")) == (404, "collection-not-found")
    assert app.client.get("/v1/collections/green").json()["count"] == 11


def test_every_route_takes_an_alias_for_a_collection_and_tells_which_it_was(app: Any) -> None:
    put(app, "live", "blue")
    base = "/v1/collections/live"
    body = {"query": "animals that bark", "top_k": 2}
    for reply in (
        app.client.post(f"{base}/search", json=body),
        app.client.get(f"{base}/search?q=animals that bark&top_k=2"),
    ):
        assert reply.json()["collection"] == "blue"
        assert reply.json()["hits"][0]["id"] == "dogs"
    batch = app.client.post(f"{base}/search/batch", json={"searches": [body, body]}).json()
    assert [found["collection"] for found in batch["results"]] == ["blue", "blue"]
    assert app.client.get(f"{base}/documents/dogs").json()["id"] == "dogs"
    found = app.client.get(base).json()
    assert (found["name"], found["aliases"], found["count"]) == ("blue", ["live"], 14)
    archived = app.client.post(f"{base}/snapshot", json={}).json()
    assert archived["collection"] == "blue"
    assert archived["file"].startswith("blue-")
    listed = app.client.get("/v1/collections").json()["collections"]
    assert [(each["name"], each["aliases"]) for each in listed] == [
        ("blue", ["live"]),
        ("green", []),
    ]


@pytest.mark.parametrize(
    "name", ["Live", "-a", "a b", "a.b", ".a", "_a", "é", "a" * 64, "a%0A", "..", "a%2Fb"]
)
def test_names_that_cannot_be_are_refused(app: Any, name: str) -> None:
    for kind, body in (("aliases", {"collection": "blue"}), ("collections", {})):
        reply = app.client.request("PUT", f"/v1/{kind}/{name}", json=body)
        assert (
            reply.status_code in (404, 405)
            if name in ("..", "a%2Fb")
            else (problem(reply) == (422, "invalid-request"))
        ), reply.text
    assert app.client.get("/v1/aliases").json() == {"aliases": []}
    assert len(app.client.get("/v1/collections").json()["collections"]) == 2


def test_an_alias_and_a_collection_cannot_share_a_name(app: Any) -> None:
    assert problem(put(app, "blue", "green")) == (409, "name-taken")
    put(app, "live", "green")
    assert problem(app.client.put("/v1/collections/live")) == (409, "name-taken")
    assert app.client.get("/v1/collections/blue").json()["count"] == 14


def test_an_alias_leads_to_a_collection_that_is_served_and_to_nothing_else(
    app: Any, folder: Path
) -> None:
    put(app, "live", "blue")
    for goal in ("nowhere", "live", "../data/blue", ".", "", "a" * 300, "x\0"):
        assert problem(put(app, "other", goal)) == (404, "collection-not-found"), goal
    shutil.copytree(folder / "green", folder / "broken")
    (folder / "broken" / "documents.sqlite").write_bytes(b"no database")
    assert problem(put(app, "live", "broken")) == (503, "collection-damaged")
    assert app.client.get("/v1/aliases/live").json()["collection"] == "blue"


def test_a_collection_that_is_hidden_by_an_alias_is_told(app: Any, folder: Path) -> None:
    put(app, "live", "blue")
    shutil.copytree(folder / "green", folder / "live")  # as `lamina index build` would
    listed = {
        each["name"]: each for each in app.client.get("/v1/collections").json()["collections"]
    }
    assert listed["live"]["status"] == "failed"
    assert "hides this collection" in listed["live"]["problem"]["detail"]
    assert app.client.get("/v1/collections/live").json()["name"] == "blue"


def test_a_collection_that_an_alias_leads_to_is_not_deleted(app: Any) -> None:
    put(app, "live", "blue")
    refused = app.client.delete("/v1/collections/blue")
    assert problem(refused) == (409, "collection-in-use")
    assert "'live'" in refused.json()["detail"]
    assert problem(app.client.delete("/v1/collections/live")) == (404, "collection-not-found")
    put(app, "live", "green")
    assert app.client.delete("/v1/collections/blue").status_code == 200


def test_an_alias_of_a_collection_that_vanished_says_so(app: Any, folder: Path) -> None:
    put(app, "live", "blue")
    remove_collection(folder / "blue")
    reply = app.client.get("/v1/collections/live/search?q=cats")
    assert problem(reply) == (404, "collection-not-found")
    assert "alias 'live' leads to it" in reply.json()["detail"]


# Canary


def test_a_switch_whose_expected_ids_are_found_goes_through(app: Any) -> None:
    put(app, "live", "blue")
    queries = [{"query": "a star", "expected": ["sun"]}, {"query": "what bakers make"}]
    reply = put(app, "live", "green", queries=queries, min_overlap=0.3, top_k=5).json()
    assert reply["collection"] == "green"
    assert reply["canary"]["queries"] == 2
    assert 0.3 <= reply["canary"]["overlap"] <= 1


def test_a_switch_whose_expected_ids_are_missing_is_refused_and_tells_which(app: Any) -> None:
    put(app, "live", "blue")
    queries = [
        {"query": "a star", "expected": ["sun"]},
        {"query": "animals that bark", "expected": ["dogs", "cats"]},
    ]
    reply = put(app, "live", "green", queries=queries)
    assert problem(reply) == (409, "canary-failed")
    (failure,) = reply.json()["errors"]
    assert failure["field"] == "canary.queries[1].expected"
    assert "'dogs' is not among the first 10 hits" in failure["message"]
    assert "(2 are missing)" in failure["message"]
    assert app.client.get("/v1/aliases/live").json()["collection"] == "blue"


def test_a_switch_that_answers_too_differently_is_refused(app: Any) -> None:
    put(app, "live", "blue")
    queries = [{"query": "animals that bark"}]
    reply = put(app, "live", "green", queries=queries, top_k=2, min_overlap=0.9)
    assert problem(reply) == (409, "canary-failed")
    (failure,) = reply.json()["errors"]
    assert failure["field"] == "canary.min_overlap"
    assert app.client.get("/v1/aliases/live").json()["collection"] == "blue"
    assert put(app, "live", "blue", queries=queries, min_overlap=1).json()["canary"] == {
        "queries": 1,
        "overlap": 1.0,
    }


def test_overlap_is_not_asked_for_where_there_is_nothing_to_compare_with(app: Any) -> None:
    queries = [{"query": "cats", "expected": ["cats"]}]
    made = put(app, "live", "blue", queries=queries, min_overlap=1)
    assert made.json()["canary"] == {"queries": 1, "overlap": None}


def test_overlap_counts_what_both_have_among_the_longer_list() -> None:
    assert overlap_of(["a", "b", "c", "d"], ["d", "a", "x"]) == 0.5
    assert overlap_of([], []) == 1.0
    assert overlap_of(["a"], []) == 0.0


@pytest.mark.parametrize(
    ("canary", "where"),
    [
        ({"queries": []}, "canary.queries"),
        ({"queries": [{"query": "a"}]}, "canary"),
        ({"queries": [{"query": "a", "expected": ["b"]}], "min_overlap": 0}, "canary.min_overlap"),
        ({"queries": [{"query": "a", "expected": ["b"]}], "top_k": 0}, "canary.top_k"),
        ({"queries": [{"query": "a", "expected": [1]}]}, "canary.queries[0].expected[0]"),
        ({"queries": [{"query": "a" * 40_000, "expected": ["b"]}]}, "canary.queries[0].query"),
    ],
)
def test_a_canary_that_asks_for_nothing_or_too_much_is_refused(
    app: Any, canary: dict[str, Any], where: str
) -> None:
    reply = put(app, "live", "blue", **canary)
    assert problem(reply) == (422, "invalid-request")
    assert reply.json()["errors"][0]["field"] == where


def test_a_blank_canary_query_is_told(app: Any) -> None:
    queries = [{"query": " ", "expected": ["cats"]}]
    assert problem(put(app, "live", "blue", queries=queries)) == (422, "blank-text")


# Several at once


def test_a_switch_that_another_overtook_is_refused(folder: Path) -> None:
    with closing(Aliases(folder)) as one, closing(Aliases(folder)) as other:
        one.put("live", "blue", instead_of=None)
        other.put("live", "green", instead_of="blue")
        with pytest.raises(AliasChangedError, match="'green'"):
            one.put("live", "blue", instead_of="blue")
        with pytest.raises(AliasChangedError):
            one.put("live", "blue", instead_of=None)
        assert one.get("live").collection == "green"
        with pytest.raises(CollectionNotFoundError):
            one.put("live", ".blue", instead_of="green")
        with pytest.raises(NameTakenError):
            one.put("green", "blue", instead_of=None)
        other.delete("live")
        with pytest.raises(AliasNotFoundError):
            one.get("live")


def test_of_many_switches_at_once_exactly_one_goes_from_each_state(folder: Path) -> None:
    def switch(number: int) -> bool:
        with closing(Aliases(folder)) as aliases:
            try:
                aliases.put("live", ("blue", "green")[number % 2], instead_of=None)
            except AliasChangedError:
                return False
            return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(switch, range(12))) == 1


def test_searches_under_a_switch_and_a_deletion_are_all_answered(app: Any, folder: Path) -> None:
    put(app, "live", "blue")
    over = threading.Event()

    def search() -> list[tuple[int, str]]:
        found = []
        while not over.is_set():
            reply = app.client.get("/v1/collections/live/search?q=a star&top_k=1")
            found.append((reply.status_code, reply.json().get("collection", reply.text)))
        return found

    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(search) for _ in range(3)]
        for number in range(6):
            name = f"next-{number}"
            shutil.copytree(folder / "green", folder / name)
            previous = put(app, "live", name).json()["previous"]
            if previous != "blue":
                assert app.client.delete(f"/v1/collections/{previous}").status_code == 200
        over.set()
        replies = [reply for done in searches for reply in done.result()]
    assert {status for status, _ in replies} == {200}
    assert {name for _, name in replies} > {"blue", "next-5"}


def test_a_request_that_was_looked_up_before_a_switch_finds_the_new_collection(
    app: Any, folder: Path
) -> None:
    put(app, "live", "blue")
    catalog = app.service.catalog
    assert catalog.is_current("live")
    (folder / "green").rename(folder / "new")
    with closing(Aliases(folder)) as another_worker:
        another_worker.put("live", "new", instead_of="blue")
    app.service.aliases.refresh()  # by another request, before it has opened the collection
    assert catalog.get("live").folder.name == "new"


def test_a_search_that_waits_while_its_alias_is_switched_is_answered_by_the_new_collection(
    start: Any, folder: Path, held_encoder: Any
) -> None:
    app = start(data=folder)
    put(app, "live", "blue")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(app.client.get, "/v1/collections/live/search?q=a star&top_k=1")
        assert held_encoder.entered.wait(60)
        put(app, "live", "green")
        assert app.client.delete("/v1/collections/blue").status_code == 200
        held_encoder.gate.set()
        reply = waiting.result()
    assert reply.status_code == 200, reply.text
    assert reply.json()["collection"] == "green"
    assert reply.json()["hits"][0]["id"] == "sun"


def test_scopes_keep_readers_from_changing_and_writers_from_deleting(
    start: Any, folder: Path
) -> None:
    keys = KeyStore.open(folder)
    bearer = {
        scope: {"Authorization": f"Bearer {keys.create(scope)[1]}"}
        for scope in ("read", "write", "admin")
    }
    app = start(data=folder)
    asked = [
        ("PUT", "/v1/collections/new", {}, ["write", "admin"]),
        ("PUT", "/v1/aliases/live", {"collection": "blue"}, ["admin"]),
        ("DELETE", "/v1/aliases/none", None, ["admin"]),
        ("DELETE", "/v1/collections/none", None, ["admin"]),
        ("POST", "/v1/collections/blue/snapshot", {}, ["admin"]),
        ("GET", "/v1/aliases", None, ["read", "write", "admin"]),
    ]
    for method, path, body, allowed in asked:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        assert app.client.request(method, path, content=content).status_code == 401
        for scope, key in bearer.items():
            reply = app.client.request(method, path, content=content, headers=headers | key)
            assert (reply.status_code != 403) == (scope in allowed), (method, path, scope)


def test_plain_names_are_entries_of_the_folder_itself() -> None:
    assert all(map(is_plain, ["a", "Große Fragen", "a.b", "a" * 200]))
    assert not any(map(is_plain, ["", ".", "..", ".a", "a/b", "a\0", "a" * 201, "\ud800"]))
