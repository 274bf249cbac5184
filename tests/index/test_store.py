"""The store against plain dictionaries, processes that are killed, full disks and flipped bits."""

from __future__ import annotations

import gc
import math
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vectors
from lamina_index.corpus import Document
from lamina_index.errors import (
    CollectionBusyError,
    CollectionExistsError,
    CollectionNotFoundError,
    DamagedError,
    FormatError,
    StorageFullError,
)
from lamina_index.store import STORE_FILE, DocumentStore

D = 8
unit = partial(vectors.unit, dimension=D)


def documents(*ids: str, text: str = "text of {}") -> list[Document]:
    return [Document(each, text.format(each), {}) for each in ids]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DocumentStore]:
    with DocumentStore.create(tmp_path, dimension=D) as made:
        yield made


def test_what_is_stored_comes_back_exactly(store: DocumentStore) -> None:
    metadata: dict[str, Any] = {"n": 0.1, "big": 2**53 + 1, "yes": True, "tags": ["é", "😀"]}
    embedding = unit(1)
    store.upsert([Document("ключ", "tab\tnew\nline \ufffd 😀", metadata)], embedding)
    found = store.get("ключ")
    assert found is not None
    assert (found.id, found.text, found.metadata) == ("ключ", "tab\tnew\nline \ufffd 😀", metadata)
    assert store.vectors([found.key]).tobytes() == embedding.tobytes()
    assert store.get("none") is None


def test_the_same_id_again_replaces_and_buries_the_old_key(store: DocumentStore) -> None:
    store.upsert(documents("a", "b"), unit(2))
    done = store.upsert(documents("a", "c", text="new {}"), unit(2, seed=1))
    assert (done.inserted, done.replaced) == (1, 1)
    assert store.count() == 3
    assert [row.text for row in store.documents()] == ["text of b", "new a", "new c"]
    assert store.tombstones() == [1]


def test_the_last_of_equal_ids_in_one_call_counts(store: DocumentStore) -> None:
    twice = [Document("a", "first", {}), Document("b", "b", {}), Document("a", "last", {})]
    rows = unit(3)
    done = store.upsert(twice, rows)
    assert (done.inserted, done.replaced) == (2, 0)
    found = store.get("a")
    assert found is not None
    assert found.text == "last"
    assert np.array_equal(store.vectors([found.key])[0], rows[2])


def test_keys_are_never_used_again(store: DocumentStore) -> None:
    seen: list[int] = []
    for turn in range(5):
        store.upsert(documents("x", "y", f"z{turn}"), unit(3))
        seen += [row.key for row in store.documents() if row.id in ("x", "y")]
        assert store.delete(["x", "y", "absent", "x"]) == 2
    assert len(set(seen)) == len(seen) == 10
    assert store.last_key() == 15


def test_every_write_is_one_generation_and_a_refused_one_is_none(store: DocumentStore) -> None:
    before = store.version()
    store.upsert(documents("a"), unit(1))
    store.delete(["a"])
    store.set_meta("x", 1)
    assert store.version() == before + 3
    with pytest.raises(ValueError, match="dimension 7"):
        store.upsert(documents("a"), unit(1, dimension=7))
    assert store.version() == before + 3


def test_progress_is_stored_with_the_rows_or_not_at_all(store: DocumentStore) -> None:
    store.upsert(documents("a"), unit(1), progress={"rows": 1})
    with pytest.raises(ValueError, match="2 embeddings for 1"):
        store.upsert(documents("b"), unit(2), progress={"rows": 2})
    assert store.get_meta("progress") == {"rows": 1}
    assert store.get_meta("nothing") is None


def test_scan_gives_every_row_once_in_key_order(store: DocumentStore) -> None:
    rows = unit(25)
    store.upsert(documents(*(f"d{i}" for i in range(25))), rows)
    store.delete(["d3"])
    batches = list(store.scan(after_key=2, until_key=20, batch=7))
    assert [len(keys) for keys, _ in batches] == [7, 7, 3]
    keys = np.concatenate([keys for keys, _ in batches])
    assert keys.tolist() == [3, *range(5, 21)]
    assert np.array_equal(np.concatenate([part for _, part in batches]), rows[keys - 1])


def test_many_keys_are_fetched_at_once(store: DocumentStore) -> None:
    count = 2500
    store.upsert(documents(*map(str, range(count))), unit(count))
    assert len(store.by_keys(range(1, count + 100))) == count
    assert store.vectors([7, 3, 7]).shape == (3, D)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.float32])
def test_any_float_type_and_memory_order_is_converted(store: DocumentStore, dtype: type) -> None:
    rows = unit(4)
    for name, given in {
        "fortran": np.asfortranarray(rows.astype(dtype)),
        "strided": np.repeat(rows, 2, axis=1)[:, ::2].astype(dtype),
        "reversed": rows[::-1][::-1].astype(dtype),
    }.items():
        store.upsert(documents(*(f"{name}{i}" for i in range(4))), given)
        first = store.get(f"{name}0")
        assert first is not None
        tolerance = 1e-3 if dtype is np.float16 else 1e-7
        assert np.allclose(store.vectors([first.key])[0], rows[0], atol=tolerance)
    assert store.verify() == []


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (np.full((1, D), np.nan, np.float32), "embedding 0 is not finite"),
        (np.array([[np.inf] + [0.0] * (D - 1)]), "embedding 0 is not finite"),
        (np.zeros((1, D), np.float32), "length 0"),
        (2 * unit(1), "length 2"),
        (unit(1, dimension=D + 1), f"dimension {D + 1}, expected {D}"),
        (np.empty((1, 0), np.float32), r"shape \(1, 0\)"),
        (unit(1)[0], r"shape \(8,\)"),
        (np.ones((1, D), np.int64), "type int64"),
        (np.array([["a"] * D]), "expected floating point"),
    ],
)
def test_vectors_that_cannot_be_searched_are_refused(
    store: DocumentStore, embeddings: NDArray[Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.upsert(documents("a"), embeddings)
    assert store.count() == 0


def test_one_bad_vector_among_good_ones_stores_none(store: DocumentStore) -> None:
    rows = unit(101)
    rows[100] = np.nan
    with pytest.raises(ValueError, match="embedding 100 is not finite"):
        store.upsert(documents(*map(str, range(101))), rows)
    assert store.count() == 0


@pytest.mark.parametrize("document_id", ["", "x" * 513, "é" * 257, "lone \ud83d", 1, None])
def test_ids_that_cannot_be_kept_are_refused(store: DocumentStore, document_id: Any) -> None:
    with pytest.raises(ValueError, match=r"id|surrogates"):
        store.upsert([Document(document_id, "text", {})], unit(1))
    assert store.count() == 0


def test_metadata_that_json_cannot_hold_is_refused(store: DocumentStore) -> None:
    with pytest.raises(ValueError, match="metadata of document 'a'"):
        store.upsert([Document("a", "text", {"n": 2**70})], unit(1))


def test_a_reading_sees_one_commit(store: DocumentStore) -> None:
    store.upsert(documents("a"), unit(1))
    with store.reading() as reading:
        before = reading.generation()
        store.upsert(documents("b"), unit(1))
        assert reading.get("b") is None
        assert reading.generation() == before
    assert store.get("b") is not None


def test_no_read_is_left_open_to_hold_up_the_log(store: DocumentStore, tmp_path: Path) -> None:
    store.upsert(documents(*map(str, range(100))), unit(100))
    store.get("1")
    next(iter(store.documents(batch=10)))
    next(iter(store.scan(batch=10)))
    with sqlite3.connect(tmp_path / STORE_FILE) as other:
        busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
    other.close()
    assert busy == 0


def test_threads_read_while_one_writes(store: DocumentStore) -> None:
    store.upsert(documents("a"), unit(1))
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            with store.reading() as reading:
                if reading.count() != reading.vector_count() or reading.get("a") is None:
                    wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        store.upsert(documents("a", f"b{turn}", text=f"{turn} {{}}"), unit(2))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.count() == 61


def test_a_second_writer_gets_a_plain_message(
    store: DocumentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.store_file._BUSY_TIMEOUT_SECONDS", 0.05)
    other = sqlite3.connect(tmp_path / STORE_FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CollectionBusyError, match="another process is writing"):
        store.upsert(documents("a"), unit(1))
    other.execute("ROLLBACK")
    other.close()
    assert store.upsert(documents("a"), unit(1)).inserted == 1


def test_create_refuses_what_is_there_and_open_what_is_not(tmp_path: Path) -> None:
    DocumentStore.create(tmp_path, dimension=D).close()
    with pytest.raises(CollectionExistsError):
        DocumentStore.create(tmp_path, dimension=D)
    with pytest.raises(CollectionNotFoundError, match="no such"):
        DocumentStore.open(tmp_path / "absent")
    with pytest.raises(ValueError, match="positive"):
        DocumentStore.create(tmp_path / "absent", dimension=0)


def test_another_database_or_a_newer_format_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / STORE_FILE) as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(FormatError, match="not one of Lamina's"):
        DocumentStore.open(tmp_path)
    (tmp_path / STORE_FILE).unlink()
    DocumentStore.create(tmp_path, dimension=D).close()
    with sqlite3.connect(tmp_path / STORE_FILE) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FormatError, match="store format 99, expected 2"):
        DocumentStore.open(tmp_path)


def test_a_closed_or_read_only_store_says_so(store: DocumentStore, tmp_path: Path) -> None:
    with (
        DocumentStore.open(tmp_path, read_only=True) as reader,
        pytest.raises(ValueError, match="read-only"),
    ):
        reader.set_meta("x", 1)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.get("a")


# Damage


def closed_store(folder: Path, count: int = 200) -> Path:
    with DocumentStore.create(folder, dimension=D) as store:
        store.upsert(documents(*(f"d{i}" for i in range(count))), unit(count))
    assert not (folder / f"{STORE_FILE}-wal").exists()
    return folder / STORE_FILE


def test_a_connection_given_back_while_the_store_closes_is_closed(tmp_path: Path) -> None:
    with DocumentStore.create(tmp_path, dimension=D) as store:

        class Late(deque[sqlite3.Connection]):
            def append(self, connection: sqlite3.Connection) -> None:
                store.close()
                super().append(connection)

        connections = store._connections
        connections._idle = Late(connections._idle)
        store.count()
        assert not connections._idle


def test_the_log_stays_short_while_searches_overlap_without_end(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 1 << 20
    monkeypatch.setattr("lamina_index.store_connections.LOG_BYTES_KEPT", bound)
    store._connections._log_bound = bound
    stop = threading.Event()

    def read() -> None:
        with ExitStack() as last:
            while not stop.wait(0.002):
                with ExitStack() as following:
                    following.enter_context(store.reading()).generation()
                    last.close()  # never a moment in which nobody reads
                    last.enter_context(following.pop_all())

    reader = threading.Thread(target=read)
    reader.start()
    log = store.path.with_name(f"{STORE_FILE}-wal")
    longest = 0
    try:
        for turn in range(80):
            ids = [f"{turn}-{number}" for number in range(50)]
            store.upsert(documents(*ids, text="x" * 2000), unit(50))  # 100 kB
            longest = max(longest, log.stat().st_size)
    finally:
        stop.set()
        reader.join()
    assert longest < 3 * bound


def test_a_long_read_does_not_hold_up_writes_and_the_log_is_emptied_after_it(
    store: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.store_connections.LOG_BYTES_KEPT", 50_000)
    monkeypatch.setattr("lamina_index.store_connections._LOG_WAIT_MILLISECONDS", 1)
    store._connections._log_bound = 50_000
    log = store.path.with_name(f"{STORE_FILE}-wal")
    with store.reading() as reading:
        before = reading.generation()
        for turn in range(5):
            store.upsert(documents(f"a{turn}", text="x" * 40_000), unit(1))
        assert reading.generation() == before
    assert store.count() == 5
    for turn in range(3):
        store.upsert(documents(f"b{turn}", text="x" * 40_000), unit(1))
    assert log.stat().st_size < 200_000


def test_opening_a_store_again_leaves_the_locks_of_the_one_that_is_open(tmp_path: Path) -> None:
    """The system drops all of a process's locks on a file when the process closes it once.

    Without them, whoever closes the store last in another process believes to be alone, and
    removes the log under those who still use it.
    """
    write = """
import sys
from pathlib import Path
from lamina_index.store import DocumentStore
with DocumentStore.open(Path(sys.argv[1])) as store:
    store.set_meta("told", sys.argv[2])
"""
    with DocumentStore.create(tmp_path, dimension=4) as store:
        for word in ("first", "second"):
            DocumentStore.open(tmp_path).close()
            DocumentStore.open(tmp_path, read_only=True).close()
            subprocess.run([sys.executable, "-c", write, tmp_path, word], check=True)
            assert store.get_meta("told") == word
            assert (tmp_path / f"{STORE_FILE}-wal").exists()
            store.set_meta("told", "by us")
            assert store.get_meta("told") == "by us"


def test_a_missing_cut_or_emptied_file_is_named_with_a_remedy(tmp_path: Path) -> None:
    path = closed_store(tmp_path)
    whole = path.read_bytes()
    for size in [0, 1, 50, 99, 100, 4096, 8192, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError, match=r"documents\.sqlite.*build it again"):
            DocumentStore.open(tmp_path)
    path.unlink()
    with pytest.raises(DamagedError, match="missing"):
        DocumentStore.open(tmp_path)


def test_a_file_that_cannot_be_read_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / STORE_FILE).symlink_to("/proc/self/mem")  # opens, and cannot be read at 0
    with pytest.raises(DamagedError, match=rf"{STORE_FILE}: .* from a backup"):
        DocumentStore.open(tmp_path)


@pytest.mark.parametrize("name", ["dimension", "generation", "identity"])
@pytest.mark.parametrize("change", ["UPDATE meta SET value = '{8'", "DELETE FROM meta"])
def test_a_named_value_that_is_not_as_written_is_named_with_a_remedy(
    tmp_path: Path, name: str, change: str
) -> None:
    DocumentStore.create(tmp_path, dimension=4).close()
    with closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection, connection:
        connection.execute(f"{change} WHERE name = ?", (name,))
    with pytest.raises(DamagedError, match=rf"{STORE_FILE}: the value '{name}' is .* backup"):
        DocumentStore.open(tmp_path).version()


def test_flipped_bits_are_found_by_verify_and_never_returned(tmp_path: Path) -> None:
    path = closed_store(tmp_path)
    whole = path.read_bytes()
    expected = {f"d{i}": f"text of d{i}" for i in range(200)}
    random = np.random.default_rng(3)
    silent = 0
    for position in random.integers(0, len(whole), 60).tolist():
        broken = bytearray(whole)
        broken[position] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(broken))
        try:
            with DocumentStore.open(tmp_path, read_only=True) as store:
                found = store.verify()
                rows = {row.id: row.text for row in store.documents()}
                assert rows == expected or found
                silent += not found
        except (DamagedError, FormatError):
            pass
        for leftover in tmp_path.glob(f"{STORE_FILE}-*"):
            leftover.unlink()
    assert silent < 60  # many flips fall into unused parts of pages, which hold nothing


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE documents SET text = 'other' WHERE key = 5",
        "UPDATE documents SET id = 'other' WHERE key = 5",
        "UPDATE documents SET key = 999 WHERE key = 5",
        "UPDATE vectors SET embedding = zeroblob(32) WHERE key = 5",
        "DELETE FROM vectors WHERE key = 5",
        "DELETE FROM documents WHERE key = 5",
    ],
)
def test_rows_that_are_not_as_written_are_found(tmp_path: Path, statement: str) -> None:
    path = closed_store(tmp_path)
    with sqlite3.connect(path) as other:
        other.execute(statement)
    other.close()
    with DocumentStore.open(tmp_path) as store:
        assert store.verify()


def test_a_reading_that_damage_ended_lets_go_of_the_store(tmp_path: Path) -> None:
    path = closed_store(tmp_path)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE documents SET text = 'other' WHERE key = 5")
    with DocumentStore.open(tmp_path, read_only=True) as store:
        with pytest.raises(DamagedError) as caught:
            list(store.documents())
        assert caught.value.__traceback__ is not None  # which keeps what was being read
    del caught
    gc.collect()  # what a closed store makes fail here, pytest reports as an error of this test


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_a_vector_that_no_search_can_use_is_found(tmp_path: Path, value: float) -> None:
    path = closed_store(tmp_path)
    blob = np.full(D, value, "<f4").tobytes()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(
            "UPDATE vectors SET embedding = ?, crc32 = ? WHERE key = 5", (blob, zlib.crc32(blob))
        )
    with DocumentStore.open(tmp_path) as store:
        assert store.verify() == [f"{path}: the vector of key 5 is not of length 1"]


def test_a_row_that_is_not_as_written_is_not_returned(tmp_path: Path) -> None:
    path = closed_store(tmp_path)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE documents SET text = 'wrong' WHERE id = 'd7'")
        blob = np.ones(D, "<f4").tobytes()
        other.execute("UPDATE vectors SET embedding = ? WHERE key = 9", (blob,))
    other.close()
    with DocumentStore.open(tmp_path) as store:
        with pytest.raises(DamagedError, match="document 'd7'"):
            store.get("d7")
        with pytest.raises(DamagedError, match="vector of key 9"):
            store.vectors([8, 9])
        assert zlib.crc32(blob) != 0  # the sum that was left in place belongs to the old vector


# Crashes


_WRITER = """
import sys
import numpy as np
from pathlib import Path
from lamina_index.corpus import Document
from lamina_index.store import DocumentStore
store = DocumentStore.open(Path(sys.argv[1]))
vector = np.eye(8, dtype=np.float32)
turn = store.count() // 8
while True:
    ids = [f"{turn}-{i}" for i in range(8)]
    store.upsert([Document(i, i, {}) for i in ids], vector, progress={"turn": turn})
    print(turn, flush=True)
    turn += 1
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    DocumentStore.create(tmp_path, dimension=D).close()
    for round_ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline() for _ in range(12 + 5 * round_)]
        time.sleep(0.003 * round_)
        writer.send_signal(signal.SIGKILL)
        acknowledged += writer.stdout.readlines()
        writer.wait()
        writer.stdout.close()
        last = int([line for line in acknowledged if line.endswith("\n")][-1])
        with DocumentStore.open(tmp_path) as store:
            stored = store.get_meta("progress")["turn"]
            assert stored >= last
            assert store.count() == 8 * (stored + 1)
            assert store.get(f"{last}-7") is not None
            assert store.verify() == []


def test_a_full_disk_is_a_plain_error_and_loses_nothing(small_disk: Path) -> None:
    store = DocumentStore.create(small_disk, dimension=D)
    stored = 0

    def fill() -> None:
        nonlocal stored
        for turn in range(10_000):
            ids = [f"{turn}-{i}" for i in range(50)]
            store.upsert(documents(*ids, text="x" * 200), unit(50))
            stored += 50

    with pytest.raises(StorageFullError, match="no space left"):
        fill()
    assert stored > 0
    assert store.count() == stored
    store.close()
    with DocumentStore.open(small_disk, read_only=True) as again:
        assert again.count() == stored
        assert again.verify() == []


def test_a_folder_that_cannot_be_written_can_be_read(
    tmp_path: Path, read_only: Callable[[Path], Path]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    closed_store(folder, 10)
    with DocumentStore.open(read_only(folder), read_only=True) as store:
        assert store.count() == 10
        assert math.isclose(float(np.linalg.norm(store.vectors([1])[0])), 1, abs_tol=1e-6)
