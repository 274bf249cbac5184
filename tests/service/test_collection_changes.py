"""Making, deleting and archiving collections over HTTP, with several workers on one folder."""

import itertools
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lamina_index.archive_format import check_archive
from lamina_index.archive_restore import restore_archive
from lamina_index.collection import verify_collection, writer_lock
from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.store import DocumentStore
from replies import problem


@pytest.fixture
def app(start: Any, folder: Path) -> Any:
    return start(data=folder, snapshots=folder.parent / "archives")


@pytest.fixture
def workers(start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two services on one folder, whose background threads are too slow to help."""
    monkeypatch.setattr("lamina_service.catalog.REFRESH_SECONDS", 1000)
    return [start(data=folder), start(data=folder)]


# Making


def test_a_made_collection_is_empty_described_and_can_be_searched(
    app: Any, default_encoder: OnnxEncoder
) -> None:
    asked = {"fields": {"year": "number"}, "chunking": {"tokens": 100, "overlap": 10}}
    reply = app.client.put("/v1/collections/new-1", json=asked)
    assert reply.status_code == 201
    made = reply.json()
    assert (made["name"], made["status"], made["count"]) == ("new-1", "open", 0)
    assert made["fields"] == {"year": "number", "parent": "string", "part": "number"}
    assert made["chunking"] == asked["chunking"]
    assert made["encoder"]["fingerprint"] == default_encoder.fingerprint
    assert app.client.get("/v1/collections/new-1").json() == made
    assert app.client.get("/v1/collections/new-1/search?q=cats").json()["hits"] == []


def test_an_id_that_nothing_has_where_texts_are_split_is_told_what_has_one(app: Any) -> None:
    path = "/v1/collections/split"
    assert app.client.put(path, json={"chunking": {"tokens": 9, "overlap": 0}}).status_code == 201
    documents = [{"id": "faq", "text": "One. Two words. " * 9}]
    assert app.client.post(f"{path}/documents", json=documents).json()["inserted"] == 1
    assert app.client.get(f"{path}/documents/faq%231").status_code == 200
    for reply in (
        app.client.get(f"{path}/documents/faq"),
        app.client.post(f"{path}/similar/faq", json={}),
        app.client.delete(f"{path}/documents/faq%231"),
    ):
        assert problem(reply) == (404, "document-not-found")
        assert "parts are read by their ids, such as 'faq-17#1'" in reply.json()["detail"]
    assert app.client.delete(f"{path}/documents/faq").json()["deleted"] == 1


def test_making_the_same_again_finds_it_and_making_another_is_refused(
    app: Any, folder: Path
) -> None:
    path = "/v1/collections/new"
    assert app.client.put(path).status_code == 201  # no body at all
    with DocumentStore.open(folder / "new") as store:
        store.upsert([Document("a", "text", {})], [[1.0] + [0.0] * 383])
    for again in ({}, {"chunking": None}, {"fields": {}}):
        reply = app.client.put(path, json=again)
        assert (reply.status_code, reply.json()["count"]) == (200, 1)
    for other in ({"fields": {"year": "number"}}, {"chunking": {"tokens": 9}}):
        assert problem(app.client.put(path, json=other)) == (409, "collection-exists")
    known = app.client.put("/v1/collections/small", json={"fields": {"legs": "number"}})
    assert known.status_code == 200  # learned from its documents
    refused = app.client.put("/v1/collections/small", json={"fields": {"legs": "string"}})
    assert "field 'legs' is number, asked for string" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"fields": {"year": "int"}}, "fields.year"),
        ({"fields": {"id": "string"}}, "fields"),
        ({"fields": {" ": "string"}}, "fields"),
        ({"fields": {"a" * 129: "string"}}, "fields"),
        ({"fields": {str(n): "string" for n in range(257)}}, "fields"),
        ({"fields": {"parent": "number"}, "chunking": {"tokens": 9}}, "fields"),
        ({"chunking": {"tokens": 0}}, "chunking.tokens"),
        ({"chunking": {"tokens": 100_000}}, "chunking.tokens"),
        ({"chunking": {"tokens": 10, "overlap": 6}}, "chunking"),
        ({"encoder": "other"}, "encoder"),
        ([], ""),
    ],
)
def test_what_no_collection_can_be_like_is_refused(app: Any, body: Any, where: str) -> None:
    reply = app.client.put("/v1/collections/new", json=body)
    assert problem(reply) == (422, "invalid-request")
    assert reply.json()["errors"][0]["field"] == where
    assert problem(app.client.get("/v1/collections/new")) == (404, "collection-not-found")


def test_a_body_must_be_json_where_there_is_one(app: Any) -> None:
    for method, path in (("PUT", "new"), ("POST", "small/snapshot"), ("POST", "small/compact")):
        reply = app.client.request(method, f"/v1/collections/{path}", content=b"{}")
        assert problem(reply) == (415, "unsupported-media-type")


@pytest.mark.parametrize("route", ["snapshot", "compact"])
def test_a_body_in_which_nothing_is_asked_for_may_be_left_out(app: Any, route: str) -> None:
    reply = app.client.post(f"/v1/collections/small/{route}")
    assert reply.status_code == 200, reply.text
    assert reply.json()["documents"] == 14


@pytest.mark.parametrize("route", ["snapshot", "compact"])
def test_a_page_elsewhere_cannot_make_a_browser_ask_without_a_body(app: Any, route: str) -> None:
    """A browser asks first (CORS) before it sends this Content-Type to another origin."""
    path, origin = f"/v1/collections/small/{route}", {"Origin": "https://elsewhere.example"}
    assert problem(app.client.post(path, headers=origin)) == (415, "unsupported-media-type")
    json_type = {"Content-Type": "application/json"}
    assert app.client.post(path, headers=origin | json_type).status_code == 200


def test_no_path_leads_out_of_the_folder(app: Any, folder: Path) -> None:
    outside = folder.parent / "outside"
    shutil.copytree(folder / "small", outside)
    for name in (
        "..%2Foutside",
        "%2E%2E%2Foutside",
        "%2E%2E",
        "%2E",
        "%00",
        "small%00",
        "a" * 3000,
    ):
        for method, path in itertools.product(
            ("GET", "PUT", "DELETE"), (f"/v1/collections/{name}", f"/v1/aliases/{name}")
        ):
            reply = app.client.request(method, path)
            assert reply.status_code in (404, 405, 415, 422), (method, path, reply.text)
    assert verify_collection(outside) == []
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["small"]


# Deleting


def test_a_deleted_collection_is_gone_with_its_files(app: Any, folder: Path) -> None:
    assert app.client.delete("/v1/collections/small").json() == {"deleted": "small"}
    assert problem(app.client.get("/v1/collections/small/search?q=cats")) == (
        404,
        "collection-not-found",
    )
    assert app.client.get("/v1/collections").json() == {"collections": []}
    assert problem(app.client.delete("/v1/collections/small")) == (404, "collection-not-found")
    assert [path.name for path in folder.iterdir() if path.is_dir()] == []
    metrics = app.client.get("/metrics").text
    assert 'lamina_collection_documents{collection="small"} 0.0' in metrics


def test_a_damaged_collection_can_be_deleted(app: Any, folder: Path) -> None:
    (folder / "small" / "documents.sqlite").write_bytes(b"no database")
    assert app.client.delete("/v1/collections/small").status_code == 200
    assert not (folder / "small").exists()


def test_a_collection_that_a_build_writes_to_is_not_deleted(app: Any, folder: Path) -> None:
    with writer_lock(folder / "small"):
        assert problem(app.client.delete("/v1/collections/small")) == (409, "collection-busy")
    assert app.client.get("/v1/collections/small").json()["count"] == 14


def test_searches_that_run_while_their_collection_is_deleted_end_well(app: Any) -> None:
    deleted = threading.Event()
    answered = threading.Semaphore(0)

    def search(_: int) -> list[Any]:
        replies = []
        while not deleted.is_set():
            replies.append(app.client.get("/v1/collections/small/search?q=cats"))
            answered.release()
        return [*replies, app.client.get("/v1/collections/small/search?q=cats")]

    with ThreadPoolExecutor(4) as pool:
        searches = [pool.submit(search, number) for number in range(4)]
        for _ in range(20):
            answered.acquire()
        app.client.delete("/v1/collections/small")
        deleted.set()
        found = [done.result() for done in searches]
    replies = [reply for each in found for reply in each]
    assert {reply.status_code for reply in replies} == {200, 404}
    assert [each[-1].status_code for each in found] == [404] * 4
    assert all(len(reply.json()["hits"]) == 10 for reply in replies if reply.status_code == 200)


def test_what_a_killed_deletion_left_is_removed_soon(app: Any, folder: Path) -> None:
    left = folder / ".small.removed-0123456789abcdef"
    shutil.copytree(folder / "small", left)
    deadline = time.monotonic() + 60
    while left.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left.exists()


# Several workers


def test_what_one_worker_does_the_next_request_on_another_sees(
    workers: list[Any], folder: Path
) -> None:
    for number in range(6):
        here, there = workers[number % 2].client, workers[(number + 1) % 2].client
        name = f"c{number}"
        assert problem(there.get(f"/v1/collections/{name}")) == (404, "collection-not-found")
        assert here.put(f"/v1/collections/{name}").status_code == 201
        assert there.get(f"/v1/collections/{name}/search?q=cats").status_code == 200
        assert there.put(f"/v1/collections/{name}").status_code == 200
        assert here.put("/v1/aliases/live", json={"collection": name}).status_code == 200
        assert there.get("/v1/collections/live").json()["name"] == name
        assert there.get("/info").json()["aliases"] == {"live": name}
        assert there.put("/v1/aliases/live", json={"collection": "small"}).status_code == 200
        assert here.get("/v1/collections/live/search?q=cats").json()["collection"] == "small"
        assert here.delete(f"/v1/collections/{name}").status_code == 200
        assert problem(there.get(f"/v1/collections/{name}/search?q=cats"))[0] == 404
        assert [found["name"] for found in there.get("/v1/collections").json()["collections"]] == [
            "small"
        ]
        assert there.delete("/v1/aliases/live").status_code == 200
        assert problem(here.get("/v1/collections/live"))[0] == 404


def test_a_collection_deleted_and_made_again_is_the_new_one_everywhere(
    workers: list[Any], folder: Path
) -> None:
    first, second = (worker.client for worker in workers)
    for _ in range(5):
        assert second.get("/v1/collections/small").json()["count"] in (0, 14)
        assert first.delete("/v1/collections/small").status_code == 200
        assert first.put("/v1/collections/small").status_code == 201
        assert second.get("/v1/collections/small").json()["count"] == 0
        assert second.get("/v1/collections/small/search?q=cats").json()["hits"] == []


def test_a_request_that_meets_a_replacement_half_way_waits_for_it(
    workers: list[Any], folder: Path
) -> None:
    path = "/v1/collections/small/search?q=cats"
    assert workers[0].client.get(path).status_code == 200
    shutil.copytree(folder / "small", folder / ".next")
    with ThreadPoolExecutor(2) as pool:
        with writer_lock(folder / "small"):
            (folder / "small").rename(folder / ".small.old")
            asked = [pool.submit(worker.client.get, path) for worker in workers]
            assert wait(asked, timeout=0.5).done == set()
            (folder / ".next").rename(folder / "small")
        assert [reply.result().status_code for reply in asked] == [200, 200]


def test_workers_that_make_one_collection_at_once_make_one(workers: list[Any]) -> None:
    for number in range(5):

        def make(worker: Any, path: str = f"/v1/collections/c{number}") -> int:
            return int(worker.client.put(path).status_code)

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(make, workers * 2)) == [200, 200, 200, 201]


NAMES = st.sampled_from(["a", "b", "c"])
WORKERS = st.integers(0, 1)


def test_any_order_of_changes_agrees_with_a_model(workers: list[Any], folder: Path) -> None:
    """Two workers and a dictionary each of collections and aliases."""
    clients = [worker.client for worker in workers]

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            for alias in clients[0].get("/v1/aliases").json()["aliases"]:
                clients[0].delete(f"/v1/aliases/{alias['name']}")
            for found in clients[0].get("/v1/collections").json()["collections"]:
                clients[0].delete(f"/v1/collections/{found['name']}")
            self.collections: set[str] = set()
            self.aliases: dict[str, str] = {}

        @rule(name=NAMES, worker=WORKERS)
        def make(self, name: str, worker: int) -> None:
            expected = 409 if name in self.aliases else 200 if name in self.collections else 201
            assert clients[worker].put(f"/v1/collections/{name}").status_code == expected
            if expected == 201:
                self.collections.add(name)

        @rule(name=NAMES, worker=WORKERS)
        def delete(self, name: str, worker: int) -> None:
            expected = 200 if name in self.collections else 404
            if name in self.collections and name in self.aliases.values():
                expected = 409
            assert clients[worker].delete(f"/v1/collections/{name}").status_code == expected
            if expected == 200:
                self.collections.remove(name)

        @rule(name=NAMES, goal=NAMES, worker=WORKERS)
        def lead(self, name: str, goal: str, worker: int) -> None:
            expected = 200
            if goal in self.aliases or goal not in self.collections:
                expected = 404
            elif name in self.collections:
                expected = 409
            reply = clients[worker].put(f"/v1/aliases/{name}", json={"collection": goal})
            assert reply.status_code == expected
            if expected == 200:
                assert reply.json()["previous"] == self.aliases.get(name)
                self.aliases[name] = goal

        @rule(name=NAMES, worker=WORKERS)
        def end(self, name: str, worker: int) -> None:
            expected = 200 if name in self.aliases else 404
            assert clients[worker].delete(f"/v1/aliases/{name}").status_code == expected
            self.aliases.pop(name, None)

        @invariant()
        def both_workers_agree(self) -> None:
            for client in clients:
                info = client.get("/info").json()
                assert info["aliases"] == self.aliases
                assert {found["name"] for found in info["collections"]} == self.collections
                for name in ("a", "b", "c"):
                    reply = client.get(f"/v1/collections/{name}/search?q=cats")
                    goal = self.aliases.get(name, name)
                    assert reply.status_code == (200 if goal in self.collections else 404)
                    assert reply.status_code == 404 or reply.json()["collection"] == goal

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=6,
            stateful_step_count=15,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert [path.name for path in folder.glob(".*") if path.is_dir()] == []


def test_two_real_workers_agree_after_every_change(serving: Any, folder: Path) -> None:
    with serving(folder, "--workers", "2") as url, ExitStack() as stack:
        clients = [  # a connection each, which the kernel spreads over the workers
            stack.enter_context(httpx.Client(base_url=url, timeout=60, trust_env=False))
            for _ in range(12)
        ]
        for number in range(3):
            name = f"c{number}"
            assert clients[number].put(f"/v1/collections/{name}").status_code == 201
            for client in clients:
                assert client.get(f"/v1/collections/{name}/search?q=cats").status_code == 200
            for goal in (name, "small"):
                clients[-1].put("/v1/aliases/live", json={"collection": goal})
                for client in clients:
                    assert client.get("/v1/collections/live").json()["name"] == goal
            assert clients[number].delete(f"/v1/collections/{name}").status_code == 200
            for client in clients:
                assert client.get(f"/v1/collections/{name}").status_code == 404


def change_until_killed(url: str, random: Random, known: dict[str, Any]) -> None:
    """Make random changes, note in `known` what was acknowledged, and what may have been done."""
    names = ["a", "b", "c", "d"]
    with (
        httpx.Client(base_url=url, timeout=60, trust_env=False) as client,
        suppress(httpx.HTTPError),
    ):
        while True:
            name, goal = random.choice(names), random.choice(names)
            made, aliases = known["collections"], known["aliases"]
            kind = random.choice(["make", "make", "delete", "lead", "end", "archive"])
            known["doubtful"] = (kind, name, goal)
            if kind == "make" and client.put(f"/v1/collections/{name}").status_code == 201:
                made.add(name)
            elif kind == "delete" and client.delete(f"/v1/collections/{name}").status_code == 200:
                made.discard(name)
            elif kind == "lead":
                alias = {"collection": goal}
                if client.put(f"/v1/aliases/to-{name}", json=alias).status_code == 200:
                    aliases[f"to-{name}"] = goal
            elif kind == "end" and client.delete(f"/v1/aliases/to-{name}").status_code == 200:
                del aliases[f"to-{name}"]
            elif kind == "archive":
                reply = client.post(f"/v1/collections/{name}/snapshot", json={})
                if reply.status_code == 200:
                    known["archives"].add(reply.json()["file"])
            known["doubtful"] = None


def check_after_kill(url: str, folder: Path, known: dict[str, Any]) -> None:
    """Compare a service that was started again with what was acknowledged; learn the rest."""
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        info = client.get("/info").json()
    made = {found["name"] for found in info["collections"]} - {"small"}
    kind, name, _ = known["doubtful"] or (None, None, None)
    assert made - {name} == known["collections"] - {name}
    assert made == known["collections"] or kind in ("make", "delete")
    for alias in known["aliases"].keys() | info["aliases"].keys():
        unsure = kind in ("lead", "end") and alias == f"to-{name}"
        assert unsure or info["aliases"].get(alias) == known["aliases"].get(alias)
    assert {found["status"] for found in info["collections"]} == {"open"}
    for found in made:
        assert verify_collection(folder / found) == []
    for file in (folder.parent / "archives").glob("*.tar"):
        check_archive(file, lambda: None)
        known["archives"].discard(file.name)
    assert known["archives"] == set()
    known["collections"], known["aliases"] = made, dict(info["aliases"])


@pytest.mark.parametrize(
    "rounds", [pytest.param(2, id="2"), pytest.param(40, id="40", marks=pytest.mark.slow)]
)
def test_what_was_acknowledged_is_there_after_a_kill_and_the_rest_is_whole_or_not_there(
    rounds: int, serving: Any, folder: Path
) -> None:
    random = Random(rounds)
    known: dict[str, Any] = {
        "collections": set(),
        "aliases": {},
        "archives": set(),
        "doubtful": None,
    }
    for _ in range(rounds):
        with serving(folder) as url, ThreadPoolExecutor(1) as pool:
            check_after_kill(url, folder, known)
            changing = pool.submit(change_until_killed, url, random, known)
            time.sleep(random.uniform(0.1, 1.5))
            url.kill()
            changing.result()


def test_making_and_deleting_again_and_again_leaks_no_file(
    app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_service.catalog._RETIREMENT_SECONDS", -1.0)
    open_files = []
    for _ in range(20):
        assert app.client.put("/v1/collections/new").status_code == 201
        assert app.client.get("/v1/collections/new/search?q=cats").status_code == 200
        assert app.client.delete("/v1/collections/new").status_code == 200
        app.service.catalog._close_retired()
        open_files.append(len(list(Path("/proc/self/fd").iterdir())))
    assert open_files[-1] <= open_files[2]


# Archives


def test_an_archive_of_a_served_collection_restores_to_the_same(
    app: Any, folder: Path, tmp_path: Path
) -> None:
    reply = app.client.post("/v1/collections/small/snapshot", json={})
    assert reply.status_code == 200
    made = reply.json()
    file = tmp_path / "archives" / made["file"]
    assert re.fullmatch(r"small-\d{8}T\d{6}Z-[0-9a-f]{8}\.tar", made["file"])
    assert made["size_bytes"] == file.stat().st_size
    assert (made["collection"], made["documents"]) == ("small", 14)
    restore_archive(file, folder / "again")
    searched = [
        app.client.get(f"/v1/collections/{name}/search?q=cats").json()["hits"]
        for name in ("small", "again")
    ]
    assert searched[0] == searched[1]


def test_archives_under_searches_and_writes_are_whole(
    app: Any, folder: Path, tmp_path: Path
) -> None:
    over = threading.Event()
    vector = [1.0] + [0.0] * 383

    def write() -> None:
        with DocumentStore.open(folder / "small") as store:
            for number in itertools.count():
                if over.is_set():
                    return
                pair = [Document(f"{side}{number}", "text", {}) for side in ("l", "r")]
                store.upsert(pair, [vector, vector])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(4):
            made = app.client.post("/v1/collections/small/snapshot", json={}).json()
            assert app.client.get("/v1/collections/small/search?q=cats").status_code == 200
            restored = tmp_path / f"restored-{number}"
            restore_archive(tmp_path / "archives" / made["file"], restored)
            with DocumentStore.open(restored) as store:
                assert store.count() == made["documents"]
                assert made["documents"] % 2 == 0
    finally:
        over.set()
        writer.join()


def test_without_a_folder_for_archives_none_is_written(start: Any, folder: Path) -> None:
    reply = start(data=folder).client.post("/v1/collections/small/snapshot", json={})
    assert problem(reply) == (409, "snapshots-off")
    assert "LAMINA_SNAPSHOTS" in reply.json()["detail"]


def test_no_path_is_taken_from_a_request(app: Any, tmp_path: Path) -> None:
    for body in ({"file": "/tmp/evil"}, {"path": "../evil"}, {"name": "evil"}):
        reply = app.client.post("/v1/collections/small/snapshot", json=body)
        assert problem(reply) == (422, "invalid-request")
    assert not (tmp_path / "archives").exists()


def test_archives_are_written_one_at_a_time(app: Any, tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    with writer_lock(tmp_path / "archives"):
        reply = app.client.post("/v1/collections/small/snapshot", json={})
    assert problem(reply) == (409, "collection-busy")
    assert "another archive" in reply.json()["detail"]


def test_an_archive_of_what_is_damaged_or_not_there_is_refused_until_it_is_mended(
    app: Any, folder: Path
) -> None:
    assert problem(app.client.post("/v1/collections/none/snapshot", json={})) == (
        404,
        "collection-not-found",
    )
    until(lambda: app.client.get("/v1/collections/small").json()["verified"])
    index = folder / "small" / "snapshots" / "1" / "vectors.faiss"
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    os.replace(_written(index.with_name("altered"), content), index)
    reply = app.client.post("/v1/collections/small/snapshot", json={})
    assert problem(reply) == (503, "index-damaged")
    assert [path.name for path in (folder.parent / "archives").iterdir()] == [".lock"]
    until(lambda: app.client.post("/v1/collections/small/snapshot", json={}).status_code == 200)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_stop_does_not_wait_for_an_archive(app: Any, tmp_path: Path) -> None:
    app.service.closing.set()
    reply = app.client.post("/v1/collections/small/snapshot", json={})
    assert problem(reply) == (409, "collection-busy")
    assert [path.name for path in (tmp_path / "archives").iterdir()] == [".lock"]


def test_names_that_are_locked_for_long_give_a_problem_and_not_a_crash(
    app: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_service.database._BUSY_TIMEOUT_SECONDS", 0.05)
    with sqlite3.connect(folder / "service.sqlite", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        refused = [
            app.client.put("/v1/collections/new"),
            app.client.delete("/v1/collections/small"),
            app.client.put("/v1/aliases/live", json={"collection": "small"}),
        ]
        assert [problem(reply) for reply in refused] == [(409, "collection-busy")] * 3
        assert app.client.get("/v1/collections/small/search?q=cats").status_code == 200
        other.execute("ROLLBACK")
    other.close()
    assert app.client.put("/v1/collections/new").status_code == 201
