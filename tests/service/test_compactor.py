"""Search indexes that the service keeps up to date by itself, in child processes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from lamina_index.collection import verify_collection, writer_lock
from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.store import DocumentStore

WAIT_SECONDS = 90


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    shutil.copytree(data / "small", tmp_path / "data" / "small")
    return tmp_path / "data"


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
        store.upsert([Document(id, text, {}) for id, text in texts.items()], embeddings)


def problem(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["type"].rpartition(":")[2]


def children(process: psutil.Process) -> list[psutil.Process]:
    """Compactions that a process, or one that it started, runs; zombies too."""
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if child.status() == psutil.STATUS_ZOMBIE or "lamina_index.compaction_process" in (
                child.cmdline()
            ):
                found.append(child)
    return found


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
