"""Writes to a collection that is open elsewhere: checked, embedded, durable, whole."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina_index.backlog import Backlog, backlog_limit
from lamina_index.collection import verify_collection
from lamina_index.collection_changes import create_collection, new_manifest, remove_collection
from lamina_index.compaction import needs_compaction
from lamina_index.encoder import Encoded, Encoder
from lamina_index.errors import (
    BacklogFullError,
    CollectionNotFoundError,
    DamagedError,
    EncoderMismatchError,
    EncoderOutputError,
    FilterError,
    LaminaError,
    StorageFullError,
    WriteTooLargeError,
)
from lamina_index.filters import parse_filter
from lamina_index.manifest import Chunking, CollectionManifest, FieldType
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore
from lamina_index.writer import CollectionWriter, Prepared

CHUNKING = Chunking(tokens=4, overlap=0)


def record(document_id: object, text: object = "a text", **metadata: object) -> dict[str, object]:
    return {"id": document_id, "text": text, **({"metadata": metadata} if metadata else {})}


def stored(folder: Path) -> dict[str, Any]:
    with DocumentStore.open(folder, read_only=True) as store:
        return {each.id: (each.text, each.metadata) for each in store.documents()}


def make(
    folder: Path,
    encoder: Encoder,
    *,
    chunking: Chunking | None = None,
    fields: dict[str, FieldType] | None = None,
) -> Path:
    create_collection(folder, new_manifest(encoder, fields=fields, chunking=chunking))
    return folder


def compact(folder: Path) -> None:
    with DocumentStore.open(folder) as store:
        write_snapshot(folder, store, threads=1)


@pytest.fixture
def folder(tmp_path: Path, word_encoder: Encoder) -> Path:
    return make(tmp_path / "c", word_encoder)


@pytest.fixture
def writer(folder: Path, word_encoder: Encoder) -> Iterator[CollectionWriter]:
    with CollectionWriter.open(folder, word_encoder) as writer:
        yield writer


def test_what_is_written_is_found_at_once_by_who_has_it_open(
    folder: Path, writer: CollectionWriter, word_encoder: Encoder
) -> None:
    with Searcher.open(folder, word_encoder) as searcher:
        written = writer.upsert([record("a", "red fish"), record("b", "blue bird")])
        assert (written.inserted, written.replaced, written.faults) == (2, 0, ())
        assert searcher.search("blue bird").hits[0].id == "b"
        assert searcher.info()["generation"] == written.generation
        written = writer.upsert([record("b", "green tree"), record("c", "blue sky")])
        assert (written.inserted, written.replaced) == (1, 1)
        assert searcher.search("blue bird").hits[0].text == "blue sky"
        assert writer.delete(["a", "c", "never", "\ud800"]) == 2
        assert [hit.id for hit in searcher.search("green").hits] == ["b"]
    assert verify_collection(folder) == []


def test_a_bad_record_gets_its_own_fault_and_the_others_are_stored(
    folder: Path, writer: CollectionWriter
) -> None:
    written = writer.upsert(
        [
            record("good", "text", year=2000),
            "no object",
            record(1),
            {"id": "x"},
            record("blank", " \n"),
            record("mistyped", "text", year="late"),
            {"id": "odd", "text": "text", "colour": "red"},
            {"id": "list", "text": "text", "metadata": []},
            record("", "text"),
            record("x" * 513, "text"),
            record("nul\0", "text"),
            record("marks", "!?"),  # nothing that the encoder could read
            record("also", "text", year=1.5),
        ]
    )
    assert (written.inserted, written.replaced) == (2, 0)
    assert list(stored(folder)) == ["good", "also"]
    ids = [None, None, None, "blank", "mistyped", "odd", "list", None, None, None, "marks"]
    assert [(fault.position, fault.id) for fault in written.faults] == list(enumerate(ids, 1))
    reasons = " | ".join(fault.reason for fault in written.faults)
    for told in ("an object", "the number 1", "text is missing", "blank", '"late"', '"colour"'):
        assert told in reasons


def test_ids_that_look_alike_are_different_documents(
    folder: Path, writer: CollectionWriter
) -> None:
    ids = ["1", "01", "1.0", "-1", "9007199254740993", "9007199254740992", "é", "e\u0301", "A", "a"]
    assert writer.upsert([record(each, f"text {each}") for each in ids]).inserted == len(ids)
    assert sorted(stored(folder)) == sorted(ids)
    assert writer.delete(["9007199254740993"]) == 1
    assert "9007199254740992" in stored(folder)


def test_of_one_id_the_last_good_record_counts(folder: Path, writer: CollectionWriter) -> None:
    written = writer.upsert(
        [record("a", "first"), record("b", "other"), record("a", "second"), record("a", " ")]
    )
    assert (written.inserted, written.replaced) == (2, 0)
    assert [fault.position for fault in written.faults] == [3]
    writer.upsert([record("a", "third")])
    assert {each: text for each, (text, _) in stored(folder).items()} == {
        "a": "third",
        "b": "other",
    }
    with Searcher.open(folder) as searcher:
        assert searcher.search("first", SearchOptions(mode="lexical")).hits == []


def test_keys_are_never_used_again(folder: Path, writer: CollectionWriter) -> None:
    writer.upsert([record(f"d{number}") for number in range(10)])
    with DocumentStore.open(folder, read_only=True) as store:
        before = {document.key for document in store.documents()}
        writer.delete(["d8", "d9"])
        writer.upsert([record("d8"), record("new")])
        fresh = {each.key for each in store.documents() if each.id in ("d8", "new")}
    assert not before & fresh


def test_a_hundred_thousand_ids_with_a_few_repeated_are_no_work_to_compare(
    folder: Path, writer: CollectionWriter
) -> None:
    records = [record(f"d{number % 1990}", "t") for number in range(2000)]
    written = writer.upsert(records)
    assert (written.inserted, written.faults) == (1990, ())
    assert writer.delete(f"d{number % 99_990}" for number in range(100_000)) == 1990


def test_text_is_kept_as_batches_keep_it(folder: Path, writer: CollectionWriter) -> None:
    written = writer.upsert([record("a", "nul \0 and \ud800 caf\u00e9", note="\ud800 x")])
    assert written.faults == ()
    assert stored(folder)["a"] == ("nul \ufffd and \ufffd caf\u00e9", {"note": "\ufffd x"})


def test_a_cut_text_is_told(writer: CollectionWriter) -> None:
    written = writer.upsert([record("long", "word " * 40), record("short", "word")])
    assert [(cut.id, cut.tokens, cut.kept_tokens) for cut in written.truncated] == [
        ("long", 40, 16)
    ]


class FaultyEncoder:
    """The word encoder, but it raises for some texts and gives useless vectors for others."""

    def __init__(self, inner: Encoder) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, texts: Sequence[str], *, role: Any) -> Encoded:
        if any("raise" in text for text in texts):
            raise RuntimeError("cannot")
        if any("queue" in text for text in texts):
            raise StorageFullError("no text's fault")
        encoded = self._inner.encode(texts, role=role)
        for row, text in enumerate(texts):
            if "nan" in text:
                encoded.embeddings[row] = np.nan
        return encoded


def test_a_text_that_the_encoder_fails_on_does_not_lose_the_others(
    folder: Path, word_encoder: Encoder
) -> None:
    texts = [f"text {number}" for number in range(128)]
    texts[17], texts[90] = "raise", "nan"
    with CollectionWriter.open(folder, FaultyEncoder(word_encoder)) as writer:
        written = writer.upsert([record(f"d{n}", text) for n, text in enumerate(texts)])
        assert written.inserted == 126
        assert [fault.position for fault in written.faults] == [17, 90]
        with pytest.raises(StorageFullError):  # not taken for a fault of each text
            writer.upsert([record("a", "queue"), record("b", "text")])
        with Searcher.open(folder, word_encoder) as searcher:
            assert searcher.search("text 5").hits[0].id == "d5"
    assert verify_collection(folder) == []


def test_an_encoder_that_fails_on_everything_is_an_error(
    folder: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(texts: Sequence[str], *, role: str) -> Encoded:
        raise RuntimeError("broken")

    with CollectionWriter.open(folder, word_encoder) as writer:
        monkeypatch.setattr(word_encoder, "encode", fail)
        with pytest.raises(EncoderOutputError, match="broken"):
            writer.upsert([record("a")])
    assert stored(folder) == {}


def test_fields_are_typed_once_and_for_all_writers(
    folder: Path, writer: CollectionWriter, word_encoder: Encoder
) -> None:
    with CollectionWriter.open(folder, word_encoder) as other:
        early = other.prepare([record("text", year="soon"), record("none"), record("n", tag="t")])
        writer.upsert([record("a", year=1999), record("blank", " ", lost=True)])
        assert writer.fields == {"year": "number"}
        written = other.commit(early)
        assert [(fault.position, fault.id) for fault in written.faults] == [(0, "text")]
        assert "a finite number" in written.faults[0].reason
        assert other.fields == writer.fields == {"year": "number", "tag": "string"}
        assert other.commit(early).faults == written.faults
    assert list(stored(folder)) == ["a", "none", "n"]


def test_a_field_beyond_the_most_that_there_may_be_is_a_fault(
    folder: Path, writer: CollectionWriter, word_encoder: Encoder
) -> None:
    with CollectionWriter.open(folder, word_encoder) as other:
        early = other.prepare([record("b", **{f"b{n}": n for n in range(6)})])
        writer.upsert([record("a", **{f"a{n}": n for n in range(250)})])
        writer.upsert([record("c", last=1)])
        assert "one more than 256" in other.commit(early).faults[0].reason
    assert len(writer.fields) == 251
    assert list(stored(folder)) == ["a", "c"]


def test_nothing_is_known_of_a_field_until_a_row_has_it(
    folder: Path, writer: CollectionWriter
) -> None:
    generation = writer.upsert([record("a")]).generation
    written = writer.upsert([record("b", " ", year=1)])
    assert (written.inserted, len(written.faults)) == (0, 1)
    assert writer.fields == {}
    assert writer.upsert([]).inserted == 0
    assert writer.upsert([record("c", year=1)]).generation > generation
    assert CollectionManifest.read(folder / "collection.json").fields == {"year": "number"}


def test_deleting_by_a_filter_takes_what_matches_and_nothing_else(
    folder: Path, writer: CollectionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.writer._DELETED_AT_ONCE", 3)
    writer.upsert([record(f"d{number}", f"text {number}", year=number) for number in range(10)])
    compact(folder)
    writer.upsert([record(f"e{number}", "text", year=number) for number in range(10)])
    writer.upsert([record("d9", "text", year=1), record("none")])
    wanted = parse_filter({"year": {"$gte": 4}}, writer.fields)
    assert writer.delete_matching(wanted) == 11
    assert writer.delete_matching(wanted) == 0
    assert sorted(stored(folder)) == ["d0", "d1", "d2", "d3", "d9", "e0", "e1", "e2", "e3", "none"]
    with pytest.raises(FilterError):
        parse_filter({"never": 1}, writer.fields)
    assert verify_collection(folder) == []


def test_a_row_that_is_replaced_while_a_filter_deletes_stays(
    folder: Path, writer: CollectionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_index.writer._DELETED_AT_ONCE", 1)
    writer.upsert([record(f"d{number}", "old", year=1) for number in range(4)])
    wanted = parse_filter({"year": 1}, writer.fields)
    plain, replaced = writer._commits.run, []

    def replace_then_run(work: Any) -> Any:
        if not replaced:
            replaced.append(writer.folder)
            writer.upsert([record("d3", "new", year=1)])
        return plain(work)

    monkeypatch.setattr(writer._commits, "run", replace_then_run)
    assert writer.delete_matching(wanted) == 3
    assert stored(folder) == {"d3": ("new", {"year": 1})}


@pytest.mark.parametrize("indexed", [False, True])
def test_a_filter_deletes_from_the_collection_that_lies_there_now(
    indexed: bool, folder: Path, writer: CollectionWriter, word_encoder: Encoder
) -> None:
    writer.upsert([record("old", year=2)])
    wanted = parse_filter({"year": 1}, writer.fields)  # nothing in the old one passes
    remove_collection(folder)
    make(folder, word_encoder)
    with CollectionWriter.open(folder, word_encoder) as other:
        other.upsert([record("new", year=1), record("newer", year=3)])
    if indexed:
        compact(folder)
    assert writer.delete_matching(wanted) == 1
    assert stored(folder).keys() == {"newer"}


def parts(folder: Path) -> dict[str, list[str]]:
    """The texts of each document's parts; their numbers must have no gap."""
    found: dict[str, dict[int, str]] = {}
    for part, (text, metadata) in stored(folder).items():
        assert part == f"{metadata['parent']}#{metadata['part']}"
        found.setdefault(metadata["parent"], {})[metadata["part"]] = text
    for numbered in found.values():
        assert sorted(numbered) == list(range(1, len(numbered) + 1))
    return {each: [numbered[n] for n in sorted(numbered)] for each, numbered in found.items()}


def test_parts_of_a_document_come_and_go_together(tmp_path: Path, word_encoder: Encoder) -> None:
    folder = make(tmp_path / "c", word_encoder, chunking=CHUNKING)
    with CollectionWriter.open(folder, word_encoder) as writer:
        long = " ".join(f"w{number}" for number in range(80))
        written = writer.upsert([record("a", long, year=1), record("a#1", "one two", year=2)])
        assert (written.inserted, len(parts(folder)["a"])) == (2, 20)
        written = writer.upsert([record("a", "a b c d e f", year=1), record("part", part=1)])
        assert (written.inserted, written.replaced, len(written.faults)) == (0, 1, 1)
        assert parts(folder) == {"a": ["a b c d ", "e f"], "a#1": ["one two"]}
        assert writer.delete(["a"]) == 1
        assert parts(folder) == {"a#1": ["one two"]}
        writer.upsert([record("b", long, year=1)])
        wanted = parse_filter({"part": {"$gte": 20}}, writer.fields)
        assert writer.delete_matching(wanted) == 1
        assert parts(folder) == {"a#1": ["one two"]}
    with CollectionWriter.open(folder) as deleting:
        assert deleting.delete(["a#1"]) == 1
    assert stored(folder) == {}
    assert verify_collection(folder) == []


def test_writes_are_refused_before_searches_have_too_much_to_compare(
    folder: Path, word_encoder: Encoder
) -> None:
    with CollectionWriter.open(folder, word_encoder, max_backlog=10) as writer:
        writer.upsert([record(f"d{number}") for number in range(8)])
        with pytest.raises(BacklogFullError, match=r"8 rows .* 3 more .* limit of 10"):
            writer.upsert([record(f"e{number}") for number in range(3)])
        ready = [writer.prepare([record(name), record(f"{name}2")]) for name in "ef"]
        writer.commit(ready[0])
        with pytest.raises(BacklogFullError):
            writer.commit(ready[1])
        assert writer.delete(["d0"]) == 1  # room or not
        compact(folder)
        assert writer.commit(ready[1]).inserted == 2
        assert writer.backlog == Backlog(rows=2, deletions=0, limit=10)
    assert len(stored(folder)) == 11


def test_more_than_one_write_may_have_is_refused_as_such_however_much_room_there_is(
    folder: Path, word_encoder: Encoder
) -> None:
    records = [record(f"d{number}") for number in range(10)]
    with CollectionWriter.open(folder, word_encoder, max_backlog=10) as writer:
        with pytest.raises(WriteTooLargeError, match=r"10 documents .* at most 9"):
            writer.upsert(records)
        assert writer.upsert(records[:9]).inserted == 9
    assert len(stored(folder)) == 9
    with CollectionWriter.open(folder, word_encoder) as roomy:
        ready = roomy.prepare(records)
        roomy._max_backlog = 10  # as where a smaller index has taken the place of a large one
        with pytest.raises(WriteTooLargeError):
            roomy.commit(ready)


def test_a_document_of_more_parts_than_a_write_may_have_keeps_no_other_out(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    folder = make(tmp_path / "c", word_encoder, chunking=CHUNKING)
    long = " ".join(f"w{number}" for number in range(80))  # 20 parts
    with CollectionWriter.open(folder, word_encoder, max_backlog=20) as writer:
        written = writer.upsert([record("a", long, year=1), record("b", "short", year="MMXXVI")])
        assert [(fault.position, fault.reason) for fault in written.faults] == [
            (0, "text has 20 parts, expected at most 18; make several documents of it")
        ]
        assert writer.fields["year"] == "string"  # what is refused decides no type
    assert parts(folder) == {"b": ["short"]}


@pytest.mark.parametrize("count", [0, 9_999, 50_000, 199_999, 200_000, 700_000, 10**7])
def test_where_the_largest_write_finds_no_room_a_compaction_is_due(count: int) -> None:
    backlog = Backlog(rows=0, deletions=0, limit=backlog_limit(count))
    waiting = backlog.limit - backlog.largest_write + 1
    index = {"rows": count, "deleted": 0} if count else None
    info = {"deleted_count": 0, "tombstone_count": 0, "damage": [], "index": index}
    assert needs_compaction({**info, "delta_count": waiting}, age=31)


def test_rows_that_have_gone_again_take_no_room(folder: Path, word_encoder: Encoder) -> None:
    with CollectionWriter.open(folder, word_encoder, max_backlog=10) as writer:
        for _ in range(10):
            assert len(writer.upsert([record(f"d{n}") for n in range(4)]).faults) == 0
        writer.upsert([record(f"e{n}") for n in range(2)])
        assert (writer.backlog.rows, writer.backlog.full) == (6, False)
        with pytest.raises(BacklogFullError, match="6 rows"):
            writer.upsert([record(f"f{n}") for n in range(5)])


def test_a_snapshot_that_cannot_be_read_hides_no_backlog(
    folder: Path, writer: CollectionWriter
) -> None:
    writer.upsert([record("a")])
    compact(folder)
    writer.upsert([record("b"), record("a")])
    assert (writer.backlog.rows, writer.backlog.deletions) == (2, 1)
    (folder / "snapshots" / "1" / "snapshot.json").write_text("{}")
    assert (writer.backlog.rows, writer.backlog.deletions) == (3, 1)


def test_a_collection_that_is_not_there_or_not_ours_is_not_opened(
    tmp_path: Path, folder: Path, word_encoder: Encoder
) -> None:
    other = type("Other", (type(word_encoder),), {"fingerprint": "f" * 64})()
    with pytest.raises(EncoderMismatchError):
        CollectionWriter.open(folder, other)
    with pytest.raises(CollectionNotFoundError):
        CollectionWriter.open(tmp_path / "absent", word_encoder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CollectionNotFoundError):
        CollectionWriter.open(tmp_path / "empty", word_encoder)
    with (
        CollectionWriter.open(folder) as deleting,
        pytest.raises(ValueError, match="without an encoder"),
    ):
        deleting.upsert([record("a")])


def test_a_store_older_than_its_snapshot_is_not_written_to(
    tmp_path: Path, folder: Path, word_encoder: Encoder
) -> None:
    backup = tmp_path / "backup"
    with CollectionWriter.open(folder, word_encoder) as writer:
        writer.upsert([record("a")])
    shutil.copy(folder / "documents.sqlite", backup)
    with CollectionWriter.open(folder, word_encoder) as writer:
        writer.upsert([record("b")])
    compact(folder)
    shutil.copy(backup, folder / "documents.sqlite")
    with pytest.raises(DamagedError, match="older copy"):
        CollectionWriter.open(folder, word_encoder)


def test_a_clock_that_goes_back_changes_nothing(
    folder: Path, writer: CollectionWriter, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = writer.upsert([record("a", "before")])
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    second = writer.upsert([record("a", "after", year=1)])
    assert second.generation > first.generation
    compact(folder)
    writer.upsert([record("b", "later")])
    with Searcher.open(folder, word_encoder) as searcher:
        assert {hit.text for hit in searcher.search("after").hits} == {"after", "later"}


def test_searches_beside_writes_see_committed_states_alone(
    folder: Path, word_encoder: Encoder
) -> None:
    """Two documents are always written together; a reply must never mix two versions."""
    errors: list[BaseException] = []
    done = threading.Event()

    def search() -> None:
        try:
            with Searcher.open(folder, word_encoder) as searcher:
                while not done.is_set():
                    texts = {hit.text for hit in searcher.search("version").hits}
                    assert len(texts) <= 1, texts
        except BaseException as error:
            errors.append(error)
            raise

    with CollectionWriter.open(folder, word_encoder) as writer:
        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(60):
            text = f"version {number}"
            writer.upsert([record("x", text), record("y", text)])
            if number % 30 == 15:
                compact(folder)
            if number % 10 == 5:
                writer.delete(["x", "y"])
        done.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert verify_collection(folder) == []


def test_threads_that_write_at_once_lose_nothing_and_fail_alone(
    folder: Path, writer: CollectionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: dict[str, Any] = {}
    ready = {name: writer.prepare([record(f"{name}{n}") for n in range(3)]) for name in "abcdef"}
    stale = Prepared(ready["f"].encoded, writer._open())
    ready["f"] = stale  # of another opening, as after a replacement

    def commit(name: str) -> None:
        try:
            outcomes[name] = writer.commit(ready[name])
        except LaminaError as error:
            outcomes[name] = error

    threads = [threading.Thread(target=commit, args=(name,)) for name in ready]
    with writer._changing:  # so that most of them wait, and then share a transaction
        for thread in threads:
            thread.start()
        while len(writer._commits._waiting) < len(threads) - 1:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert isinstance(outcomes.pop("f"), CollectionNotFoundError)
    assert [written.inserted for written in outcomes.values()] == [3] * 5
    assert len({written.generation for written in outcomes.values()}) == 2
    assert len(stored(folder)) == 15
    stale.opened.close()


def test_a_folder_that_cannot_be_written_is_told(
    folder: Path, writer: CollectionWriter, read_only: Any, word_encoder: Encoder
) -> None:
    writer.upsert([record("a")])
    with pytest.raises(LaminaError, match="cannot be written"):
        CollectionWriter.open(read_only(folder), word_encoder)


def test_a_full_disk_stores_nothing_of_a_request_and_harms_nothing(
    small_disk: Path, word_encoder: Encoder
) -> None:
    folder = make(small_disk / "c", word_encoder)
    with CollectionWriter.open(folder, word_encoder) as writer:
        acknowledged = 0

        def fill() -> None:
            nonlocal acknowledged
            while acknowledged < 10_000:
                ids = [f"{acknowledged}-{number}" for number in range(8)]
                writer.upsert([record(each, "text " * 90, year=1) for each in ids])
                acknowledged += 1

        with pytest.raises(StorageFullError, match="nothing of this request is stored"):
            fill()
        assert len(stored(folder)) == 8 * acknowledged
        with Searcher.open(folder, word_encoder) as searcher:
            assert searcher.count == 8 * acknowledged
    assert verify_collection(folder) == []


WORDS = st.lists(st.sampled_from(["red", "blue", "fish", "bird", "sky"]), max_size=9)
RECORDS = st.lists(
    st.tuples(st.sampled_from("abcdef"), WORDS, st.sampled_from([None, 1, 2, 3, "late"])),
    max_size=5,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), RECORDS),
        st.tuples(st.just("delete"), st.lists(st.sampled_from("abcdefg"), max_size=4)),
        st.tuples(st.just("filter"), st.integers(0, 4)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=10,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps=STEPS, chunked=st.booleans())
def test_a_collection_is_what_a_dictionary_would_be(
    word_encoder: Encoder, memory_disk: Path | None, steps: list[tuple[str, Any]], chunked: bool
) -> None:
    with tempfile.TemporaryDirectory(dir=memory_disk) as name:
        chunking = CHUNKING if chunked else None
        folder = make(Path(name) / "c", word_encoder, chunking=chunking, fields={"year": "number"})
        model: dict[str, tuple[list[str], object]] = {}
        writer = CollectionWriter.open(folder, word_encoder)
        for step, value in steps:
            before = dict(model)
            if step == "upsert":
                given_records, bad = [], 0
                for each, words, year in value:
                    metadata = {} if year is None else {"year": year}
                    given_records.append(record(each, " ".join(words), **metadata))
                    if words and year != "late":
                        model.pop(each, None)
                        model[each] = words, year
                    else:
                        bad += 1
                written = writer.upsert(given_records)
                assert len(written.faults) == bad
                assert written.inserted == len(model.keys() - before.keys())
            elif step == "delete":
                gone = set(value) & model.keys()
                assert writer.delete(value) == len(gone)
                model = {each: kept for each, kept in model.items() if each not in gone}
            elif step == "filter":
                gone = {e for e, (_, year) in model.items() if year is not None and year >= value}
                wanted = parse_filter({"year": {"$gte": value}}, writer.fields)
                assert writer.delete_matching(wanted) == len(gone)
                model = {each: kept for each, kept in model.items() if each not in gone}
            elif step == "compact":
                compact(folder)
            else:
                writer.close()
                writer = CollectionWriter.open(folder, word_encoder)
        writer.close()
        if chunked:
            found = {each: "".join(texts).split() for each, texts in parts(folder).items()}
        else:
            found = {each: text.split() for each, (text, _) in stored(folder).items()}
        assert found == {each: words for each, (words, _) in model.items()}
        assert verify_collection(folder) == []
