"""Search indexes that the service keeps up to date by itself, in child processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from lamina_index.collection import verify_collection, writer_lock
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
