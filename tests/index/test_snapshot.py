"""Snapshots: measured, whole or not there, and refused when they are not as written."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from lamina_index.collection import verify_collection
from lamina_index.corpus import Document
from lamina_index.errors import CompactionError, DamagedError, IndexFactoryError, StorageFullError
from lamina_index.exact import NearestSoFar
from lamina_index.index_choice import EXACT_LIMIT, GRAPH_LIMIT, choose_index
from lamina_index.manifest import CollectionManifest, EncoderReference
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.snapshot_files import (
    COLUMNS_FILE,
    KEYS_FILE,
    MANIFEST_FILE,
    VECTORS_FILE,
    check_all,
    describe_file,
    open_snapshot,
    read_manifest,
    snapshot_numbers,
)
from lamina_index.store import DocumentStore
from lamina_index.vectors import VectorIndex, make_index
from vectors import unit

MakeCollection = Callable[..., Any]


def clustered(count: int, dimension: int) -> NDArray[np.float32]:
    """Vectors in clusters, as those of texts are."""
    random = np.random.default_rng(5)
    centres = random.standard_normal((150, dimension))
    rows = centres[random.integers(0, len(centres), count)]
    rows = rows + 0.6 * random.standard_normal(rows.shape)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


# What is built


def test_auto_grows_with_the_corpus() -> None:
    assert choose_index(0, 384).factory == "Flat"
    assert choose_index(EXACT_LIMIT, 384).factory == "Flat"
    assert choose_index(EXACT_LIMIT + 1, 384).factory == "HNSW32,SQ8"
    assert choose_index(GRAPH_LIMIT, 384).factory == "HNSW32,SQ8"
    for dimension in (32, 384, 385, 386):
        factory = choose_index(50_000_000, dimension).factory
        assert factory.startswith("IVF32768_HNSW32,PQ")
        assert make_index(factory.replace("IVF32768", "IVF4"), dimension).d == dimension


@pytest.mark.parametrize(
    "factory",
    [
        *("auto", "Flat", "SQ8", "SQfp16", "SQ4", "HNSW32", "HNSW32,SQ8", "IVF2,Flat", "IVF4,SQ8"),
        *("IVF1024,Flat", "IVF16_HNSW32,PQ8x4fs,Refine(SQfp16)", "PCA16,Flat", "OPQ8_32,IVF4,PQ8"),
        *("IVF4,PQ8x4fs,RFlat", "RR16,HNSW32", "L2norm,Flat"),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_any_factory_serves_a_tiny_corpus(
    make_collection: MakeCollection, factory: str, count: int
) -> None:
    made = make_collection()
    rows = unit(3)
    made.put(["a", "b", "c"][:count], rows[:count])
    snapshot = made.snapshot(factory)
    assert snapshot.count == count
    with Searcher.open(made.folder) as searcher:
        hits = searcher.search_embedding(rows[0], SearchOptions(top_k=6)).hits
    assert sorted(hit.id for hit in hits) == ["a", "b", "c"][:count]
    if count:
        assert hits[0].id == "a"


def test_too_few_rows_to_train_are_searched_exactly_and_the_reason_is_kept(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    made.put(["a", "b", "c"], unit(3))
    summary = made.snapshot("IVF1024,PQ8").summary()
    assert summary["factory"] == "Flat"
    assert summary["reason"] == "3 vectors are too few to train IVF1024,PQ8; exact search instead"


@pytest.mark.parametrize(
    "factory", ["Flatt", "", "LSH", "NSG16", "IDMap,Flat", "PQ8", "HNSW16,PQ8", "PQ7"]
)
def test_factories_that_cannot_be_searched_are_refused(
    make_collection: MakeCollection, factory: str
) -> None:
    made = make_collection()
    made.put(["a"], unit(1))
    with pytest.raises(IndexFactoryError, match=re.escape(f"factory {factory!r}")):
        made.snapshot(factory)
    assert list((made.folder / "snapshots").iterdir()) == []


@pytest.mark.parametrize(
    "factory", ["HNSW32,SQ8", "IVF64_HNSW32,PQ16x4fs,Refine(SQfp16)", "SQ8", "IVF32,SQ8"]
)
def test_the_recall_written_down_is_what_a_search_finds(
    make_collection: MakeCollection, factory: str
) -> None:
    made = make_collection()
    rows = clustered(6000, 32)
    made.put([str(i) for i in range(6000)], rows)
    summary = made.snapshot(factory).summary()
    assert summary["recall_queries"] == 256
    assert summary["recall@10"] >= 0.99
    queries = clustered(12_000, 32)[-200:]
    reference = NearestSoFar(queries, 10)
    reference.add(np.arange(6000), rows)
    found = 0
    with Searcher.open(made.folder) as searcher:
        for row, query in enumerate(queries):
            scores, _ = reference.result(row)
            hits = searcher.search_embedding(query, SearchOptions(top_k=10)).hits
            found += sum(hit.score >= scores[9] - 1e-6 for hit in hits)
    assert found / 2000 == pytest.approx(summary["recall@10"], abs=0.01)


def test_effort_grows_until_recall_is_enough(make_collection: MakeCollection) -> None:
    made = make_collection()
    made.put([str(i) for i in range(3000)], unit(3000))  # no clusters: lists are of little help
    few_lists = made.snapshot("IVF8,Flat").summary()
    many_lists = made.snapshot("IVF200,Flat").summary()
    assert few_lists["parameters"] == {"nprobe": 8}
    assert few_lists["recall@10"] == 1.0
    assert many_lists["parameters"]["nprobe"] > 8
    assert many_lists["recall@10"] >= 0.99


def test_exact_reference_equals_sorting_everything() -> None:
    rows = unit(1000, 16)
    rows[500:520] = rows[3]
    queries = np.concatenate([rows[3:4], unit(3, 16, seed=2)])
    nearest = NearestSoFar(queries, 7)
    for start in range(0, 1000, 130):
        block = rows[start : start + 130]
        nearest.add(np.arange(start, start + len(block)), block)
    for i, query in enumerate(queries):
        scores, labels = nearest.result(i)
        expected = np.sort(rows @ query)[::-1]
        assert len(labels) == (21 if i == 0 else 7)
        assert np.allclose(scores[:7], expected[:7], atol=1e-6)


_PEAK = """
import re
import sys
from pathlib import Path
import numpy as np
from lamina_index.vectors import VectorIndex
factory, path = sys.argv[1], Path(sys.argv[2])
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
def batches(count=17):
    for start in range(count):
        rows = np.random.default_rng(start).standard_normal((4000, 256), dtype=np.float32)
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)
def build(count):
    return VectorIndex.build(factory, dimension=256, count=4000 * count, batches=batches(count),
                             training=lambda size: next(batches()), threads=1)
build(1)  # what FAISS itself needs
"""


@pytest.mark.parametrize("factory", ["Flat", "IVF4,PQ8x4fs,Refine(Flat)"])
def test_memory_holds_one_copy_of_the_index_while_building(tmp_path: Path, factory: str) -> None:
    """68,000 x 256 fp32 are 70 MB, just past where a vector that doubles would copy 65 MB."""
    code = _PEAK + "before = peak(); index = build(17); print(peak() - before)"
    command = [sys.executable, "-c", code, factory, tmp_path / "vectors"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 100


@pytest.mark.parametrize("factory", ["SQfp16", "IVF4,PQ8x4fs,Refine(SQfp16)"])
def test_memory_holds_one_copy_of_the_index_while_adding(tmp_path: Path, factory: str) -> None:
    """68,000 x 256 fp16 are 35 MB; mapped files do not count for the limit."""
    path = tmp_path / "vectors"
    make = [sys.executable, "-c", f"{_PEAK}build(17).save(path)", factory, path]
    subprocess.run(make, check=True)
    code = """
import resource
status = open("/proc/self/status").read()
held = 1024 * int(re.search(r"VmData:\\s+(\\d+)", status)[1])
resource.setrlimit(resource.RLIMIT_DATA, (held + 55_000_000, resource.RLIM_INFINITY))
index = VectorIndex.copied(path, room=72_000)
index.add(batches(1), count=4000, threads=1)
print(index.count)
"""
    command = [sys.executable, "-c", _PEAK + code, factory, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["72000"], done.stderr


def test_adding_leaves_faiss_set_as_it_was() -> None:
    before = faiss.cvar.visited_table_hashset_threshold
    rows = unit(500)

    def batches() -> Iterator[NDArray[np.float32]]:
        assert faiss.cvar.visited_table_hashset_threshold > 10**12
        yield rows
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        VectorIndex.build(
            "HNSW8", dimension=32, count=500, training=unit, batches=batches(), threads=1
        )
    assert faiss.cvar.visited_table_hashset_threshold == before


# Whole or not there


def test_a_snapshot_replaces_the_older_one_and_is_numbered_on(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    made.put(["a"], unit(1))
    assert made.snapshot().number == 1
    made.put(["b"], unit(1))
    assert made.snapshot().number == 2
    assert snapshot_numbers(made.folder) == [2]
    assert verify_collection(made.folder) == []


_ENDLESS_WRITER = """
import sys
from pathlib import Path
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore
folder = Path(sys.argv[1])
with DocumentStore.open(folder) as store:
    while True:
        print(write_snapshot(folder, store, factory="SQ8", threads=1).number, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_snapshot(make_collection: MakeCollection) -> None:
    made = make_collection()
    rows = unit(500)
    made.put([str(i) for i in range(500)], rows)
    made.snapshot()
    for turn in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", _ENDLESS_WRITER, str(made.folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.013 * turn)
        writer.send_signal(signal.SIGKILL)
        acknowledged = [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        writer.stdout.close()
        assert snapshot_numbers(made.folder)[0] >= max(acknowledged, default=0)
        assert verify_collection(made.folder) == []
        with Searcher.open(made.folder) as searcher:
            assert searcher.search_embedding(rows[turn], SearchOptions(top_k=1)).hits[0].id == str(
                turn
            )
    made.snapshot()
    assert len(list((made.folder / "snapshots").iterdir())) == 1  # leftovers are gone


def test_a_snapshot_that_was_replaced_meanwhile_is_not_called_damaged(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    made.put(["a"], unit(1))
    made.snapshot()
    with Searcher.open(made.folder) as searcher:
        made.snapshot()
        searcher.verify()  # the files of the one in use are gone
        assert not searcher.verified
        assert len(searcher.search_embedding(unit(1)[0]).hits) == 1  # takes up the new one
        searcher.verify()
        assert searcher.verified


def test_the_older_snapshot_stays_until_the_new_one_is_proven(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_collection()
    made.put(["a"], unit(1))
    made.snapshot()
    monkeypatch.setattr("lamina_index.snapshot_check.check_all", lambda folder: ["one is altered"])
    with pytest.raises(CompactionError, match="does not read back as it was written; one is alt"):
        made.snapshot()
    assert [path.name for path in (made.folder / "snapshots").iterdir()] == ["1"]


@pytest.mark.parametrize("room", [0, 100, 5000, 60_000, 129_000])
def test_a_full_disk_keeps_the_snapshot_that_was_there(
    make_collection: MakeCollection, small_disk: Path, room: int
) -> None:
    made = make_collection()
    rows = unit(1000)
    made.put([str(i) for i in range(1000)], rows)
    made.store.close()
    (made.folder / "snapshots").symlink_to(small_disk)

    with DocumentStore.open(made.folder) as store:
        write_snapshot(made.folder, store, threads=1)
        free = shutil.disk_usage(small_disk).free
        (small_disk / "filler").write_bytes(bytes(free - room // 4096 * 4096))
        with pytest.raises(StorageFullError, match="no space left"):
            write_snapshot(made.folder, store, threads=1)
        assert sorted(path.name for path in small_disk.iterdir()) == ["1", "filler"]
        with Searcher.open(made.folder) as searcher:
            assert searcher.search_embedding(rows[0], SearchOptions(top_k=1)).hits[0].id == "0"
        (small_disk / "filler").unlink()
        assert write_snapshot(made.folder, store, threads=1).number == 2


# Damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection with a snapshot of 300 rows; not to be written."""

    folder = tmp_path_factory.mktemp("sound")
    CollectionManifest(
        encoder=EncoderReference(name="x", precision="fp32", fingerprint="f"),
        dimension=32,
        text_version=1,
        created="2026-01-01",
    ).write(folder / "collection.json")
    with DocumentStore.create(folder, dimension=32) as store:
        store.upsert([Document(str(i), f"text {i}", {}) for i in range(300)], unit(300))
        write_snapshot(folder, store, factory="HNSW32,SQ8", threads=1)
    return folder


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "copy")


def refused(copy: Path) -> str:
    """Open for searching, which must fail in a way that a user can act on."""
    with pytest.raises(DamagedError) as caught:
        Searcher.open(copy)
    message = str(caught.value)
    assert "lamina index compact" in message
    return message


@pytest.mark.parametrize("name", [VECTORS_FILE, KEYS_FILE, COLUMNS_FILE, MANIFEST_FILE])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / "snapshots" / "1" / name).unlink()
    assert f"snapshots/1/{name}" in refused(copy)
    assert name in verify_collection(copy)[0]


@pytest.mark.parametrize("name", [VECTORS_FILE, KEYS_FILE, COLUMNS_FILE, MANIFEST_FILE])
def test_a_file_that_cannot_be_read_is_named(copy: Path, name: str) -> None:
    path = copy / "snapshots" / "1" / name
    path.unlink()
    path.symlink_to(path)  # a loop: neither opened nor looked at
    assert f"snapshots/1/{name}: " in refused(copy)
    assert name in verify_collection(copy)[0]


def test_a_folder_of_snapshots_that_cannot_be_read_is_named(copy: Path) -> None:
    shutil.rmtree(copy / "snapshots")
    (copy / "snapshots").write_text("no folder")
    assert "snapshots: cannot be read" in refused(copy)
    assert "snapshots: cannot be read" in verify_collection(copy)[0]


@pytest.mark.parametrize("name", [VECTORS_FILE, KEYS_FILE, COLUMNS_FILE, MANIFEST_FILE])
def test_a_cut_file_is_refused_wherever_it_is_cut(copy: Path, name: str) -> None:
    path = copy / "snapshots" / "1" / name
    whole = path.read_bytes()
    step = 64 if name == VECTORS_FILE else 16
    end = len(whole.rstrip(b"\n")) - 1
    for size in [*range(0, min(end, 100 * step), step), end]:
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedError, match=re.escape(name)):
            open_snapshot(path.parent)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedError, match=re.escape(name)):
        open_snapshot(path.parent)


@pytest.mark.parametrize("name", [VECTORS_FILE, KEYS_FILE, COLUMNS_FILE, MANIFEST_FILE])
def test_a_flipped_bit_is_found_wherever_it_is(copy: Path, name: str) -> None:
    path = copy / "snapshots" / "1" / name
    whole = path.read_bytes()
    random = np.random.default_rng(2)
    for position in random.integers(0, len(whole), 60).tolist():
        broken = bytearray(whole)
        broken[position] ^= 1 << int(random.integers(8))
        path.write_bytes(bytes(broken))
        assert check_all(path.parent)
        with pytest.raises(DamagedError, match=re.escape(name)):
            open_snapshot(path.parent)


def test_a_flipped_bit_in_the_middle_of_a_large_file_is_found_by_verify(
    make_collection: MakeCollection,
) -> None:
    made = make_collection(dimension=512)
    rows = unit(5000, 512)
    made.put([str(i) for i in range(5000)], rows)
    made.snapshot("Flat")  # 10 MB: three pieces, of which the quick check reads two
    path = made.folder / "snapshots" / "1" / VECTORS_FILE
    with path.open("r+b") as stream:
        stream.seek(5 << 20)
        stream.write(bytes([255 - path.read_bytes()[5 << 20]]))
    with Searcher.open(made.folder) as searcher:
        assert not searcher.verified
        with pytest.raises(DamagedError, match="altered between byte 4194304"):
            searcher.verify()
        assert not searcher.verified
        hit = searcher.search_embedding(rows[9], SearchOptions(top_k=1)).hits[0]
        assert (hit.id, hit.score) == ("9", pytest.approx(1))  # scores come from the store
    assert len(verify_collection(made.folder)) == 1


HEADERS = {
    "dimension": ("<i", 4, [-1, 0, 1, 33, 2**31 - 1]),
    "count": ("<q", 8, [-1, 0, 299, 2**31, 2**62, 2**63 - 1]),
    "trained": ("<B", 32, [0, 255]),
    "metric": ("<i", 33, [-1, 1, 2**31 - 1]),
    "kind": ("<i", 0, [0, int.from_bytes(b"IxFI", "little"), int.from_bytes(b"IwFl", "little")]),
}


@pytest.mark.parametrize("field", HEADERS)
def test_a_crafted_header_is_refused_even_with_matching_digests(copy: Path, field: str) -> None:
    folder = copy / "snapshots" / "1"
    whole = (folder / VECTORS_FILE).read_bytes()
    manifest = read_manifest(folder)
    code, offset, values = HEADERS[field]
    for value in values:
        crafted = bytearray(whole)
        struct.pack_into(code, crafted, offset, value)
        (folder / VECTORS_FILE).write_bytes(bytes(crafted))
        files = {
            name: describe_file(folder / name) for name in (VECTORS_FILE, KEYS_FILE, COLUMNS_FILE)
        }
        forged = manifest.model_copy(update={"files": files})
        forged.model_copy(update={"checksum": forged.digest()}).write(folder / MANIFEST_FILE)
        assert "header says" in refused(copy)


def test_a_crafted_body_ends_in_a_plain_error_or_right_scores(copy: Path) -> None:
    """Digests made to match: then FAISS reads the file, and the store still has the last word."""
    folder = copy / "snapshots" / "1"
    whole = (folder / VECTORS_FILE).read_bytes()
    manifest = read_manifest(folder)
    query = unit(1)[0]
    random = np.random.default_rng(4)
    for position in random.integers(37, 2000, 40).tolist():
        crafted = bytearray(whole)
        crafted[position] ^= 1 << int(random.integers(8))
        (folder / VECTORS_FILE).write_bytes(bytes(crafted))
        files = {
            name: describe_file(folder / name) for name in (VECTORS_FILE, KEYS_FILE, COLUMNS_FILE)
        }
        forged = manifest.model_copy(update={"files": files})
        forged.model_copy(update={"checksum": forged.digest()}).write(folder / MANIFEST_FILE)
        try:
            with Searcher.open(copy) as searcher:
                hits = searcher.search_embedding(query, SearchOptions(top_k=5)).hits
        except DamagedError:
            continue
        rows = unit(300)
        assert all(abs(hit.score - float(rows[int(hit.id)] @ query)) < 1e-6 for hit in hits)


def test_a_manifest_of_other_numbers_is_refused(copy: Path) -> None:
    path = copy / "snapshots" / "1" / MANIFEST_FILE
    text = path.read_text()
    path.write_text(text.replace('"count": 300', '"count": 299'))
    assert "checksum does not match" in refused(copy)
    path.write_text(text.replace('"format_version": 3', '"format_version": 9'))
    assert "format version 9" in refused(copy)


def test_a_damaged_snapshot_is_made_again_without_encoding(copy: Path) -> None:

    path = copy / "snapshots" / "1" / VECTORS_FILE
    path.write_bytes(path.read_bytes()[:-7])
    refused(copy)
    with DocumentStore.open(copy) as store:
        assert write_snapshot(copy, store, threads=1).number == 2
    assert verify_collection(copy) == []
    with Searcher.open(copy) as searcher:
        assert searcher.search_embedding(unit(300)[7], SearchOptions(top_k=1)).hits[0].id == "7"


def test_an_older_sound_snapshot_serves_when_the_newest_is_damaged(copy: Path) -> None:
    shutil.copytree(copy / "snapshots" / "1", copy / "snapshots" / "2")
    (copy / "snapshots" / "2" / KEYS_FILE).write_bytes(b"")
    with Searcher.open(copy) as searcher:
        info = searcher.info()
        assert info["index"]["snapshot"] == 1
        assert "snapshots/2/keys.npy" in info["damage"][0]
        assert searcher.search_embedding(unit(300)[7], SearchOptions(top_k=1)).hits[0].id == "7"
        with DocumentStore.open(copy) as store:
            write_snapshot(copy, store, threads=1)
        assert searcher.search_embedding(unit(300)[7], SearchOptions(top_k=1)).hits[0].id == "7"
        assert (searcher.info()["index"]["snapshot"], searcher.info()["damage"]) == (3, [])


def test_keys_are_read_without_pickle(copy: Path) -> None:
    folder = copy / "snapshots" / "1"
    manifest = read_manifest(folder)
    np.save(folder / KEYS_FILE, np.array([print] * 300, dtype=object), allow_pickle=True)
    content = (folder / KEYS_FILE).read_bytes().ljust(128 + 8 * 300, b"\0")[: 128 + 8 * 300]
    (folder / KEYS_FILE).write_bytes(content)
    files = {name: describe_file(folder / name) for name in (VECTORS_FILE, KEYS_FILE, COLUMNS_FILE)}
    forged = manifest.model_copy(update={"files": files})
    forged.model_copy(update={"checksum": forged.digest()}).write(folder / MANIFEST_FILE)
    assert KEYS_FILE in refused(copy)


def test_faiss_is_not_asked_to_read_before_the_checks(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("FAISS was given an unchecked file")

    monkeypatch.setattr(faiss, "read_index", fail)
    path = copy / "snapshots" / "1" / VECTORS_FILE
    path.write_bytes(b"IHNs" + os.urandom(1000))
    refused(copy)


def test_an_index_file_that_faiss_cannot_read_is_a_plain_error(tmp_path: Path) -> None:
    path = tmp_path / "vectors.faiss"
    path.write_bytes(b"none")
    with pytest.raises(DamagedError, match="FAISS cannot read it"):
        VectorIndex.load(path)
