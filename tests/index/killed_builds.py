"""Kill a small build before every change it makes on disk, resume it, and compare the outcome.

usage: killed_builds.py FOLDER MODE
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from killing import changes_of, in_child, kill_before, report
from lamina_index import build_blocks
from lamina_index.build import build_collection
from lamina_index.collection import verify_collection
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from word_encoder import WordEncoder

build_blocks.BLOCK_ROWS = 8


def write_corpora(folder: Path) -> None:
    rows = [
        {"id": f"d{number % 37}", "text": f"text {number} of {number % 5}", "year": number}
        for number in range(40)
    ]
    rows[9]["text"] = " "
    rows[20]["text"] = " ".join(f"w{number}" for number in range(30))
    rows[30]["tag"] = "late"
    old = [{"id": f"d{number}", "text": f"older text {number}"} for number in range(5, 15)]
    for name, content in (("corpus", rows), ("old", old)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in content))


def build(folder: Path, mode: Any) -> None:
    build_collection([folder / "corpus.jsonl"], folder / "c", WordEncoder(), mode=mode, resume=True)


def fresh(base: Path, name: str, mode: str) -> Path:
    """Make a folder with the corpora and, unless the collection is to be new, an older one."""
    folder = base / name
    folder.mkdir(parents=True)
    write_corpora(folder)
    if mode != "new":
        build_collection([folder / "old.jsonl"], folder / "c", WordEncoder())
    return folder


def outcome(folder: Path) -> dict[str, Any]:
    """Everything that must be as in an undisturbed run."""
    digest = hashlib.sha256()
    with DocumentStore.open(folder / "c", read_only=True) as store:
        for document in store.documents():
            digest.update(repr(document).encode())
        for keys, embeddings in store.scan():
            digest.update(keys.tobytes() + embeddings.tobytes())
    with Searcher.open(folder / "c", WordEncoder()) as searcher:
        hits = [
            (hit.id, hit.score)
            for hit in searcher.search("text 31 of 1", SearchOptions(top_k=50)).hits
        ]
        info = searcher.info()
    return {
        "rows": digest.hexdigest(),
        "hits": hits,
        "fields": info["fields"],
        "delta": info["delta_count"],
        "damage": verify_collection(folder / "c"),
        "rejects": (folder / "c" / "rejects.jsonl").read_text().replace(str(folder), ""),
        "truncated": (folder / "c" / "truncated.jsonl").read_text(),
        "beside": sorted(path.name for path in folder.iterdir()),
        "inside": sorted(path.name for path in (folder / "c").iterdir()),
        "snapshots": len(list((folder / "c" / "snapshots").iterdir())),
    }


def search(folder: Path) -> None:
    """What was there before must open and answer after the kill, too."""
    with Searcher.open(folder / "c", WordEncoder()) as searcher:
        assert len(searcher.search("older text 12", SearchOptions(top_k=5)).hits) == 5


def kill_and_resume(
    number: int, change: str, folder: Path, mode: str, expected: dict[str, Any]
) -> list[str]:
    """Kill a build before one change, and list all that is wrong then and after resuming it."""
    wrong = kill_before(number, lambda _: build(folder, mode))
    if mode != "new" and in_child(lambda: search(folder)) != 0:
        wrong.append("what was there before does not answer")
    if in_child(lambda: build(folder, mode)) != 0:
        wrong.append("--resume failed")
    else:
        found = outcome(folder)
        wrong += [
            f"{key} is {found[key]}, expected {expected[key]}"
            for key in expected
            if found[key] != expected[key]
        ]
    return [f"killed before change {number}, {change}: {line}" for line in wrong]


def main() -> None:
    base, mode = Path(sys.argv[1]), sys.argv[2]
    whole = fresh(base, "whole", mode)
    changes = changes_of(lambda _: build(whole, mode), base / "changes")
    expected = outcome(whole)
    wrong: list[str] = []
    for number, change in enumerate(changes, start=1):
        folder = fresh(base, f"kill-{number}", mode)
        wrong += kill_and_resume(number, change, folder, mode, expected)
        shutil.rmtree(folder)
    report(changes, wrong)


if __name__ == "__main__":
    main()
