"""One step of `bench_sizing.py`, in a process of its own; prints one line of JSON.

python sizing_steps.py write COLLECTION WORK STOP     rows until there are STOP
python sizing_steps.py build COLLECTION FACTORY       a search index over all rows
python sizing_steps.py compact COLLECTION             the last index and the rows that came since
python sizing_steps.py serve COLLECTION WORK          open, search, weigh
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from grown_vectors import GrownVectors
from harness import rounded
from numpy.typing import NDArray

from lamina_index.collection import writer_lock
from lamina_index.compaction import compact
from lamina_index.corpus import Document
from lamina_index.exact import NearestSoFar
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore
from lamina_index.store_file import STORE_FILE

VECTORS_FILE = "vectors.npz"
TEXTS_FILE = "texts.txt"
QUERIES_FILE = "queries.npy"
QUERY_TEXTS_FILE = "queries.json"
NEAREST_FILE = "nearest.npy"

NEIGHBOURS = 10
COLD_QUERIES = 300
RECALL_QUERIES = 500
"""Of those that are asked after the cold ones."""

ROUNDING = 1e-6
"""How far a score may be off: a search by vector cuts the vector to length 1 once more."""

WORD_QUERIES = 200


class Stopwatch:
    """Adds up what blocks take: seconds, and those of the processor."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def __enter__(self) -> None:
        self._started, self._busy = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started
        self.cpu_seconds += time.process_time() - self._busy


def write(collection: Path, work: Path, stop: int) -> dict[str, float]:
    """Store rows, a block a transaction, and find the exact neighbours of some queries in passing.

    Only the transactions are timed, not the making of vectors.
    """
    vectors = GrownVectors.load(work / VECTORS_FILE)
    texts = (work / TEXTS_FILE).read_text("utf-8").splitlines()
    queries = recall_queries(np.load(work / QUERIES_FILE))
    nearest = NearestSoFar(queries, NEIGHBOURS)
    watch = Stopwatch()
    characters = 0
    store = DocumentStore.open(collection)
    start = row = store.count()
    for block in vectors.rows(start, stop):
        documents = [
            Document(f"d{number}", f"{texts[number % len(texts)]} {number // len(texts)}", {})
            for number in range(row, row + len(block))
        ]
        characters += sum(len(document.text) for document in documents)
        with watch:
            store.upsert(documents, block)
        nearest.add(np.arange(row, row + len(block)), block)
        row += len(block)
    with watch:
        store.close()  # the rest of SQLite's log goes into the file
    keep_nearest(work / NEAREST_FILE, nearest, len(queries))
    return {
        "rows": stop - start,
        "seconds": rounded(watch.seconds),
        "cpu_seconds": rounded(watch.cpu_seconds),
        "characters": characters,
        "store_bytes": (collection / STORE_FILE).stat().st_size,
    }


def build(collection: Path, factory: str) -> dict[str, Any]:
    """Build an index as `lamina index build` does after the last row."""
    marks: list[float] = []
    started = time.perf_counter()
    with DocumentStore.open(collection) as store, writer_lock(collection):
        snapshot = write_snapshot(
            collection,
            store,
            factory=factory,
            progress=lambda done, total: marks.append(time.perf_counter()),
        )
    ended = time.perf_counter()
    stages = {
        "training": marks[0] - started,
        "adding": marks[-1] - marks[0],
        "measuring and proving": ended - marks[-1],
    }
    return {
        "seconds": rounded(ended - started),
        "stages": {name: rounded(seconds) for name, seconds in stages.items()},
        **facts(snapshot.summary()),
    }


def facts(summary: dict[str, Any]) -> dict[str, Any]:
    """Take what is wanted of a snapshot's own description."""
    names = ("factory", "parameters", "recall@10", "rows", "size_bytes")
    return {name: summary[name] for name in names}


def compacted(collection: Path) -> dict[str, Any]:
    """Bring the index up to date as the service does."""
    done = compact(collection)
    return {
        "seconds": rounded(done.seconds),
        "added": done.added,
        "reason": done.reason,
        **facts(done.snapshot.summary()),
    }


def serve(collection: Path, work: Path) -> dict[str, Any]:
    """Search in one thread as the service does once a query is encoded.

    First with nothing of the collection in the system's cache; then, after the service's check has
    read the index once, with queries that are new; then with the same ones again, when all that
    they need has been read.
    """
    queries = np.load(work / QUERIES_FILE)
    cold, warm = divided(queries)
    forget(collection)
    found: dict[str, Any] = {"before": memory()}
    started = time.perf_counter()
    searcher = Searcher.open(collection)
    found["open_seconds"] = rounded(time.perf_counter() - started)
    found["opened"] = memory()
    found["cold"], _ = timed(searcher, cold)
    started = time.perf_counter()
    searcher.verify()
    found["verify_seconds"] = rounded(time.perf_counter() - started)
    found["new"], _ = timed(searcher, warm)
    found["again"], scores = timed(searcher, warm)
    found["searched"] = memory()
    found["recall@10"] = rounded(recall(scores, np.load(work / NEAREST_FILE)))
    started = time.perf_counter()
    Searcher.open(collection).close()
    found["open_again_seconds"] = rounded(time.perf_counter() - started)
    found["words"] = words(searcher, json.loads((work / QUERY_TEXTS_FILE).read_text("utf-8")))
    searcher.close()
    return found


def words(searcher: Searcher, texts: Sequence[str]) -> dict[str, Any]:
    """Search by words; the first search reads the length of every text."""
    options = SearchOptions(mode="lexical")
    before = memory()
    started = time.perf_counter()
    searcher.search(texts[0], options)
    first = time.perf_counter() - started
    milliseconds = []
    for text in texts[1 : 1 + WORD_QUERIES]:
        started = time.perf_counter()
        searcher.search(text, options)
        milliseconds.append(1000 * (time.perf_counter() - started))
    return {
        "first_seconds": rounded(first),
        "own_bytes": memory()["own_bytes"] - before["own_bytes"],
        **percentiles(milliseconds),
    }


def timed(
    searcher: Searcher, queries: NDArray[np.float32]
) -> tuple[dict[str, float], list[list[float]]]:
    """Search for each of (Q, D) and give the times in milliseconds, and the scores of the hits."""
    wall, cpu, scores = [], [], []
    for query in queries:
        started, busy = time.perf_counter(), time.thread_time()
        result = searcher.search_embedding(query)
        cpu.append(1000 * (time.thread_time() - busy))
        wall.append(1000 * (time.perf_counter() - started))
        scores.append([hit.score for hit in result.hits])
    return {**percentiles(wall), "cpu_p50_ms": percentiles(cpu)["p50_ms"]}, scores


def percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    points = np.percentile(milliseconds, (50, 95, 99)).tolist()
    return {f"p{at}_ms": rounded(value) for at, value in zip((50, 95, 99), points, strict=True)}


def recall(scores: Sequence[Sequence[float]], exact: NDArray[np.float32]) -> float:
    """Share of the exact ten (Q, 10) that searches found; any row as near as the tenth counts."""
    found = sum(
        min(sum(score >= best[-1] - ROUNDING for score in hits), NEIGHBOURS)
        for hits, best in zip(scores[: len(exact)], exact.tolist(), strict=True)
    )
    return found / (NEIGHBOURS * len(exact))


def divided(queries: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The queries for the cold searches, and the others."""
    first = min(COLD_QUERIES, len(queries) // 4)
    return queries[:first], queries[first:]


def recall_queries(queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Those whose exact neighbours are found."""
    return divided(queries)[1][:RECALL_QUERIES]


def keep_nearest(path: Path, nearest: NearestSoFar, count: int) -> None:
    """Join the best scores (Q, 10) of these rows with those of the rows before."""
    scores = np.array([nearest.result(query)[0][:NEIGHBOURS] for query in range(count)])
    if path.exists():
        scores = np.concatenate([np.load(path), scores], axis=1)
    np.save(path, -np.sort(-scores, axis=1)[:, :NEIGHBOURS])


def memory() -> dict[str, int]:
    """Bytes of this process in memory: its own, those of mapped files, and its share of all."""
    rollup = Path("/proc/self/smaps_rollup").read_text("utf-8")
    lines = [line.split() for line in rollup.splitlines()[1:]]
    held = {line[0]: int(line[1]) * 1024 for line in lines}
    return {
        "own_bytes": held["Anonymous:"],
        "mapped_bytes": held["Rss:"] - held["Anonymous:"],
        "pss_bytes": held["Pss:"],
    }


def forget(collection: Path) -> None:
    """Have the system drop the collection's files from its cache, as after a start of the machine.

    Before they are opened: closing a file that SQLite has open would drop its locks.
    """
    for path in (path for path in collection.rglob("*") if path.is_file()):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def main() -> None:
    step, collection, *rest = sys.argv[1:]
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "write": lambda: write(Path(collection), Path(rest[0]), int(rest[1])),
        "build": lambda: build(Path(collection), rest[0]),
        "compact": lambda: compacted(Path(collection)),
        "serve": lambda: serve(Path(collection), Path(rest[0])),
    }
    if step not in steps:
        raise SystemExit(__doc__)
    print(json.dumps(steps[step]()))


if __name__ == "__main__":
    main()
