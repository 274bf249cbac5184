"""Writers beside each other, and beside builds: processes that never lose each other's rows."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lamina_index import build_blocks, collection
from lamina_index.build import BuildStatus, build_collection
from lamina_index.collection import (
    building_folder,
    publish_collection,
    replaced_folder,
    verify_collection,
    write_turn,
)
from lamina_index.collection_changes import create_collection, new_manifest, remove_collection
from lamina_index.encoder import Encoder
from lamina_index.errors import (
    CollectionBusyError,
    CollectionNotFoundError,
    EncoderMismatchError,
    LaminaError,
)
from lamina_index.manifest import Chunking, CollectionManifest
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from lamina_index.writer import CollectionWriter

WRITE = """
import sys
sys.path.insert(0, {helpers!r})
from word_encoder import WordEncoder
from lamina_index.writer import CollectionWriter
with CollectionWriter.open({folder!r}, WordEncoder()) as writer:
    for number in range({count}):
        name = f"{name}{{number}}"
        records = [
            {{"id": name, "text": name, "metadata": {{"by": {name!r}}}}},
            {{"id": "shared", "text": f"shared {{name}}"}},
            {{"id": f"gone{name}", "text": "gone"}},
        ]
        written = writer.upsert(records)
        assert (written.inserted + written.replaced, written.faults) == (3, ()), written
        assert writer.delete([f"gone{name}"]) == 1
"""


def record(document_id: str, text: str = "a text", **metadata: object) -> dict[str, object]:
    return {"id": document_id, "text": text, "metadata": metadata}


def ids(folder: Path) -> set[str]:
    with DocumentStore.open(folder, read_only=True) as store:
        return {document.id for document in store.documents()}


def corpus(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path: Path, word_encoder: Encoder) -> Path:
    create_collection(tmp_path / "c", new_manifest(word_encoder))
    return tmp_path / "c"


def writing_process(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    helpers = str(Path(__file__).parents[1] / "helpers")
    program = textwrap.dedent(WRITE).format(
        helpers=helpers, folder=str(folder), name=name, count=count
    )
    return subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)


def test_processes_that_write_at_once_lose_nothing_and_meet_no_lock(
    folder: Path, word_encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_blocks, "BLOCK_ROWS", 5)
    rows = [{"id": f"built{n}", "text": f"built {n}", "number": n} for n in range(60)]
    writers = [writing_process(folder, name, 40) for name in ("x", "y")]
    while not {"x0", "y0"} <= ids(folder):
        time.sleep(0.01)
    report = build_collection(
        [corpus(tmp_path / "rows.jsonl", rows)], folder, word_encoder, mode="append"
    )
    for writer in writers:
        _, told = writer.communicate()
        assert writer.returncode == 0, told
    assert report.rows_indexed == 60
    expected = {f"{name}{n}" for name in ("x", "y") for n in range(40)}
    assert ids(folder) == expected | {f"built{n}" for n in range(60)} | {"shared"}
    manifest = CollectionManifest.read(folder / "collection.json")
    assert manifest.fields == {"by": "string", "number": "number"}
    assert verify_collection(folder) == []


def test_an_append_holds_its_rows_to_types_that_writers_have_fixed_meanwhile(
    folder: Path, word_encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_blocks, "BLOCK_ROWS", 2)
    rows = [{"id": f"d{n}", "text": "text", **({"year": n} if n >= 2 else {})} for n in range(6)]
    wrote = []

    def write_once(status: object) -> None:
        if not wrote:
            with CollectionWriter.open(folder, word_encoder) as writer:
                wrote.append(writer.upsert([record("w", year="soon", extra=True)]))

    path = corpus(tmp_path / "rows.jsonl", rows)
    report = build_collection([path], folder, word_encoder, mode="append", on_progress=write_once)
    assert (report.rows_indexed, report.rows_rejected, report.documents) == (2, 4, 3)
    rejects = [json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rejects] == ["d2", "d3", "d4", "d5"]
    assert {row["reason"].split(";")[1] for row in rejects} == {" earlier rows made it a string"}
    manifest = CollectionManifest.read(folder / "collection.json")
    assert manifest.fields == {"year": "string", "extra": "boolean"}
    assert ids(folder) == {"w", "d0", "d1"}


def test_an_append_is_complete_although_others_write_while_its_index_is_made(
    folder: Path, word_encoder: Encoder, tmp_path: Path
) -> None:
    rows = [{"id": f"d{n}", "text": f"text {n}"} for n in range(6)]
    path = corpus(tmp_path / "rows.jsonl", rows)

    def write(status: BuildStatus) -> None:
        if status.stage == "index":
            with CollectionWriter.open(folder, word_encoder) as writer:
                writer.upsert([record("new"), record("newer"), record("d1", "again")])
                writer.delete(["d5"])

    report = build_collection([path], folder, word_encoder, mode="append", on_progress=write)
    assert report.documents == 6
    with Searcher.open(folder, word_encoder) as searcher:
        hits = searcher.search("text").hits
        assert {hit.id for hit in hits} == {"new", "newer", "d0", "d1", "d2", "d3", "d4"}
        assert "again" in {hit.text for hit in hits}


def test_a_write_that_was_acknowledged_is_in_the_collection_that_lay_there_then(
    folder: Path, word_encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced_ids: set[str] = set()
    plain_drop = collection.drop_replaced

    def drop(target: Path) -> None:
        if replaced_folder(target).is_dir():
            replaced_ids.update(ids(replaced_folder(target)))
        plain_drop(target)

    monkeypatch.setattr(collection, "drop_replaced", drop)
    acknowledged: list[str] = []
    after_last: list[str] = []
    done = threading.Event()
    errors: list[BaseException] = []

    def write(name: str) -> None:
        number = 0
        try:
            with CollectionWriter.open(folder, word_encoder) as writer:
                while not done.is_set():
                    writer.upsert([record(f"{name}{number}")])
                    acknowledged.append(f"{name}{number}")
                    number += 1
                writer.upsert([record(f"{name}last")])
                after_last.append(f"{name}last")
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for number in range(4):
        path = corpus(tmp_path / f"{number}.jsonl", [{"id": f"r{number}", "text": "text"}])
        build_collection([path], folder, word_encoder, mode="replace")
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(after_last) == 3
    assert {*after_last, "r3"} <= ids(folder)
    assert set(acknowledged) <= replaced_ids | ids(folder)
    assert len(acknowledged) >= 3


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Have another thread's turn for the length of a block."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with write_turn(folder):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_who_waits_too_long_for_the_turn_is_told_and_nothing_is_stored(
    folder: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "_TURN_SECONDS", 0.05)
    with CollectionWriter.open(folder, word_encoder) as writer:
        ready = writer.prepare([record("a")])
        with held(folder):
            with pytest.raises(CollectionBusyError, match="try again"):
                writer.commit(ready)
            with pytest.raises(CollectionBusyError):
                remove_collection(folder)
        assert ids(folder) == set()
        assert writer.commit(ready).inserted == 1


def replace(folder: Path, encoder: Encoder, chunking: Chunking | None = None) -> None:
    new = building_folder(folder)
    create_collection(new, new_manifest(encoder, chunking=chunking))
    publish_collection(new, folder)


def test_what_was_prepared_for_a_collection_is_not_stored_in_another(
    folder: Path, word_encoder: Encoder
) -> None:
    with CollectionWriter.open(folder, word_encoder) as writer:
        ready = writer.prepare([record("a", "one two three four five")])
        replace(folder, word_encoder, Chunking(tokens=2, overlap=0))
        with pytest.raises(CollectionNotFoundError, match="has taken its place"):
            writer.commit(ready)
        assert writer.upsert([record("b", "one two three")]).inserted == 1
        assert ids(folder) == {"b#1", "b#2"}
        with pytest.raises(CollectionNotFoundError):
            writer.commit(ready)
        assert writer.delete(["b"]) == 1


def test_a_collection_that_is_removed_takes_no_write(folder: Path, word_encoder: Encoder) -> None:
    with CollectionWriter.open(folder, word_encoder) as writer:
        writer.upsert([record("a")])
        ready = writer.prepare([record("b")])
        remove_collection(folder)
        for call in (
            lambda: writer.commit(ready),
            lambda: writer.upsert([record("b")]),
            lambda: writer.delete(["a"]),
            lambda: writer.fields,
        ):
            with pytest.raises(CollectionNotFoundError):
                call()
        assert not folder.exists()
        create_collection(folder, new_manifest(word_encoder))
        assert writer.upsert([record("c")]).inserted == 1
    assert ids(folder) == {"c"}


def test_a_collection_of_another_encoder_takes_no_write(
    folder: Path, word_encoder: Encoder
) -> None:
    other = type("Other", (type(word_encoder),), {"fingerprint": "f" * 64})()
    with CollectionWriter.open(folder, word_encoder) as writer:
        replace(folder, other)
        with pytest.raises(EncoderMismatchError):
            writer.upsert([record("a")])
    assert ids(folder) == set()


def test_a_turn_ends_with_its_process(folder: Path, word_encoder: Encoder) -> None:
    program = (
        "import os, signal; from pathlib import Path; "
        "from lamina_index.collection import write_turn\n"
        f"with write_turn(Path({str(folder)!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    with CollectionWriter.open(folder, word_encoder) as writer:
        assert writer.upsert([record("a")]).inserted == 1


def test_a_turn_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CollectionNotFoundError), write_turn(tmp_path / "absent"):
        pass


def test_writes_go_on_while_a_build_or_a_compaction_has_the_collection(
    folder: Path, word_encoder: Encoder
) -> None:
    with (
        CollectionWriter.open(folder, word_encoder) as writer,
        collection.writer_lock(folder),
    ):
        assert writer.upsert([record("a")]).inserted == 1
        assert writer.delete(["a"]) == 1
        with pytest.raises(LaminaError):
            remove_collection(folder)
        with Searcher.open(folder) as searcher:
            assert searcher.count == 0
