"""Kill an archive, a restore, or the making or removing of a collection before each change on disk.

usage: killed_archives.py FOLDER archive|restore|create|remove
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from killing import changes_of, in_child, kill_before, report
from lamina_index.archive import write_archive
from lamina_index.archive_format import check_archive
from lamina_index.archive_restore import restore_archive
from lamina_index.build import build_collection
from lamina_index.collection import replaced_folder, verify_collection
from lamina_index.collection_changes import (
    create_collection,
    drop_removed,
    new_manifest,
    remove_collection,
)
from lamina_index.searcher import Searcher
from word_encoder import WordEncoder


def fresh(folder: Path, work: str) -> Path:
    """Make what the work starts from."""
    folder.mkdir()
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"text {number}\n" for number in range(20)))
    if work in ("archive", "remove"):
        build_collection([corpus], folder / "c", WordEncoder())
    if work == "remove":  # a replacement that was killed after its renames
        shutil.copytree(folder / "c", replaced_folder(folder / "c"))
    if work == "restore":
        build_collection([corpus], folder / "source", WordEncoder())
        write_archive(folder / "source", folder / "c.tar")
    return folder


def do(folder: Path, work: str) -> None:
    """The work that is killed, and that must go well afterwards."""
    if work == "archive":
        write_archive(folder / "c", folder / "c.tar")
    elif work == "restore":
        restore_archive(folder / "c.tar", folder / "c")
    elif work == "create":
        create_collection(folder / "c", new_manifest(WordEncoder()))
    else:
        remove_collection(folder / "c")
        drop_removed(folder)


def state(folder: Path, work: str) -> str:
    """`before`, `after`, or what is wrong."""
    if work == "archive":
        if verify_collection(folder / "c"):
            return "the collection was damaged"
        if not (folder / "c.tar").exists():
            return "before"
        check_archive(folder / "c.tar", lambda: None)
        return "after"
    if work == "restore":
        check_archive(folder / "c.tar", lambda: None)
    exists = (folder / "c").exists()
    if exists and verify_collection(folder / "c"):
        return "the collection is there, but not whole"
    if exists:
        with Searcher.open(folder / "c", WordEncoder()) as searcher:
            if len(searcher.search("text 3").hits) != (0 if work == "create" else 10):
                return "the collection does not answer as it should"
    return "after" if exists == (work != "remove") else "before"


def kill(number: int, change: str, folder: Path, work: str) -> list[str]:
    """Kill the work before one change; list all that is wrong then and after doing it again."""

    def judge() -> None:
        found = state(folder, work)
        if found == "before":
            do(folder, work)
            found = state(folder, work)
        elif work == "remove":
            drop_removed(folder)
        elif work == "archive":  # what was left goes with the next one
            write_archive(folder / "c", folder / "another.tar")
        assert found == "after", found

    wrong = kill_before(number, lambda _: do(folder, work))
    if in_child(judge) != 0:
        wrong.append("see standard error")
    left = {path.name for path in folder.iterdir() if path.name.startswith(".")}
    if left and work in ("archive", "remove"):
        wrong.append(f"left behind: {left}")
    return [f"killed before change {number}, {change}: {line}" for line in wrong]


def main() -> None:
    base, work = Path(sys.argv[1]), sys.argv[2]
    whole = fresh(base / "whole", work)
    changes = changes_of(lambda _: do(whole, work), base / "changes")
    assert state(whole, work) == "after"
    wrong: list[str] = []
    for number, change in enumerate(changes, start=1):
        folder = fresh(base / f"kill-{number}", work)
        wrong += kill(number, change, folder, work)
        shutil.rmtree(folder)
    report(changes, wrong)


if __name__ == "__main__":
    main()
