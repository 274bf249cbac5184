"""Kill a small compaction at each of its steps and before every change it makes on disk.

usage: killed_compactions.py FOLDER added|rebuilt
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from killing import Count, changes_of, in_child, kill_before, report
from lamina_index import snapshot
from lamina_index.build import build_collection
from lamina_index.collection import verify_collection
from lamina_index.compaction import compact
from lamina_index.corpus import Document
from lamina_index.recall import Measurement
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from lamina_index.vectors import VectorIndex
from word_encoder import WordEncoder

STEPS: dict[str, tuple[Any, str]] = {
    "copy": (VectorIndex, "copied"),
    "add": (VectorIndex, "add"),
    "write": (VectorIndex, "save"),
    "measure": (Measurement, "tune"),
    "prove": (snapshot, "prove"),
}


def at_each_step(tell: Count) -> None:
    """Have a function called as each step begins."""

    def wrapped(name: str, function: Any) -> Any:
        def step(*arguments: Any, **options: Any) -> Any:
            tell(f"step {name}")
            return function(*arguments, **options)

        return staticmethod(step) if name == "copy" else step

    for name, (owner, attribute) in STEPS.items():
        setattr(owner, attribute, wrapped(name, getattr(owner, attribute)))


def texts(numbers: range) -> list[str]:
    return [f"text {number} of {number % 7}" for number in numbers]


def fresh(folder: Path) -> None:
    """Make a collection with a graph, and with rows written and deleted since."""

    def make() -> None:
        encoder = WordEncoder()
        folder.mkdir()
        corpus = folder / "corpus.txt"
        corpus.write_text("".join(f"{text}\n" for text in texts(range(60))))
        build_collection([corpus], folder / "c", encoder, factory="HNSW8,SQ8", threads=1)
        with DocumentStore.open(folder / "c") as store:
            new = texts(range(60, 75))
            store.upsert(
                [Document(f"n{number}", text, {}) for number, text in enumerate(new)],
                encoder.encode(new, role="document").embeddings,
            )
            ids = [document.id for document in store.documents()]
            store.delete(ids[4:8])

    assert in_child(make) == 0


def work(folder: Path, mode: str, tell: Count) -> None:
    """The compaction, and the steps that are told beside its changes on disk."""
    at_each_step(tell)
    assert (compact(folder / "c", full=mode == "rebuilt", threads=1).added is None) == (
        mode == "rebuilt"
    )


def check(folder: Path) -> None:
    """The collection opens, is whole, and answers."""
    assert verify_collection(folder / "c") == []
    encoder = WordEncoder()
    with Searcher.open(folder / "c", encoder) as searcher:
        with DocumentStore.open(folder / "c", read_only=True) as store:
            rows = {document.id: document.key for document in store.documents()}
            stored = store.vectors(list(rows.values()))
        for query in texts(range(3, 75, 30)):
            found = searcher.search(query, SearchOptions(top_k=80)).hits
            assert len(found) == 71
            assert {hit.id for hit in found} == rows.keys()
            best = float(np.max(stored @ encoder.encode([query], role="query").embeddings[0]))
            assert abs(found[0].score - best) < 1e-5


def check_after_kill(folder: Path, mode: str) -> None:
    """All is right then, and a compaction afterwards ends well and leaves nothing behind."""
    check(folder)
    done = compact(folder / "c", full=mode == "rebuilt", threads=1)
    assert done.snapshot.count == 71
    check(folder)
    left = [path.name for path in (folder / "c" / "snapshots").iterdir()]
    assert left == [str(done.snapshot.number)]
    with DocumentStore.open(folder / "c", read_only=True) as store:
        assert store.tombstones() == []


def main() -> None:
    base, mode = Path(sys.argv[1]), sys.argv[2]
    original, whole = base / "original", base / "whole"
    fresh(original)
    shutil.copytree(original, whole)
    changes = changes_of(partial(work, whole, mode), base / "changes")
    assert in_child(partial(check, whole)) == 0
    wrong: list[str] = []
    for number, change in enumerate(changes, start=1):
        folder = base / "killed"
        shutil.copytree(original, folder)
        where = f"killed at {number}, {change}"
        wrong += [f"{where}: {line}" for line in kill_before(number, partial(work, folder, mode))]
        if in_child(partial(check_after_kill, folder, mode)) != 0:
            wrong.append(f"{where}: it does not answer rightly, or cannot be compacted again")
        shutil.rmtree(folder)
    report(changes, wrong)


if __name__ == "__main__":
    main()
