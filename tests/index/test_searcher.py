"""The searcher against brute force, ties, replaced and deleted rows, threads and wrong encoders."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina_index.build import build_collection
from lamina_index.cli import main
from lamina_index.collection import verify_collection
from lamina_index.corpus import Document
from lamina_index.encoder import Encoded
from lamina_index.errors import (
    BlankTextError,
    CollectionNotFoundError,
    DamagedError,
    EncoderMismatchError,
    EncoderOutputError,
)
from lamina_index.manifest import CollectionManifest, EncoderReference
from lamina_index.scoring import exact_scores
from lamina_index.search_options import SearchOptions
from lamina_index.search_stages import SearchResult
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore, StoreReading
from lamina_index.view import View
from vectors import DIRECTIONS, unit

MakeCollection = Callable[..., Any]


def ids_of(result: SearchResult) -> list[str]:
    return [hit.id for hit in result.hits]


def brute_force(
    rows: dict[str, NDArray[np.float32]], query: NDArray[np.float32]
) -> list[tuple[str, float]]:
    scored = [(each, float(exact_scores(row[np.newaxis], query)[0])) for each, row in rows.items()]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


# Order and cuts


@settings(max_examples=60, deadline=None)
@given(
    held=st.dictionaries(st.text("abAé1", min_size=1, max_size=3), st.integers(0, 25), max_size=40),
    newer=st.dictionaries(st.text("abAé1", min_size=1, max_size=2), st.integers(0, 25), max_size=8),
    deleted=st.sets(st.text("abAé1", min_size=1, max_size=2), max_size=6),
    query=st.integers(0, 25),
    top_k=st.integers(1, 60),
    offset=st.integers(0, 30),
    factory=st.sampled_from(["auto", "SQ8", "HNSW32,SQ8", "HNSW32", "IVF2,Flat", "SQfp16"]),
)
def test_every_page_equals_brute_force_ties_and_all(
    held: dict[str, int],
    newer: dict[str, int],
    deleted: set[str],
    query: int,
    top_k: int,
    offset: int,
    factory: str,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        CollectionManifest(
            encoder=EncoderReference(name="x", precision="fp32", fingerprint="f"),
            dimension=3,
            text_version=1,
            created="2026-01-01",
        ).write(folder / "collection.json")
        rows = {each: DIRECTIONS[direction] for each, direction in held.items()}
        with DocumentStore.create(folder, dimension=3) as store:
            for batch in (held, newer):
                vectors = DIRECTIONS[list(batch.values())].reshape(-1, 3)
                store.upsert([Document(each, each, {}) for each in batch], vectors)
                if batch is held:
                    write_snapshot(folder, store, factory=factory, threads=1)
            store.delete(sorted(deleted))
        rows |= {each: DIRECTIONS[direction] for each, direction in newer.items()}
        rows = {each: row for each, row in rows.items() if each not in deleted}
        with Searcher.open(folder) as searcher:
            found = searcher.search_embedding(
                DIRECTIONS[query], SearchOptions(top_k=top_k, offset=offset)
            )
            assert searcher.count == len(rows)
    expected = brute_force(rows, DIRECTIONS[query])[offset : offset + top_k]
    assert [(hit.id, hit.score) for hit in found.hits] == expected
    assert [hit.rank for hit in found.hits] == list(range(offset + 1, offset + len(expected) + 1))


@pytest.mark.parametrize("factory", ["Flat", "HNSW32,SQ8", "IVF4,SQ8"])
def test_a_cut_through_many_ties_goes_by_id(make_collection: MakeCollection, factory: str) -> None:
    made = make_collection()
    rows = unit(500)
    rows[100:400] = rows[0]
    order = np.random.default_rng(1).permutation(500)
    made.put([f"{i:03}" for i in order.tolist()], rows[order])
    made.snapshot(factory)
    with Searcher.open(made.folder) as searcher:
        expected = ["000", *(f"{i:03}" for i in range(100, 400))]
        assert ids_of(searcher.search_embedding(rows[0], SearchOptions(top_k=10))) == expected[:10]
        assert (
            ids_of(searcher.search_embedding(rows[0], SearchOptions(top_k=7, offset=290)))
            == expected[290:297]
        )


def test_equal_vectors_are_read_once_and_only_the_pages_texts(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_collection()
    made.put([f"{i:03}" for i in range(200)], np.repeat(unit(1), 200, axis=0))
    made.snapshot("HNSW32,SQ8")
    read: dict[str, int] = {}

    def count(name: str) -> None:
        method = getattr(StoreReading, name)

        def counted(reading: StoreReading, keys: Sequence[int]) -> Any:
            found = method(reading, keys)
            read[name] = read.get(name, 0) + len(found)
            return found

        monkeypatch.setattr(StoreReading, name, counted)

    count("twins")
    count("documents")
    with Searcher.open(made.folder) as searcher:
        found = searcher.search_embedding(unit(1)[0], SearchOptions(top_k=50))
    assert ids_of(found) == [f"{i:03}" for i in range(50)]
    assert read == {"twins": 199, "documents": 50}


@pytest.mark.parametrize("factory", ["Flat", "HNSW32,SQ8", "IVF8,Flat"])
def test_pages_put_together_are_the_listing(make_collection: MakeCollection, factory: str) -> None:
    made = make_collection()
    made.put([f"d{i}" for i in range(2000)], unit(2000))
    made.snapshot(factory)
    query = unit(1, seed=9)[0]
    with Searcher.open(made.folder) as searcher:
        whole = searcher.search_embedding(query, SearchOptions(top_k=48)).hits
        pages = [
            searcher.search_embedding(query, SearchOptions(top_k=6, offset=6 * i)).hits
            for i in range(8)
        ]
    assert [hit for page in pages for hit in page] == whole


@pytest.mark.parametrize("factory", ["Flat", "HNSW32,SQ8", "IVF64,Flat", "SQ8"])
def test_asking_for_more_than_there_is_gives_all_there_is(
    make_collection: MakeCollection, factory: str
) -> None:
    made = make_collection()
    rows = unit(1500)
    made.put([f"d{i}" for i in range(1500)], rows)
    made.snapshot(factory)
    made.store.delete([f"d{i}" for i in range(100)])
    with Searcher.open(made.folder) as searcher:
        for top_k in (1400, 1401, 2**31, 2**63):
            hits = searcher.search_embedding(rows[0], SearchOptions(top_k=top_k)).hits
            assert {hit.id for hit in hits} == {f"d{i}" for i in range(100, 1500)}
            assert all(-1 <= hit.score <= 1 for hit in hits)
            scores = [hit.score for hit in hits]
            assert scores == sorted(scores, reverse=True)
        assert searcher.search_embedding(rows[0], SearchOptions(offset=5000)).hits == []


def test_what_an_index_cannot_reach_is_found_all_the_same(make_collection: MakeCollection) -> None:
    made = make_collection()
    rows = np.repeat(unit(50), 20, axis=0) + 0.05 * unit(1000, seed=1)
    made.put([str(i) for i in range(1000)], rows / np.linalg.norm(rows, axis=1, keepdims=True))
    assert made.snapshot("IVF50,Flat").summary()["parameters"]["nprobe"] < 50
    with Searcher.open(made.folder) as searcher:
        hits = searcher.search_embedding(rows[0], SearchOptions(top_k=700)).hits
        everything = searcher.search_embedding(rows[0], SearchOptions(top_k=1000)).hits
    assert len({hit.id for hit in everything}) == 1000
    assert hits == everything[:700]


def test_a_score_is_the_cosine_and_a_threshold_keeps_what_reaches_it(
    make_collection: MakeCollection,
) -> None:
    made = make_collection(dimension=2)
    made.put(["same", "right angle", "opposite"], np.array([[1, 0], [0, 1], [-1, 0]], np.float32))
    made.snapshot()
    with Searcher.open(made.folder) as searcher:
        query = np.array([1, 0], np.float32)
        found = searcher.search_embedding(query).hits
        assert [(hit.id, hit.score) for hit in found] == [
            ("same", 1.0),
            ("right angle", 0.0),
            ("opposite", -1.0),
        ]
        assert ids_of(searcher.search_embedding(query, SearchOptions(min_score=0.5))) == ["same"]
        assert ids_of(searcher.search_embedding(query, SearchOptions(min_score=0.0))) == [
            "same",
            "right angle",
        ]
        assert (
            ids_of(searcher.search_embedding(query, SearchOptions(min_score=0.0, offset=2))) == []
        )
        assert ids_of(searcher.search_embedding([3.5, 0.0], SearchOptions(top_k=1))) == ["same"]


def test_a_score_never_exceeds_one(make_collection: MakeCollection) -> None:
    rows = unit(300, seed=4) * np.float32(1.0004)  # within half-precision rounding of length 1
    made = make_collection()
    made.put([str(i) for i in range(300)], rows)
    with Searcher.open(made.folder) as searcher:
        scores = [
            searcher.search_embedding(row, SearchOptions(top_k=1)).hits[0].score
            for row in rows[:50]
        ]
    assert max(scores) == 1.0


# Generations


def test_rows_without_a_snapshot_are_found(make_collection: MakeCollection) -> None:
    made = make_collection()
    with Searcher.open(made.folder) as searcher:
        assert searcher.search_embedding(unit(1)[0]).hits == []
        made.put(["a", "b"], unit(2))
        assert ids_of(searcher.search_embedding(unit(2)[1])) == ["b", "a"]
        assert searcher.info()["index"] is None


def test_many_rows_without_a_snapshot_need_one(
    make_collection: MakeCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.view.DELTA_LIMIT", 10)
    made = make_collection()
    made.put([str(i) for i in range(11)], unit(11))
    with pytest.raises(
        DamagedError, match="11 documents but no search index; `lamina index compact"
    ):
        Searcher.open(made.folder)


def test_an_older_copy_of_the_store_is_refused_until_its_index_is_made_again(
    make_collection: MakeCollection, tmp_path: Path, word_encoder: Any
) -> None:
    made = make_collection()
    made.put(["old"], unit(1))
    backup = tmp_path / "backup.sqlite"
    with closing(sqlite3.connect(made.store.path)) as connection:
        connection.execute("VACUUM INTO ?", (str(backup),))
    made.put(["new"], unit(1, seed=1))
    made.snapshot()
    made.store.close()
    for suffix in ("-wal", "-shm"):
        made.store.path.with_name(f"{made.store.path.name}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(backup, made.store.path)

    with pytest.raises(DamagedError, match=r"snapshot 1 holds rows .* older copy; `lamina index"):
        Searcher.open(made.folder)
    assert any("older copy" in line for line in verify_collection(made.folder))
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "more", "text": "more"}\n')
    with pytest.raises(DamagedError, match="older copy"):
        build_collection([more], made.folder, word_encoder, mode="append")

    assert main(["index", "compact", str(made.folder)]) == 0
    assert verify_collection(made.folder) == []
    with Searcher.open(made.folder) as searcher:
        assert ids_of(searcher.search_embedding(unit(1, seed=1)[0])) == ["old"]


@pytest.mark.parametrize("factory", ["auto", "HNSW32,SQ8"])
def test_replaced_and_deleted_texts_are_never_returned(
    make_collection: MakeCollection, factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(View, "_scan")  # the index must pass over them by itself
    made = make_collection()
    rows = unit(60)
    made.put([f"d{i}" for i in range(60)], rows, text="old {}")
    made.snapshot(factory)
    with Searcher.open(made.folder) as searcher:
        assert ids_of(searcher.search_embedding(rows[7], SearchOptions(top_k=1))) == ["d7"]
        made.put(["d7"], -rows[7:8], text="new {}")
        made.store.delete(["d8"])
        everything = searcher.search_embedding(rows[7], SearchOptions(top_k=100)).hits
        assert len(everything) == len({hit.id for hit in everything}) == 59 == searcher.count
        assert [hit.text for hit in everything if hit.id == "d7"] == ["new d7"]
        assert everything[-1].id == "d7"
        made.put(["d7"], rows[7:8], text="newest {}")  # replaces a row that is only in the delta
        assert [
            h.text for h in searcher.search_embedding(rows[7], SearchOptions(top_k=1)).hits
        ] == ["newest d7"]
        assert searcher.info()["delta_count"] == 1
        assert searcher.info()["deleted_count"] == 2
        made.snapshot(factory)
        assert [
            h.text for h in searcher.search_embedding(rows[7], SearchOptions(top_k=1)).hits
        ] == ["newest d7"]
        assert searcher.info()["delta_count"] == searcher.info()["deleted_count"] == 0
        assert made.store.tombstones() == []


def test_each_reply_is_one_generation_while_a_writer_replaces_snapshots(
    make_collection: MakeCollection,
) -> None:
    made = make_collection()
    rows = unit(40)
    names = [f"d{i:02}" for i in range(40)]
    made.put(names, rows, text="0")
    made.snapshot("HNSW32,SQ8")
    stop = threading.Event()
    wrong: list[object] = []
    seen: set[str] = set()

    with Searcher.open(made.folder) as searcher:

        def read() -> None:
            try:
                while not stop.is_set():
                    hits = searcher.search_embedding(rows[3], SearchOptions(top_k=50)).hits
                    texts = {hit.text for hit in hits}
                    seen.update(texts)
                    if (
                        len(texts) != 1
                        or [hit.id for hit in hits][:1] != ["d03"]
                        or len(hits) != 40
                    ):
                        wrong.append((texts, len(hits)))
            except BaseException as error:
                wrong.append(error)
                raise

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for turn in range(1, 31):
            made.put(names, rows, text=str(turn))
            if turn % 3 == 0:
                made.snapshot("auto" if turn % 2 else "HNSW32,SQ8")
        stop.set()
        for thread in threads:
            thread.join()
        assert not wrong
        assert len(seen) > 3
        assert searcher.info()["index"]["snapshot"] == 11
    assert sorted(path.name for path in (made.folder / "snapshots").iterdir()) == ["11"]


def test_memory_stays_flat_over_many_reloads(make_collection: MakeCollection) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    made = make_collection(dimension=512)
    rows = unit(1500, 512)
    made.put([str(i) for i in range(1500)], rows)
    with Searcher.open(made.folder) as searcher:
        for turn in range(60):
            if turn == 10:
                before = resident()
            made.snapshot("Flat")  # 3 MB
            assert ids_of(searcher.search_embedding(rows[turn], SearchOptions(top_k=1))) == [
                str(turn)
            ]
        assert searcher.info()["index"]["snapshot"] == 60
        assert resident() - before < 30e6  # leaking would be 150 MB


# Text


@pytest.fixture
def words(make_collection: MakeCollection, word_encoder: Any) -> Path:
    made = make_collection()
    texts = ["the cat sat", "the dog ran", "a cat and a dog", "nothing at all"]
    documents = [Document(f"t{i}", text, {"n": i}) for i, text in enumerate(texts)]
    made.store.upsert(documents, word_encoder.encode(texts, role="document").embeddings)
    made.snapshot()
    folder: Path = made.folder
    return folder


def test_a_text_query_finds_its_own_text_first(words: Path, word_encoder: Any) -> None:
    with Searcher.open(words, word_encoder) as searcher:
        result = searcher.search("the dog ran", SearchOptions(top_k=2))
    assert result.hits[0].id == "t1"
    assert result.hits[0].score == pytest.approx(1, abs=1e-6)
    assert (result.hits[0].text, result.hits[0].metadata) == ("the dog ran", {"n": 1})
    assert set(result.took) == {"encode", "search", "fetch"}
    assert (result.token_count, result.truncated) == (3, False)


def test_a_long_query_is_cut_and_says_so(words: Path, word_encoder: Any) -> None:
    with Searcher.open(words, word_encoder) as searcher:
        result = searcher.search("cat " * 40)
    assert (result.token_count, result.truncated) == (16, True)


@pytest.mark.parametrize("query", ["", " ", "\n\n", "?!"])
def test_a_blank_query_is_an_error(words: Path, word_encoder: Any, query: str) -> None:
    with Searcher.open(words, word_encoder) as searcher:
        with pytest.raises(BlankTextError):
            searcher.search(query)
        with pytest.raises(BlankTextError):
            searcher.search_many(["cat", query])


def test_many_queries_get_what_each_would_get(words: Path, word_encoder: Any) -> None:
    queries = ["cat", "dog ran", "all cats \ud83d", "a\0b", "sat"] * 10
    with Searcher.open(words, word_encoder) as searcher:
        together = searcher.search_many(queries, SearchOptions(top_k=3))
        alone = [searcher.search(query, SearchOptions(top_k=3)) for query in queries]
    assert [result.hits for result in together] == [result.hits for result in alone]


def test_another_encoder_is_refused_even_of_the_same_dimension(
    words: Path, word_encoder: Any
) -> None:
    class Other(type(word_encoder)):  # type: ignore[misc]  # a fixture's class is known at run time
        name = "others"
        fingerprint = "0" * 64

    with pytest.raises(EncoderMismatchError, match=r"encoder words fp32.*loaded others fp32"):
        Searcher.open(words, Other())


def test_a_vector_that_is_not_finite_is_the_encoders_fault(words: Path, word_encoder: Any) -> None:
    class Broken(type(word_encoder)):  # type: ignore[misc]  # a fixture's class is known at run time
        def encode(self, texts: Any, *, role: Any) -> Encoded:
            good: Encoded = super().encode(texts, role=role)
            return replace(good, embeddings=np.full_like(good.embeddings, np.nan))

    with (
        Searcher.open(words, Broken()) as searcher,
        pytest.raises(EncoderOutputError, match="not finite"),
    ):
        searcher.search("cat")


def test_without_an_encoder_only_vectors_are_searched(words: Path) -> None:
    with Searcher.open(words) as searcher:
        with pytest.raises(ValueError, match="without an encoder"):
            searcher.search("cat")
        assert len(searcher.search_embedding(unit(1)[0]).hits) == 4


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(32), "zero"),
        (np.full(32, np.nan), "not finite"),
        (np.full(32, np.inf), "not finite"),
        (np.ones(31), "dimension 31, expected 32"),
        (np.ones((1, 32)), "expected one dimension"),
        ([], "zero"),
    ],
)
def test_vectors_without_a_direction_are_refused(words: Path, vector: Any, message: str) -> None:
    with Searcher.open(words) as searcher, pytest.raises(ValueError, match=message):
        searcher.search_embedding(vector)


@pytest.mark.parametrize("numbers", [{"top_k": 0}, {"top_k": -1}, {"offset": -1}])
def test_numbers_out_of_range_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected at least"):
        SearchOptions(**numbers)


def test_a_document_is_found_by_id(words: Path) -> None:
    with Searcher.open(words) as searcher:
        found = searcher.get("t2")
        assert found is not None
        assert (found.text, found.metadata) == ("a cat and a dog", {"n": 2})
        assert searcher.get("t9") is None


def test_no_collection_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(CollectionNotFoundError, match="lamina index build"):
        Searcher.open(tmp_path / "absent")


# Processes


_FORKING = """
import os, sys
import numpy as np
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore
from lamina_index.view import View
folder = __import__("pathlib").Path(sys.argv[1])
with DocumentStore.open(folder) as store:
    write_snapshot(folder, store, factory="HNSW32,SQ8", threads=2)
vector = np.eye(32)[0]
searcher = Searcher.open(folder)
expected = searcher.search_embedding(vector).hits
child = os.fork()
if child == 0:
    with Searcher.open(folder) as again:
        os._exit(0 if again.search_embedding(vector).hits == expected else 1)
_, status = os.waitpid(child, 0)
searcher.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_forked_after_a_search_does_not_hang(make_collection: MakeCollection) -> None:
    made = make_collection()
    made.put([str(i) for i in range(300)], unit(300))
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKING, str(made.folder)]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_a_folder_that_cannot_be_written_can_be_searched(
    make_collection: MakeCollection, read_only: Callable[[Path], Path]
) -> None:
    made = make_collection()
    rows = unit(20)
    made.put([str(i) for i in range(20)], rows)
    made.snapshot()
    made.store.close()
    with Searcher.open(read_only(made.folder)) as searcher:
        assert ids_of(searcher.search_embedding(rows[5], SearchOptions(top_k=1))) == ["5"]
        searcher.verify()
        assert searcher.verified
