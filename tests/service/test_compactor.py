"""Search indexes that the service keeps up to date by itself, in child processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from lamina_index.collection import verify_collection, writer_lock
from lamina_index.compaction import compact
from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import CollectionBusyError
from lamina_index.store import DocumentStore
from lamina_service.keys import opened
from replies import problem

WAIT_SECONDS = 90
RUN = "from lamina_index.cli import run; run()"


@pytest.fixture
def app(start: Any, folder: Path) -> Any:
    return start(data=folder, compact=False)


def until(holds: Callable[[], Any], what: str) -> Any:
    """Wait until something holds, and give it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.05)
    raise AssertionError(f"after {WAIT_SECONDS} seconds: not yet {what}")


def add(folder: Path, encoder: OnnxEncoder, texts: dict[str, str]) -> None:
    """Commit documents as another process would."""
    embeddings = encoder.encode(list(texts.values()), role="document").embeddings
    with DocumentStore.open(folder) as store:
        store.upsert([Document(name, text, {}) for name, text in texts.items()], embeddings)


def compactions(process: psutil.Process) -> list[psutil.Process]:
    """Compactions that a process, or one that it started, runs; zombies too."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.Error):
            if "lamina_index.compaction_process" in child.cmdline():
                found.append(child)
    return found


def is_free(folder: Path) -> bool:
    """Whether nobody compacts a collection."""
    try:
        with writer_lock(folder):
            return True
    except CollectionBusyError:
        return False


def app_index(app: Any) -> Any:
    return app.client.get("/v1/collections/small").json()["index"]


# On request


def test_a_request_adds_new_rows_to_the_index_and_another_builds_it_anew(
    app: Any, folder: Path, default_encoder: OnnxEncoder
) -> None:
    add(folder / "small", default_encoder, {"tea": "Tea is drunk hot.", "cats": "Cats purr."})
    before = app.client.get("/v1/collections/small").json()
    assert (before["delta_count"], before["deleted_count"]) == (2, 1)
    done = app.client.post("/v1/collections/small/compact").json()
    assert (done["documents"], done["added"], done["reason"]) == (15, 2, "")
    assert (done["index"]["rows"], done["index"]["deleted"]) == (15, 1)
    after = app.client.get("/v1/collections/small").json()
    assert (after["delta_count"], after["deleted_count"], after["count"]) == (0, 1, 15)
    assert after["index"] == done["index"]
    assert app.search("purring cats").json()["hits"][0]["text"] == "Cats purr."
    rebuilt = app.client.post("/v1/collections/small/compact", json={"factory": "SQ8"}).json()
    assert (rebuilt["added"], rebuilt["reason"]) == (None, "asked for")
    assert (rebuilt["index"]["factory"], rebuilt["index"]["deleted"]) == ("SQ8", 0)
    assert verify_collection(folder / "small") == []
    metrics = app.client.get("/metrics").text
    assert 'lamina_compactions_total{outcome="added"} 1.0' in metrics
    assert 'lamina_compactions_total{outcome="rebuilt"} 1.0' in metrics


def test_requests_that_cannot_be_met_are_problems_and_change_nothing(
    app: Any, folder: Path
) -> None:
    path = "/v1/collections/small/compact"
    assert problem(app.client.post(path, json={"factory": "Flatt"})) == (422, "index-factory")
    assert problem(app.client.post(path, json={"fast": True})) == (422, "invalid-request")
    assert problem(app.client.post(path.replace("small", "none"))) == (404, "collection-not-found")
    with writer_lock(folder / "small"):
        assert problem(app.client.post(path)) == (409, "collection-busy")
    assert app.client.get("/v1/collections/small").json()["index"]["snapshot"] == 1


def test_only_who_may_administer_may_ask_for_it(start: Any, folder: Path) -> None:
    with opened(folder) as keys:
        (_, write), (_, admin) = keys.create("write"), keys.create("admin")
    client = start(data=folder, compact=False).client
    path = "/v1/collections/small/compact"
    refused = client.post(path, headers={"Authorization": f"Bearer {write}"})
    assert problem(refused) == (403, "scope-insufficient")
    assert client.post(path, headers={"Authorization": f"Bearer {admin}"}).status_code == 200


# By itself


def test_new_rows_get_into_the_index_without_being_asked_for(
    start: Any, folder: Path, default_encoder: OnnxEncoder
) -> None:
    app = start(data=folder, compact_rows=30)
    add(folder / "small", default_encoder, {f"n{n}": f"Number {n} of many." for n in range(29)})
    assert app.search("Number 7 of many.").json()["hits"][0]["id"] == "n7"
    until(lambda: "lamina_collection_delta" in app.client.get("/metrics").text, "looked at")
    described = app.client.get("/v1/collections/small").json()
    assert (described["delta_count"], described["index"]["snapshot"]) == (29, 1)
    add(folder / "small", default_encoder, {"n29": "Number 29 of many."})

    def compacted() -> Any:
        found = app.client.get("/v1/collections/small").json()
        for asked in (7, 29):  # before, meanwhile and after
            assert app.search(f"Number {asked} of many.").json()["hits"][0]["id"] == f"n{asked}"
        return found["delta_count"] == 0 and found

    described = until(compacted, "in the index")
    assert described["index"]["appended"] == 30
    assert described["compaction_failure"] is None
    for line in (r'compactions_total{outcome="added"} 1\.0', r"collection_delta{.*} 0\.0"):
        until(lambda line=line: re.search(line, app.client.get("/metrics").text), "told")


def test_a_failure_is_told_by_every_worker_backed_off_and_overcome(
    start: Any, folder: Path, default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_service.compactor._FIRST_PAUSE", 3.0)
    obstacle = folder / "small" / "snapshots" / ".writing-1-left"
    obstacle.write_text("what is in the way is a folder elsewhere, never a file")
    workers = [start(data=folder, compact_rows=2) for _ in range(2)]
    add(folder / "small", default_encoder, {"a": "A first text.", "b": "A second text."})

    def failing() -> Any:
        told = [
            worker.client.get("/v1/collections/small").json()["compaction_failure"]
            for worker in workers
        ]
        return all(told) and told

    told = until(failing, "told")
    assert told[0]["failures"] >= 1
    assert ".writing-1-left: cannot be written" in told[1]["error"]
    assert workers[0].client.get("/info").json()["collections"][0]["compaction_failure"]
    assert workers[0].search("first text").json()["hits"][0]["id"] == "a"
    obstacle.unlink()
    until(
        lambda: all(
            found["compaction_failure"] is None and found["delta_count"] == 0
            for worker in workers
            for found in [worker.client.get("/v1/collections/small").json()]
        ),
        "overcome",
    )
    counted = [worker.client.get("/metrics").text for worker in workers]
    assert sum('lamina_compactions_total{outcome="failed"}' in text for text in counted) == 1
    assert app_index(workers[1])["reason"] == app_index(workers[0])["reason"]


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_compaction_ends_with_its_worker_and_leaves_the_index_there_was(
    folder: Path, default_encoder: OnnxEncoder, ending: str
) -> None:
    """Two workers: one keeps watch; when it is killed the other goes on."""
    rows = np.random.default_rng(0).standard_normal((12_000, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    with DocumentStore.open(folder / "small") as store:
        store.upsert([Document(f"r{n}", "", {}) for n in range(len(rows))], rows)
    command = [sys.executable, "-c", RUN, "serve", "--data", folder, "--port", "0"]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("LAMINA_")}
    with subprocess.Popen(
        [*map(str, command), "--workers", "2"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "http://" in line)
            found = re.search(r"http://\S+", line)
            assert found is not None
            url = found[0]
            supervisor = psutil.Process(process.pid)
            (child,) = until(lambda: compactions(supervisor), "compacting")
            until(lambda: child.nice() == 10, "polite")
            search = f"{url}/v1/collections/small/search?q=cats"
            reply = httpx.get(search, timeout=60, trust_env=False).json()
            assert reply["hits"][0]["id"] == "cats"
            if ending == "stop":
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            else:
                child.parent().kill()  # type: ignore[union-attr] # its worker
            gone, alive = psutil.wait_procs([child], timeout=30)
            assert (gone, alive) == ([child], [])
            if ending == "kill":
                other = until(lambda: compactions(supervisor), "compacting again")
                assert other != [child]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert [path.name for path in (folder / "small" / "snapshots").glob("[0-9]*")] == ["1"]
    until(lambda: is_free(folder / "small"), "free again")  # the last child ends with its worker
    assert verify_collection(folder / "small") == []


# Damaged indexes


def overwrite(path: Path, place: int = 0) -> None:
    """Alter four bytes of a file, in a new one: who has the old one mapped goes on with it."""
    content = bytearray(path.read_bytes())
    content[place : place + 4] = bytes(255 - byte for byte in content[place : place + 4])
    path.with_name("altered").write_bytes(content)
    path.with_name("altered").replace(path)


@pytest.mark.parametrize("body", [{}, {"factory": "auto"}])
def test_a_damaged_index_is_no_obstacle_to_a_request_that_makes_it_again(
    start: Any, folder: Path, body: dict[str, str]
) -> None:
    overwrite(folder / "small" / "snapshots" / "1" / "vectors.faiss")
    app = start(data=folder, compact=False)
    refused = app.search("cats")
    assert problem(refused) == (503, "index-damaged")
    assert int(refused.headers["retry-after"]) >= 1
    done = app.client.post("/v1/collections/small/compact", json=body)
    assert done.status_code == 200, done.text
    assert "vectors.faiss: altered" in done.json()["reason"]
    for told in (refused, done):
        assert "small/snapshots/1/vectors.faiss" in told.text
        assert str(folder) not in told.text
    assert app.search("cats").json()["hits"][0]["id"] == "cats"
    assert verify_collection(folder / "small") == []


@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_index_is_made_again_without_being_asked_for(
    start: Any, folder: Path, missing: bool
) -> None:
    keys = folder / "small" / "snapshots" / "1" / "keys.npy"
    keys.unlink() if missing else overwrite(keys, 130)
    app = start(data=folder)

    def answered() -> bool:
        reply = app.search("cats")
        if reply.status_code == 200:
            return bool(reply.json()["hits"][0]["id"] == "cats")
        assert problem(reply) == (503, "index-damaged")
        assert int(reply.headers["retry-after"]) >= 1
        return False

    until(answered, "made again")
    assert verify_collection(folder / "small") == []
    until(
        lambda: 'compactions_total{outcome="rebuilt"} 1.0' in app.client.get("/metrics").text,
        "counted",
    )


def test_damage_that_the_background_check_finds_is_not_served_and_mended(
    start: Any, folder: Path, default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.snapshot_files._CHUNK_BYTES", 4096)
    compact(folder / "small", full=True)
    overwrite(folder / "small" / "snapshots" / "2" / "vectors.faiss", 10_000)  # not at its ends
    with writer_lock(folder / "small"):  # as a build at work does
        app = start(data=folder)
        until(lambda: app.search("cats").status_code == 503, "found")
        add(folder / "small", default_encoder, {"tea": "Tea is drunk hot."})
        with closing(sqlite3.connect(folder / "small" / "documents.sqlite")) as connection:
            connection.execute("PRAGMA wal_checkpoint")
        (folder / "small" / "snapshots" / ".writing-3").mkdir()
        app.service.catalog.refresh()
        assert problem(app.search("cats")) == (503, "index-damaged")
    until(lambda: app.search("cats").status_code == 200, "mended")
    assert app_index(app)["snapshot"] == 3
    assert app.search("hot tea").json()["hits"][0]["id"] == "tea"
    assert verify_collection(folder / "small") == []


def test_a_damaged_index_is_given_up_where_the_documents_are_damaged_too(
    start: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("lamina_service.compactor._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("lamina_service.compactor._MOST_MENDS", 2)
    monkeypatch.setattr("lamina_service.compactor.LOOK_SECONDS", 0.05)
    store = folder / "small" / "documents.sqlite"
    sound = store.read_bytes()
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("UPDATE vectors SET crc32 = crc32 + 1 WHERE key = 3")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    overwrite(folder / "small" / "snapshots" / "1" / "vectors.faiss")
    app = start(data=folder)
    until(lambda: "until somebody compacts it" in caplog.text, "given up")
    time.sleep(1)  # some more looks
    failed = 'lamina_compactions_total{outcome="failed"}'
    assert f"{failed} 2.0" in app.client.get("/metrics").text
    described = app.client.get("/v1/collections/small").json()
    assert described["status"] == "failed"
    assert described["compaction_failure"]["failures"] == 2
    assert described["compaction_failure"]["error"].startswith("small/documents.sqlite: ")
    assert f"{folder}/small/documents.sqlite: " in caplog.text
    path = "/v1/collections/small/compact"
    refused = app.client.post(path)
    assert problem(refused) == (503, "collection-damaged")
    assert "retry-after" not in refused.headers
    store.write_bytes(sound)
    assert app.client.post(path).status_code == 200
    assert app.search("cats").json()["hits"][0]["id"] == "cats"
    assert app.client.get("/v1/collections/small").json()["compaction_failure"] is None


def test_a_newer_index_that_is_damaged_is_replaced_while_the_older_one_serves(
    start: Any, folder: Path
) -> None:
    snapshots = folder / "small" / "snapshots"
    shutil.copytree(snapshots / "1", snapshots / "2")
    overwrite(snapshots / "2" / "keys.npy")
    app = start(data=folder)

    def mended() -> bool:
        assert app.search("cats").json()["hits"][0]["id"] == "cats"
        described = app.client.get("/v1/collections/small")
        assert str(folder) not in described.text
        return bool(described.json()["damage"] == [])

    until(mended, "replaced")
    assert app_index(app)["snapshot"] == 3
    assert verify_collection(folder / "small") == []
