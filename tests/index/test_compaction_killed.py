"""Compaction under kills, beside writers, and many times over."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from lamina_index.collection import verify_collection
from lamina_index.compaction import compact
from lamina_index.corpus import Document
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore

MakeCollection = Callable[..., Any]
DIMENSION = 32


@pytest.mark.parametrize("mode", ["added", pytest.param("rebuilt", marks=pytest.mark.slow)])
def test_a_compaction_killed_at_any_step_leaves_a_collection_that_is_right(
    mode: str, killed: Callable[..., list[str]]
) -> None:
    changes = " ".join(killed("killed_compactions.py", mode))
    steps = ["step add", "step write", "step measure", "step prove", "os.rename", "shutil.rmtree"]
    for needed in [*steps, *(["step copy"] if mode == "added" else []), "COMMIT"]:
        assert needed in changes, f"no kill point at {needed}"


def rows_of(numbers: list[int]) -> NDArray[np.float32]:
    """A vector for each number, always the same."""
    rows = np.stack([np.random.default_rng(n).standard_normal(DIMENSION) for n in numbers])
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def run_process(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lamina_index.compaction_process", *options, str(folder)],
        stdout=subprocess.PIPE,
    )


@pytest.mark.slow
def test_kills_at_random_moments_while_a_writer_commits_lose_nothing(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    present = set(range(3000))
    made.put([str(n) for n in present], rows_of(sorted(present)))
    compact(made.folder, factory="HNSW16,SQ8")
    dice = random.Random(6)
    stop = threading.Event()
    following = 3000

    def write() -> None:
        nonlocal following
        with DocumentStore.open(made.folder) as store:
            while not stop.wait(0.01):
                new = list(range(following, following + 20))
                store.upsert([Document(str(n), "", {}) for n in new], rows_of(new))
                following += 20
                present.update(new)
                gone = dice.sample(sorted(present), 15)
                store.delete([str(n) for n in gone])
                present.difference_update(gone)

    killed = 0
    for _ in range(30):
        stop.clear()
        writer = threading.Thread(target=write)
        writer.start()
        process = run_process(made.folder, "--threads=1")
        time.sleep(dice.uniform(0.2, 2.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        stop.set()
        writer.join()
        assert verify_collection(made.folder) == []
        with Searcher.open(made.folder) as searcher:
            probes = dice.sample(sorted(present), 20)
            for number, row in zip(probes, rows_of(probes), strict=True):
                found = searcher.search_embedding(row, SearchOptions(top_k=10))
                assert found.total == len(present)
                assert found.hits[0].id == str(number)
            found = searcher.search_embedding(row, SearchOptions(top_k=len(present)))
            assert {int(hit.id) for hit in found.hits} == present
    assert killed >= 5
    compact(made.folder)
    assert len(list((made.folder / "snapshots").iterdir())) == 1


@pytest.mark.slow
def test_an_open_searcher_goes_through_50_compactions_right_and_in_flat_memory(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    size = 20_000
    present = list(range(size))
    made.put([str(n) for n in present], rows_of(present))
    compact(made.folder, factory="HNSW16,SQ8")
    memory = []
    with Searcher.open(made.folder) as searcher:
        for turn in range(50):
            new = list(range(size + 200 * turn, size + 200 * turn + 200))
            gone, present = present[:200], [*present[200:], *new]
            made.put([str(n) for n in new], rows_of(new))
            made.store.delete([str(n) for n in gone])
            for number in (2, turn % 2):  # before and after this generation's compaction
                if number == turn % 2:
                    with run_process(made.folder) as process:
                        reply = json.loads(process.communicate()[0])
                    assert process.returncode == 0, reply
                probes = [present[0], present[-1], present[len(present) // 2]]
                for probe, row in zip(probes, rows_of(probes), strict=True):
                    found = searcher.search_embedding(row, SearchOptions(top_k=10))
                    assert (found.total, found.hits[0].id) == (size, str(probe))
                for row in rows_of(gone[:3]):
                    found = searcher.search_embedding(row, SearchOptions(top_k=10))
                    assert not {hit.id for hit in found.hits} & {str(n) for n in gone}
            assert searcher.info()["delta_count"] == 0
            memory.append(psutil.Process().memory_info().rss)
    size_bytes = compact(made.folder).summary()["index"]["size_bytes"]
    assert max(memory[40:]) - max(memory[5:15]) < 2 * size_bytes
