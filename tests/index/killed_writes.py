"""Kill processes that write to a collection, before every step or at any moment, and look at it.

usage: killed_writes.py FOLDER upsert|replace|delete|filter|chunked
       killed_writes.py FOLDER random ROUNDS
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from killing import changes_of, in_child, kill_before, report
from lamina_index.collection import verify_collection, writer_lock
from lamina_index.collection_changes import create_collection, new_manifest
from lamina_index.errors import CollectionBusyError
from lamina_index.filters import parse_filter
from lamina_index.manifest import Chunking
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore
from lamina_index.writer import CollectionWriter
from word_encoder import WordEncoder

Rows = dict[str, tuple[str, Any]]
LONG = " ".join(f"w{number}" for number in range(9))


def record(document_id: str, text: str, **metadata: object) -> dict[str, object]:
    return {"id": document_id, "text": text, "metadata": metadata}


def stored(folder: Path) -> Rows:
    with DocumentStore.open(folder, read_only=True) as store:
        return {each.id: (each.text, each.metadata) for each in store.documents()}


def state(folder: Path) -> tuple[Rows, int]:
    """What is stored, and the generation of it, by which searches know that it has changed."""
    with DocumentStore.open(folder, read_only=True) as store:
        return stored(folder), store.version()


def compact(folder: Path) -> None:
    with DocumentStore.open(folder) as store, writer_lock(folder):
        write_snapshot(folder, store, threads=1)


def fresh(folder: Path, work: str) -> Path:
    """Make what the work starts from: some rows in a snapshot, some newer."""
    chunking = Chunking(tokens=4, overlap=0) if work == "chunked" else None
    folder.mkdir()
    create_collection(folder / "c", new_manifest(WordEncoder(), chunking=chunking))
    with CollectionWriter.open(folder / "c", WordEncoder()) as writer:
        writer.upsert([record(f"d{n}", f"text {n} {LONG}", year=n) for n in range(4)])
        compact(folder / "c")
        writer.upsert([record("d4", "text 4", year=4)])
    return folder


def do(folder: Path, work: str) -> None:
    """The work that is killed, and that must go well afterwards."""
    with CollectionWriter.open(folder / "c", WordEncoder()) as writer:
        if work == "upsert":
            writer.upsert([record("new", "a new text"), record("newer", "a newer text")])
        elif work in ("replace", "chunked"):
            writer.upsert([record("d1", "short", tag="t"), record("d4", f"long {LONG}", year=9)])
        elif work == "delete":
            writer.delete(["d0", "d4"])
        else:
            writer.delete_matching(parse_filter({"year": {"$gte": 3}}, writer.fields))


def kill(
    number: int, step: str, folder: Path, work: str, expected: list[tuple[Rows, int]]
) -> list[str]:
    """Kill the work before one step; list all that is wrong then and after doing it again."""

    def judge() -> None:
        with Searcher.open(folder / "c", WordEncoder()) as searcher:
            found = searcher.search("text", SearchOptions(top_k=100)).hits
        now = state(folder / "c")
        assert now in expected, "half of it is stored"
        assert {hit.id for hit in found} == set(now[0])
        assert verify_collection(folder / "c") == []
        do(folder, work)
        assert not list((folder / "c").glob(".collection.json.*"))
        assert stored(folder / "c") == expected[1][0], "doing it again does not end the same"
        assert verify_collection(folder / "c") == []

    wrong = kill_before(number, lambda _: do(folder, work), every_statement=True)
    if in_child(judge) != 0:
        wrong.append("see standard error")
    return [f"killed before step {number}, {step}: {line}" for line in wrong]


def every_step(base: Path, work: str) -> tuple[list[str], list[str]]:
    template = fresh(base / "template", work)
    before = state(template / "c")
    whole = base / "whole"
    shutil.copytree(template, whole)
    steps = changes_of(lambda _: do(whole, work), base / "steps", every_statement=True)
    after = state(whole / "c")
    assert before[0] != after[0]
    wrong: list[str] = []
    for number, step in enumerate(steps, start=1):
        folder = base / f"kill-{number}"
        shutil.copytree(template, folder)
        wrong += kill(number, step, folder, work, [before, after])
        shutil.rmtree(folder)
    return steps, wrong


class Worker:
    """A process that writes to its own ids and tells, line by line, what it begins and has done."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self._path = folder.parent / f"{name}-{seed}.log"
        self._log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._work(folder, name, random.Random(f"{name}{seed}"))
            finally:
                os._exit(1)

    def _work(self, folder: Path, name: str, chance: random.Random) -> None:
        with CollectionWriter.open(folder, WordEncoder()) as writer:
            while True:
                ids = [f"{name}{chance.randrange(8)}" for _ in range(chance.randrange(1, 5))]
                text = f"text {chance.random()}"
                kept = chance.random() < 0.7
                line = json.dumps({"ids": ids, "text": text if kept else None})
                os.write(self._log, f"{line}\n".encode())
                if kept:
                    writer.upsert([record(each, text) for each in ids])
                else:
                    writer.delete(ids)
                os.write(self._log, b"done\n")

    def wait(self, lines: int) -> None:
        """Wait until it has told so much."""
        while self._path.read_bytes().count(b"\n") < lines:
            time.sleep(0.001)

    def kill(self) -> list[str]:
        """End it; gives what it told."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._log)
        return self._path.read_text().splitlines()


def states(rows: dict[str, str], lines: list[str]) -> list[dict[str, str]]:
    """What may be stored after a worker's lines: as acknowledged, or with what it had begun."""
    found = [dict(rows)]
    for position in range(0, len(lines), 2):
        step = json.loads(lines[position])
        found = [dict(found[-1])]
        following = {each: text for each, text in found[0].items() if each not in step["ids"]}
        if step["text"] is not None:
            following.update(dict.fromkeys(step["ids"], step["text"]))
        if lines[position + 1 : position + 2]:
            found = [following]
        else:
            found.append(following)
    return found


def at_random(base: Path, rounds: int) -> tuple[list[str], list[str]]:
    folder = base / "c"
    create_collection(folder, new_manifest(WordEncoder()))
    chance = random.Random(7)
    wrong: list[str] = []
    rows: dict[str, str] = {}
    done = 0
    for number in range(rounds):
        workers = {name: Worker(folder, name, number) for name in "ab"}
        compacting = os.fork() if number % 3 == 0 else 0
        if number % 3 == 0 and compacting == 0:
            try:
                while True:
                    compact(folder)
            except CollectionBusyError:
                os._exit(1)
            finally:
                os._exit(0)
        for worker in workers.values():
            worker.wait(chance.randrange(1, 10))
        time.sleep(chance.uniform(0.0, 0.03))
        if compacting:
            os.kill(compacting, signal.SIGKILL)
            os.waitpid(compacting, 0)
        told = {name: worker.kill() for name, worker in workers.items()}
        kept = {each: text for each, (text, _) in stored(folder).items()}
        for name, lines in told.items():
            done += sum(line == "done" for line in lines)
            mine = {each: text for each, text in kept.items() if each.startswith(name)}
            own = {each: text for each, text in rows.items() if each.startswith(name)}
            if mine not in states(own, lines):
                wrong.append(f"round {number}, {name}: {mine}, told {lines[-4:]}")
        rows = kept
        if damage := verify_collection(folder):
            wrong.append(f"round {number}: {damage}")
    return [str(done)], wrong


def main() -> None:
    base, work = Path(sys.argv[1]), sys.argv[2]
    report(*(at_random(base, int(sys.argv[3])) if work == "random" else every_step(base, work)))


if __name__ == "__main__":
    main()
