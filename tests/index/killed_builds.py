"""Kill a small build before every change it makes on disk, resume it, and compare the outcome.

Run by `test_build_killed.py` in a process of its own, because it forks: a fork per kill is a tenth
of the time of a new interpreter, and is safe here since this process starts no threads itself.

usage: killed_builds.py FOLDER MODE
Prints one JSON object: the changes that were killed before, and what went wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import WordEncoder

from lamina_index import build_blocks
from lamina_index.build import build_collection
from lamina_index.collection import verify_collection
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore

build_blocks.BLOCK_ROWS = 8

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}

OWN = re.compile(r"(INSERT INTO|DELETE FROM|UPDATE) [a-z]")
"""Statements of ours, other than those that the word index makes of them."""


def die_before_change(
    fatal: int, log: int | None = None, *, every_statement: bool = False
) -> Callable[[str], None]:
    """Kill this process with SIGKILL before its n-th change on disk; n = 0 only lists them.

    Of a transaction the commit is a change, or every statement that changes a row.

    Returns:
        What counts a change, for steps that are to count as one.
    """
    changes = 0

    def count(change: str) -> None:
        nonlocal changes
        changes += 1
        if changes == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        if log is not None:
            os.write(log, f"{change}\n".encode())

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES:
            count(f"{event} {arguments[:2]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT:
            count(f"open {arguments[0]}")

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = plain_connect(*arguments, **options)
        writing = False

        def trace(statement: str) -> None:
            nonlocal writing
            if writing and (statement == "COMMIT" or (every_statement and OWN.match(statement))):
                count(" ".join(statement.split()))
            writing = statement == "BEGIN IMMEDIATE" or (writing and statement != "COMMIT")

        connection.set_trace_callback(trace)
        return connection

    plain_connect, sqlite3.connect = sqlite3.connect, connect
    sys.addaudithook(hook)
    return count


def in_child(task: Any) -> int:
    """Run a task in a forked child; give its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            task()
        except BaseException:  # whatever it is, the child must not go on as a second parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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

    def killed() -> None:
        die_before_change(number)
        build(folder, mode)

    wrong: list[str] = []
    if (status := in_child(killed)) != -signal.SIGKILL:
        wrong.append(f"exit status {status}")
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
    log = os.open(base / "changes", os.O_WRONLY | os.O_CREAT)

    def undisturbed() -> None:
        die_before_change(0, log)
        build(whole, mode)

    assert in_child(undisturbed) == 0
    expected = outcome(whole)
    changes = (base / "changes").read_text().splitlines()
    wrong: list[str] = []
    for number, change in enumerate(changes, start=1):
        folder = fresh(base, f"kill-{number}", mode)
        wrong += kill_and_resume(number, change, folder, mode, expected)
        shutil.rmtree(folder)
    json.dump({"changes": changes, "wrong": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
