"""Compaction: new rows added to the last index are found as if it had been built anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina_index import snapshot as snapshots
from lamina_index import snapshot_files
from lamina_index.collection import verify_collection, writer_lock
from lamina_index.compaction import Compaction, compact, needs_compaction
from lamina_index.corpus import Document
from lamina_index.errors import CollectionBusyError, CompactionError, StorageFullError
from lamina_index.exact import NearestSoFar
from lamina_index.field_columns import ColumnsBuilder, FieldColumns
from lamina_index.filters import parse_filter
from lamina_index.index_choice import EXACT_LIMIT
from lamina_index.manifest import (
    CollectionManifest,
    EncoderReference,
    FieldType,
    Metadata,
    SnapshotManifest,
)
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot_files import COLUMNS_FILE, DELETED_FILE, VECTORS_FILE, open_newest
from lamina_index.store import DocumentStore

MakeCollection = Callable[..., Any]
FIELDS: dict[str, FieldType] = {"year": "number", "kind": "string", "tags": "strings"}
DIMENSION = 32


def clustered(count: int, seed: int = 0, centres: int = 20) -> NDArray[np.float32]:
    """Unit vectors in clusters, as those of texts are."""
    middle = np.random.default_rng(5).standard_normal((centres, DIMENSION))
    random = np.random.default_rng(seed)
    rows = middle[random.integers(0, centres, count)]
    rows = rows + 0.6 * random.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def put(made: Any, numbers: range, seed: int = 0) -> None:
    """Store documents named by number."""
    made.put([str(number) for number in numbers], clustered(len(numbers), seed + numbers.start))


def hits(folder: Path, query: NDArray[np.float32], **options: Any) -> list[tuple[str, float]]:
    with Searcher.open(folder) as searcher:
        found = searcher.search_embedding(query, SearchOptions(**options)).hits
    return [(hit.id, hit.score) for hit in found]


def names(folder: Path) -> list[str]:
    """What lies among the snapshots."""
    return sorted(path.name for path in (folder / "snapshots").iterdir())


# What is added is found as if all had been built anew

_metadata = st.fixed_dictionaries(
    {},
    optional={
        "year": st.integers(-3, 3) | st.sampled_from([0.5, 2**53 + 1]),
        "kind": st.sampled_from(["", "a", "ab", "é", "z😀"]),
        "tags": st.lists(st.sampled_from("abc"), max_size=3),
    },
)
_steps = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 30), _metadata), max_size=12),  # written, by number
        st.lists(st.integers(0, 30), max_size=4),  # deleted
        st.booleans(),  # compacted then
    ),
    min_size=1,
    max_size=6,
)


def answers(folder: Path) -> list[Any]:
    """All that a few searches tell, with filters and facets."""
    asked = [None, {"year": {"$gt": 0}}, {"kind": {"$prefix": "a"}}, {"tags": {"$in": ["b"]}}]
    with Searcher.open(folder) as searcher:
        return [
            (
                [(hit.id, hit.score, hit.metadata) for hit in result.hits],
                result.total,
                result.facets,
            )
            for query in clustered(3, seed=9)
            for wanted in asked
            for result in [
                searcher.search_embedding(
                    query,
                    SearchOptions(
                        top_k=40,
                        filter=None if wanted is None else parse_filter(wanted, FIELDS),
                        facets=("year", "kind", "tags"),
                    ),
                )
            ]
        ]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_steps)
def test_an_exact_index_answers_as_one_that_was_built_anew(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "c"
        folder.mkdir()
        reference = EncoderReference(name="x", precision="fp32", fingerprint="f")
        manifest = CollectionManifest(
            encoder=reference, dimension=DIMENSION, text_version=1, fields=FIELDS, created="2026"
        )
        manifest.write(folder / "collection.json")
        version = 0
        with DocumentStore.create(folder, dimension=DIMENSION) as store:
            for written, deleted, compacted in steps:
                version += 1
                documents = [Document(str(number), "", row) for number, row in written]
                if documents:
                    store.upsert(documents, clustered(len(documents), seed=version))
                store.delete([str(number) for number in deleted])
                if compacted:
                    compact(folder, threads=1)
            compact(folder, threads=1)
        added = answers(folder)
        assert verify_collection(folder) == []
        assert compact(folder, full=True, threads=1).snapshot.manifest.deleted == 0
        assert answers(folder) == added


@pytest.mark.parametrize(
    "factory", ["HNSW32,SQ8", "IVF16,SQ8", "IVF8_HNSW8,PQ16x4fs,Refine(SQfp16)", "SQ8"]
)
def test_an_approximate_index_finds_what_was_added_and_nothing_that_was_deleted(
    make_collection: MakeCollection, factory: str
) -> None:
    made = make_collection()
    put(made, range(2000))
    made.snapshot(factory)
    rows = {str(n): row for n, row in enumerate(clustered(2000))}
    for turn in range(4):
        numbers = range(1900 + 300 * turn, 2300 + 300 * turn)  # a quarter of them replaced
        put(made, numbers, seed=1)
        gone = [str(number) for number in range(40 * turn, 40 * turn + 40)]
        made.store.delete(gone)
        rows |= dict(zip(map(str, numbers), clustered(400, 1 + numbers.start), strict=True))
        rows = {name: row for name, row in rows.items() if name not in gone}
        done = compact(made.folder, threads=2)
        assert (done.added, done.reason) == (400, "")
        assert done.snapshot.manifest.factory == factory
        assert done.snapshot.count == len(rows)
        assert done.snapshot.manifest.recall.at_10 >= 0.99
    reference = NearestSoFar(queries := clustered(100, seed=77), 10)
    reference.add(np.arange(len(rows)), np.stack(list(rows.values())))
    found = 0
    with Searcher.open(made.folder) as searcher:
        for place, query in enumerate(queries):
            served = searcher.search_embedding(query, SearchOptions(top_k=10)).hits
            assert {hit.id for hit in served} <= rows.keys()
            found += sum(hit.score >= reference.result(place)[0][9] - 1e-6 for hit in served)
    assert found / 1000 >= 0.985  # 0.99 with a margin for a hundred queries
    assert verify_collection(made.folder) == []


@given(rows=st.lists(st.none() | _metadata, max_size=12), more=st.lists(_metadata, max_size=12))
def test_columns_that_follow_each_other_are_those_of_all_rows(
    rows: list[Metadata | None], more: list[Metadata]
) -> None:
    def columns(rows: list[Any], fields: dict[str, FieldType]) -> FieldColumns:
        builder = ColumnsBuilder(fields)
        for row in rows:
            builder.add(row)
        return builder.columns()

    def content(columns: FieldColumns) -> Any:
        return {
            name: (
                column.type,
                {part: array.tolist() for part, array in column.values.arrays.items()},
                column.codes.tolist(),
                None if column.rows is None else column.rows.tolist(),
            )
            for name, column in columns.columns.items()
        }

    old = {"year": FIELDS["year"]}  # the others came later
    for fields in (FIELDS, old):
        early = [row and {name: row[name] for name in row if name in fields} for row in rows]
        joined = columns(early, fields).followed_by(columns(more, FIELDS))
        assert joined.count == len(rows) + len(more)
        assert content(joined) == content(columns([*early, *more], FIELDS))


# When it is built anew


def test_it_is_built_anew_once_a_third_is_deleted(make_collection: MakeCollection) -> None:
    made = make_collection()
    put(made, range(100))
    assert compact(made.folder).reason == "there is no index yet"
    made.store.delete([str(number) for number in range(30)])
    done = compact(made.folder)
    assert (done.added, done.snapshot.manifest.deleted) == (0, 30)
    assert made.store.tombstones() == []  # the snapshot knows them itself
    newest, _ = open_newest(made.folder)
    assert newest is not None
    assert newest.deleted.tolist() == list(range(30))
    made.store.delete(["30"])
    done = compact(made.folder)
    assert done.reason == "31 of 100 rows of the last index are deleted"
    assert (done.snapshot.count, done.snapshot.manifest.deleted) == (69, 0)


def test_more_rows_than_an_exact_index_is_good_for_get_a_graph(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    put(made, range(EXACT_LIMIT))
    assert made.snapshot().manifest.factory == "Flat"
    put(made, range(EXACT_LIMIT, EXACT_LIMIT + 1))
    done = compact(made.folder)
    assert (done.snapshot.manifest.factory, done.added) == ("HNSW32,SQ8", None)
    assert "a graph up to" in done.reason
    made.store.delete(["1", "2", "3"])
    assert compact(made.folder).snapshot.manifest.factory == "HNSW32,SQ8"  # it does not go back
    put(made, range(EXACT_LIMIT + 1, EXACT_LIMIT + 2))
    assert compact(made.folder).added == 1


def test_a_factory_that_was_asked_for_stays_and_another_is_built(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    put(made, range(50))
    assert made.snapshot("IVF100,SQ8").manifest.factory == "Flat"  # too few to train it
    put(made, range(50, 300))
    done = compact(made.folder)
    assert (done.snapshot.manifest.factory, done.added) == ("IVF100,SQ8", None)
    put(made, range(300, 310))
    assert compact(made.folder).added == 10
    done = compact(made.folder, factory="HNSW16,SQ8")
    assert (done.snapshot.manifest.factory, done.reason) == ("HNSW16,SQ8", "asked for")


def test_rows_that_an_index_was_not_trained_for_make_it_be_built_anew(
    make_collection: MakeCollection,
) -> None:
    """Eight bits cover the range of the rows that were there; what lies outside is cut."""
    made = make_collection()
    half = clustered(600)
    half[:, 16:] *= 0.001
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    made.put([f"a{number}" for number in range(600)], half)
    made.snapshot("HNSW32,SQ8")
    made.put([f"b{number}" for number in range(600)], half[:, ::-1].copy())
    done = compact(made.folder)
    assert "recall@10 fell to 0." in done.reason
    assert done.snapshot.manifest.recall.at_10 >= 0.99
    assert names(made.folder) == ["2"]


def test_an_index_below_the_aim_is_not_built_anew_each_time(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.recall.EFFORTS", {"efSearch": (16,)})
    monkeypatch.setattr("lamina_index.view._SPARE", 0)
    random = np.random.default_rng(3).standard_normal((3000, DIMENSION)).astype(np.float32)
    random /= np.linalg.norm(random, axis=1, keepdims=True)
    made = make_collection()
    made.put([str(number) for number in range(2900)], random[:2900])
    assert made.snapshot("HNSW4,SQ8").manifest.recall.at_10 < 0.97
    made.put([str(number) for number in range(2900, 3000)], random[2900:])
    assert compact(made.folder).added == 100


@pytest.mark.parametrize("seen_at_open", [False, True])
def test_a_damaged_index_is_not_added_to(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch, seen_at_open: bool
) -> None:
    def open_unchecked(folder: Path) -> Any:
        """As if the damage lay in the middle of a large file, where opening does not look."""
        with monkeypatch.context() as patch:
            patch.setattr(snapshot_files, "_check_file", lambda *_, **__: None)
            return open_newest(folder)

    made = make_collection()
    put(made, range(100))
    made.snapshot("SQ8")
    path = made.folder / "snapshots" / "1" / VECTORS_FILE
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    if not seen_at_open:
        monkeypatch.setattr("lamina_index.compaction.open_newest", open_unchecked)
    done = compact(made.folder)
    assert done.added is None
    assert "vectors.faiss: altered" in done.reason
    assert done.snapshot.manifest.factory == "SQ8"  # as was asked for
    assert verify_collection(made.folder) == []


def test_a_snapshot_of_format_2_is_read_and_added_to(make_collection: MakeCollection) -> None:
    made = make_collection()
    put(made, range(40))
    made.snapshot("SQ8")
    path = made.folder / "snapshots" / "1" / "snapshot.json"
    older = json.loads(path.read_text()) | {"format_version": 2}
    for name in ("deleted", "appended", "recall_floor"):
        del older[name]
    parsed = SnapshotManifest.model_validate(older)
    path.write_text(json.dumps(older | {"checksum": parsed.digest()}))
    put(made, range(40, 50))
    assert len(hits(made.folder, clustered(1)[0], top_k=100)) == 50
    assert compact(made.folder).added == 10


def test_the_clock_may_go_back(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_collection()
    put(made, range(10))
    made.snapshot()

    class Early(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Early:
            return cls(1970, 1, 1, tzinfo=tz)

    monkeypatch.setattr(snapshots, "datetime", Early)
    put(made, range(10, 20))
    with Searcher.open(made.folder) as searcher:
        assert searcher.info()["index"]["snapshot"] == 1
        assert compact(made.folder).snapshot.manifest.created.startswith("1970")
        info = searcher.info()
    assert (info["index"]["snapshot"], info["delta_count"]) == (2, 0)


# What is not right does not take over


FAULTS = {
    "bits": r"does not read back as it was written; .*vectors\.faiss: altered",
    "rows": "stored vectors do not find themselves",
    "keys": "1 are missing and 1 have no document",
}


def shuffled(working: Path) -> None:
    """Rows at each other's positions, as a fault in writing them might leave."""
    path = str(working / VECTORS_FILE)
    index = faiss.read_index(path)
    rows = index.reconstruct_n(0, index.ntotal)
    index.reset()
    index.add(rows[::-1].copy())
    faiss.write_index(index, path)


def flipped(working: Path) -> None:
    with (working / VECTORS_FILE).open("r+b") as stream:
        stream.seek(-9, 2)
        byte = stream.read(1)[0]
        stream.seek(-9, 2)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    ("fault", "told", "full"),
    [
        *((fault, told, full) for fault, told in FAULTS.items() for full in (False, True)),
        ("lost", "1 are missing and 0 have no document; .* --full` builds it anew", False),
    ],
)
def test_a_new_index_that_is_not_right_is_rolled_back(
    make_collection: MakeCollection,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    told: str,
    full: bool,
) -> None:
    made = make_collection()
    put(made, range(60))
    made.snapshot()
    made.store.delete(["3"])
    put(made, range(60, 70))
    expected = hits(made.folder, clustered(1)[0], top_k=100)
    write_columns, write_numbers = snapshots.write_columns, snapshots.write_numbers
    prove, last_key = snapshots.prove, made.store.last_key()

    def damaging_columns(path: Path, columns: Any) -> None:
        if fault == "rows":
            shuffled(path.parent)
        write_columns(path, columns)

    def damaging_numbers(path: Path, numbers: NDArray[np.int64]) -> None:
        if fault == "keys" and path.name == "keys.npy":
            numbers = np.where(numbers == 1, 0, numbers)
        write_numbers(path, numbers)

    def damaging_proof(working: Path, number: int, store: DocumentStore) -> None:
        if fault == "bits":
            flipped(working)
        prove(working, number, store)

    def short(store: DocumentStore, *rest: Any) -> Any:
        moment = of(store, *rest)
        return type(moment)(last_key, moment.last_tombstone, moment.keys, [*moment.buried, 9])

    of = snapshots._Moment.of
    monkeypatch.setattr(snapshots, "write_columns", damaging_columns)
    monkeypatch.setattr(snapshots, "write_numbers", damaging_numbers)
    monkeypatch.setattr(snapshots, "prove", damaging_proof)
    if fault == "lost":
        monkeypatch.setattr(snapshots._Moment, "of", short)
    with pytest.raises(CompactionError, match=told):
        compact(made.folder, full=full)
    assert names(made.folder) == ["1"]
    assert hits(made.folder, clustered(1)[0], top_k=100) == expected
    monkeypatch.undo()
    assert compact(made.folder, full=full).snapshot.number == 2
    assert hits(made.folder, clustered(1)[0], top_k=100) == expected


@pytest.mark.parametrize("room", [0, 100, 5000, 60_000, 138_000])
def test_a_full_disk_keeps_the_index_that_was_there(
    make_collection: MakeCollection, small_disk: Path, room: int
) -> None:
    made = make_collection()
    put(made, range(1000))
    (made.folder / "snapshots").symlink_to(small_disk)
    compact(made.folder)
    put(made, range(1000, 1100))
    made.store.delete(["5"])
    expected = hits(made.folder, clustered(1)[0], top_k=50)
    (small_disk / ".writing-1-left").mkdir()
    free = shutil.disk_usage(small_disk).free
    (small_disk / "filler").write_bytes(bytes(free - room // 4096 * 4096))
    with pytest.raises(StorageFullError, match="no space left"):
        compact(made.folder)
    assert names(made.folder) == ["1", "filler"]
    assert hits(made.folder, clustered(1)[0], top_k=50) == expected
    (small_disk / "filler").unlink()
    assert compact(made.folder).added == 100
    assert hits(made.folder, clustered(1)[0], top_k=50) == expected


def test_rows_deleted_and_written_while_it_runs_are_right_afterwards(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_collection()
    put(made, range(400))
    made.snapshot("HNSW32,SQ8")
    put(made, range(400, 500))
    scan, tune = DocumentStore.scan, snapshots.Measurement.tune
    turns = iter(range(1000))

    def write() -> None:
        turn = next(turns)
        made.store.delete([str(turn), str(499 - turn)])
        put(made, range(1000 + turn, 1001 + turn))

    def scanning(*arguments: Any, **options: Any) -> Any:
        for batch in scan(*arguments, **{**options, "batch": 100}):
            write()
            yield batch

    def tuning(*arguments: Any) -> Any:
        write()
        return tune(*arguments)

    monkeypatch.setattr(DocumentStore, "scan", scanning)
    monkeypatch.setattr(snapshots.Measurement, "tune", tuning)
    with Searcher.open(made.folder) as searcher:
        before = searcher.search_embedding(clustered(1)[0], SearchOptions(top_k=600)).total
        done = compact(made.folder)
        written = next(turns)
        assert written >= 5
        assert done.added is not None
        found = searcher.search_embedding(clustered(1)[0], SearchOptions(top_k=600))
    expected = {str(n) for n in range(written, 500 - written)}
    expected |= {str(1000 + n) for n in range(written)}
    assert before == 500
    assert {hit.id for hit in found.hits} == expected
    assert verify_collection(made.folder) == []


# Processes


def run_process(folder: Path, *options: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lamina_index.compaction_process", *options, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **more,
    )


def test_one_process_compacts_and_others_say_that_it_is_busy(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    put(made, range(500))
    with writer_lock(made.folder), pytest.raises(CollectionBusyError):
        compact(made.folder)
    processes = [run_process(made.folder) for _ in range(3)]
    replies = [json.loads(process.communicate()[0]) for process in processes]
    codes = [process.returncode for process in processes]
    assert 0 in codes
    assert set(codes) <= {0, 75}
    for code, reply in zip(codes, replies, strict=True):
        assert (
            (reply["documents"] == 500) if code == 0 else (reply["error"] == "CollectionBusyError")
        )
    assert verify_collection(made.folder) == []
    with writer_lock(made.folder):
        process = run_process(made.folder)
        assert json.loads(process.communicate()[0])["error"] == "CollectionBusyError"
        assert process.returncode == 75


def test_a_process_tells_what_went_wrong(make_collection: MakeCollection) -> None:
    made = make_collection()
    put(made, range(1))
    process = run_process(made.folder, "--factory=Flatt")
    assert json.loads(process.communicate()[0])["error"] == "IndexFactoryError"
    assert process.returncode == 1
    process = run_process(made.folder / "none")
    assert json.loads(process.communicate()[0])["error"] == "CollectionNotFoundError"


def test_a_process_ends_with_the_one_that_started_it(make_collection: MakeCollection) -> None:
    made = make_collection()
    put(made, range(20_000))
    process = run_process(made.folder, "--with-parent", "--factory=HNSW64,SQ8", "--threads=1")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 1  # before it could have built that
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    assert list((made.folder / "snapshots").glob("[0-9]*")) == []
    assert isinstance(compact(made.folder, factory="SQ8"), Compaction)


# When it is due


@pytest.mark.parametrize(
    ("delta", "deleted", "tombstones", "rows", "age", "told"),
    [
        (0, 0, 0, 0, 1e6, None),
        (499, 0, 0, 0, 1e6, None),
        (500, 0, 0, 0, 29, None),
        (500, 0, 0, 0, 31, "500 rows are newer than the index, for 31 seconds"),
        (500, 0, 0, 90_000, 31, None),
        (900, 0, 0, 90_000, 31, "900 rows are newer than the index, for 31 seconds"),
        (5000, 0, 0, 90_000, 0, "5000 rows are newer than the index"),
        (5000, 0, 0, 9_000_000, 0, "5000 rows are newer than the index"),
        (0, 27_000, 0, 90_000, 0, None),
        (0, 27_001, 0, 90_000, 0, "27001 of 90000 rows of the index are deleted"),
        (5, 0, 19_999, 90_000, 0, None),
        (5, 0, 20_000, 90_000, 0, "20000 rows were deleted or replaced since the index was made"),
        (5, 0, 20_000, 900_000, 0, None),
    ],
)
def test_it_is_due_by_size_by_age_and_by_deletions(
    delta: int, deleted: int, tombstones: int, rows: int, age: float, told: str | None
) -> None:
    index = {"rows": rows - min(rows, 1000), "deleted": min(rows, 1000)} if rows else None
    info = {
        "delta_count": delta,
        "deleted_count": deleted,
        "tombstone_count": tombstones,
        "damage": [],
        "index": index,
    }
    assert needs_compaction(info, age) == told
    damaged = needs_compaction({**info, "damage": ["keys.npy: cut"]}, age)
    assert damaged == (told if delta >= 5000 else "a newer index is damaged: keys.npy: cut")


def test_documents_written_again_and_again_leave_tombstones_until_a_compaction(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    put(made, range(3))
    compact(made.folder)
    for _ in range(5):
        put(made, range(2))
    with Searcher.open(made.folder) as searcher:
        assert searcher.info()["delta_count"] == 2
        assert searcher.info()["tombstone_count"] == 10
        compact(made.folder)
        assert searcher.info()["tombstone_count"] == 0
    assert made.store.tombstones() == []


def test_columns_and_deleted_rows_are_files_of_their_own(make_collection: MakeCollection) -> None:
    made = make_collection()
    put(made, range(10))
    assert not (made.snapshot().folder / DELETED_FILE).exists()
    made.store.delete(["4"])
    folder = compact(made.folder).snapshot.folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [VECTORS_FILE, "keys.npy", COLUMNS_FILE, DELETED_FILE, "snapshot.json"]
    )
    for content, told in ((b"", "bytes, expected"), (np.int64([10]), "altered")):
        path = folder / DELETED_FILE
        whole = path.read_bytes()
        path.write_bytes(content if isinstance(content, bytes) else whole[:128] + content.tobytes())
        assert told in verify_collection(made.folder)[0]
        path.write_bytes(whole)
