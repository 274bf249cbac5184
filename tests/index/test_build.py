from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lamina_index import backlog, build_blocks, build_site
from lamina_index.build import BuildStatus, build_collection
from lamina_index.build_plan import BuildPlan
from lamina_index.build_report import BuildReport
from lamina_index.build_site import RESERVE_FILE, claim_site
from lamina_index.collection import building_folder, writer_lock
from lamina_index.corpus import CorpusOptions
from lamina_index.encoder import Encoder, OnnxEncoder
from lamina_index.errors import (
    CollectionBusyError,
    CollectionExistsError,
    CollectionNotFoundError,
    CorpusError,
    DamagedError,
    EncoderMismatchError,
    IndexFactoryError,
    LaminaError,
)
from lamina_index.manifest import Chunking, CollectionManifest, EncoderReference
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from lamina_index.text import TEXT_VERSION

Row = Mapping[str, Any]


def write_rows(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def numbered(count: int, start: int = 0) -> list[Row]:
    return [{"id": f"d{n}", "text": f"text number {n}"} for n in range(start, start + count)]


def stored(collection: Path) -> dict[str, str]:
    with DocumentStore.open(collection, read_only=True) as store:
        return {document.id: document.text for document in store.documents()}


def found(collection: Path, encoder: Encoder, query: str, top_k: int = 10) -> list[str]:
    with Searcher.open(collection, encoder) as searcher:
        return [hit.id for hit in searcher.search(query, SearchOptions(top_k=top_k)).hits]


def test_every_row_is_stored_indexed_and_found(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(50))
    build_collection([corpus], tmp_path / "c", word_encoder)
    assert stored(tmp_path / "c") == {row["id"]: row["text"] for row in numbered(50)}
    assert found(tmp_path / "c", word_encoder, "text number 31")[0] == "d31"
    assert len(found(tmp_path / "c", word_encoder, "text", top_k=100)) == 50


def test_the_report_adds_up_and_lies_in_the_collection(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    rows = [*numbered(8), {"id": "d3", "text": "again"}, {"id": "x"}, {"id": "y", "text": " "}]
    corpus = write_rows(tmp_path / "c.jsonl", rows)
    report = build_collection([corpus], tmp_path / "c", word_encoder)
    assert (report.rows_read, report.rows_indexed, report.rows_rejected) == (11, 9, 2)
    assert (report.rows_replaced, report.documents, report.mode) == (1, 8, "new")
    assert report.index["recall@10"] == 1.0
    assert report.index["factory"] == "Flat"
    assert set(report.stage_seconds) == {"read", "encode", "store", "snapshot"}
    assert report.peak_memory_bytes > 10_000_000
    assert BuildReport.read(tmp_path / "c" / "build.json") == report


def test_an_existing_collection_is_touched_only_when_asked(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    build_collection([corpus], tmp_path / "c", word_encoder)
    with pytest.raises(CollectionExistsError, match=r"--append.*--replace"):
        build_collection([corpus], tmp_path / "c", word_encoder)
    assert len(stored(tmp_path / "c")) == 3


def test_a_collection_that_appeared_during_a_build_is_not_replaced(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    build_collection([write_rows(tmp_path / "o.jsonl", numbered(1))], tmp_path / "o", word_encoder)

    def appear(status: BuildStatus) -> None:
        if (tmp_path / "o").exists():
            (tmp_path / "o").rename(tmp_path / "c")

    with pytest.raises(CollectionExistsError, match=r"--append.*--replace"):
        build_collection([corpus], tmp_path / "c", word_encoder, on_progress=appear)
    assert len(stored(tmp_path / "c")) == 1
    report = build_collection([corpus], tmp_path / "c", word_encoder, mode="replace")
    assert (report.rows_resumed, len(stored(tmp_path / "c"))) == (0, 3)
    assert not (tmp_path / ".c.building").exists()


def test_the_end_of_a_build_leaves_another_ones_reserve_alone(
    tmp_path: Path,
) -> None:
    plan = BuildPlan(
        append=False,
        inputs=[],
        options={},
        chunking=None,
        encoder=EncoderReference(name="x", precision="fp32", fingerprint="f"),
    )
    manifest = CollectionManifest(
        encoder=plan.encoder, dimension=32, text_version=TEXT_VERSION, created="2026-01-01"
    )
    building = building_folder(tmp_path / "c")
    with claim_site(tmp_path / "c", "new", plan, manifest, resume=False) as site:
        site.publish()
        building.mkdir()  # another build has begun
        (building / RESERVE_FILE).touch()
    assert (building / RESERVE_FILE).exists()
    with claim_site(tmp_path / "d", "new", plan, manifest, resume=False) as site:
        (building_folder(tmp_path / "d") / RESERVE_FILE).unlink()
        site.publish()


@pytest.mark.parametrize("mode", ["new", "replace"])
def test_a_folder_that_is_no_collection_is_never_written_over(
    mode: Any, tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(CollectionExistsError, match=r"no collection|not a collection"):
        build_collection([corpus], tmp_path / "letters", word_encoder, mode=mode)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "dear"
    assert not (tmp_path / ".letters.building").exists()


def test_append_adds_new_ids_and_replaces_known_ones(tmp_path: Path, word_encoder: Encoder) -> None:
    first = write_rows(tmp_path / "1.jsonl", numbered(5))
    second = write_rows(
        tmp_path / "2.jsonl", [{"id": "d4", "text": "fresh apples"}, {"id": "n", "text": "pears"}]
    )
    build_collection([first], tmp_path / "c", word_encoder)
    report = build_collection([second], tmp_path / "c", word_encoder, mode="append")
    assert (report.rows_indexed, report.rows_replaced, report.documents) == (2, 1, 6)
    assert stored(tmp_path / "c")["d4"] == "fresh apples"
    assert found(tmp_path / "c", word_encoder, "text number 4", top_k=6)[0] != "d4"
    with Searcher.open(tmp_path / "c") as searcher:
        assert searcher.info()["delta_count"] == 0


def test_append_needs_a_collection(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    with pytest.raises(CollectionNotFoundError, match="without --append"):
        build_collection([corpus], tmp_path / "c", word_encoder, mode="append")
    assert not (tmp_path / "c").exists()


def test_append_with_another_encoder_of_the_same_dimension_is_refused(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    build_collection([corpus], tmp_path / "c", word_encoder)
    other = type("Other", (type(word_encoder),), {})()
    other.name, other.fingerprint = "other words", "f" * 64
    with pytest.raises(EncoderMismatchError, match=r"words.*other words"):
        build_collection([corpus], tmp_path / "c", other, mode="append")


def test_replace_leaves_nothing_of_the_old_collection(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    build_collection([write_rows(tmp_path / "1.jsonl", numbered(5))], tmp_path / "c", word_encoder)
    report = build_collection(
        [write_rows(tmp_path / "2.jsonl", numbered(2, start=90))],
        tmp_path / "c",
        word_encoder,
        mode="replace",
    )
    assert report.documents == 2
    assert set(stored(tmp_path / "c")) == {"d90", "d91"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.jsonl", "2.jsonl", "c"]


@pytest.mark.parametrize("mode", ["append", "replace"])
def test_what_a_killed_replacement_left_beside_is_removed_by_the_next_build(
    mode: Any, tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(5))
    build_collection([corpus], tmp_path / "c", word_encoder)
    shutil.copytree(tmp_path / "c", tmp_path / ".c.old")
    build_collection([corpus], tmp_path / "c", word_encoder, mode=mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "c.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "2.jsonl",
            '{"id": "a", "body": "x"}',
            r"not one of 1 rows .*stays .*2\.jsonl:1: no .text",
        ),
        ("2.jsonl", "\n\n", r"2\.jsonl: not one row, so .*stays as it was"),
        ("2.csv", "id,text\n", r"2\.csv: not one row, so .*stays as it was"),
    ],
)
def test_a_replacement_that_would_hold_nothing_leaves_the_old_collection(
    name: str, content: str, told: str, tmp_path: Path, word_encoder: Encoder
) -> None:
    build_collection([write_rows(tmp_path / "1.jsonl", numbered(5))], tmp_path / "c", word_encoder)
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=told):
        build_collection([tmp_path / name], tmp_path / "c", word_encoder, mode="replace")
    assert len(stored(tmp_path / "c")) == 5
    assert not (tmp_path / ".c.building").exists()


def test_a_new_collection_of_rejected_rows_alone_is_not_made(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    with pytest.raises(CorpusError, match=r'3 rows.*c is not made; .*c\.jsonl:1: no "key"'):
        build_collection(
            [corpus], tmp_path / "c", word_encoder, options=CorpusOptions(id_field="key")
        )
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def test_a_new_collection_of_a_header_alone_is_empty(tmp_path: Path, word_encoder: Encoder) -> None:
    (tmp_path / "c.csv").write_text("id,text\n")
    report = build_collection([tmp_path / "c.csv"], tmp_path / "c", word_encoder)
    assert (report.rows_read, report.documents) == (0, 0)
    assert found(tmp_path / "c", word_encoder, "text") == []


def test_inputs_whose_names_are_not_utf8_are_read_and_named_with_escapes(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    notes = tmp_path / os.fsdecode(b"not\xe9s")
    notes.mkdir()
    (notes / os.fsdecode(b"na\xefve.md")).write_text("a note")
    (notes / os.fsdecode(b"\xff.md")).write_bytes(b"\xff")
    jsonl = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    jsonl.write_text('{"id": "a", "text": "one"}\n{"id": "b"}\n')
    lines = tmp_path / os.fsdecode(b"caf\xe9.txt")
    lines.write_text("two\n")
    inputs = [jsonl, lines, notes]
    report = build_collection(inputs, tmp_path / "c", word_encoder)
    assert set(stored(tmp_path / "c")) == {"a", r"caf\xe9.txt:1", r"na\xefve.md"}
    rejects = (tmp_path / "c" / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["file"] for line in rejects] == [
        rf"{tmp_path}/caf\xe9.jsonl",
        rf"{tmp_path}/not\xe9s/\xff.md",
    ]
    assert build_collection(inputs, tmp_path / "c", word_encoder, resume=True) == report


def test_of_equal_ids_the_last_one_counts_within_and_across_files_and_runs(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    first = write_rows(
        tmp_path / "1.jsonl",
        [
            {"id": "a", "text": "oldest plum"},
            {"id": "b", "text": "fig"},
            {"id": "a", "text": "old"},
        ],
    )
    second = write_rows(tmp_path / "2.jsonl", [{"id": "a", "text": "newer cherry"}])
    third = write_rows(tmp_path / "3.jsonl", [{"id": "a", "text": "newest grape"}])
    report = build_collection([first, second], tmp_path / "c", word_encoder)
    assert (report.rows_indexed, report.rows_replaced, report.documents) == (4, 2, 2)
    assert list(stored(tmp_path / "c").items()) == [("b", "fig"), ("a", "newer cherry")]
    build_collection([third], tmp_path / "c", word_encoder, mode="append")
    with Searcher.open(tmp_path / "c", word_encoder) as searcher:
        hits = searcher.search("oldest plum newer cherry", SearchOptions(top_k=10)).hits
    assert sorted((hit.id, hit.text) for hit in hits) == [("a", "newest grape"), ("b", "fig")]


def test_a_blank_row_does_not_replace_the_good_one_before_it(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    rows = [{"id": "a", "text": "good"}, {"id": "a", "text": "..."}]
    report = build_collection(
        [write_rows(tmp_path / "c.jsonl", rows)], tmp_path / "c", word_encoder
    )
    assert (report.rows_rejected, report.rows_replaced) == (1, 0)
    assert stored(tmp_path / "c") == {"a": "good"}


def test_no_key_ever_names_two_documents(tmp_path: Path, word_encoder: Encoder) -> None:
    build_collection([write_rows(tmp_path / "1.jsonl", numbered(10))], tmp_path / "c", word_encoder)
    with DocumentStore.open(tmp_path / "c") as store:
        before = {document.key for document in store.documents()}
        assert store.delete(["d8", "d9"]) == 2
    more = write_rows(tmp_path / "2.jsonl", numbered(2, start=20))
    build_collection([more], tmp_path / "c", word_encoder, mode="append")
    with DocumentStore.open(tmp_path / "c") as store:
        added = {document.key for document in store.documents() if document.id in ("d20", "d21")}
    assert len(added) == 2
    assert not added & before


def test_metadata_types_are_found_and_kept(tmp_path: Path, word_encoder: Encoder) -> None:
    first = write_rows(tmp_path / "1.jsonl", [{"id": "a", "text": "one", "year": 1999}])
    second = write_rows(
        tmp_path / "2.jsonl",
        [{"id": "b", "text": "two", "year": "soon"}, {"id": "c", "text": "three", "tags": ["x"]}],
    )
    build_collection([first], tmp_path / "c", word_encoder)
    report = build_collection([second], tmp_path / "c", word_encoder, mode="append")
    assert report.rows_rejected == 1
    manifest = CollectionManifest.read(tmp_path / "c" / "collection.json")
    assert manifest.fields == {"year": "number", "tags": "strings"}
    with DocumentStore.open(tmp_path / "c") as store:
        document = store.get("c")
    assert document is not None
    assert document.metadata == {"tags": ["x"]}


def test_cut_texts_are_reported_row_by_row(tmp_path: Path, word_encoder: Encoder) -> None:
    long = " ".join(f"w{n}" for n in range(40))
    rows = [*numbered(3), {"id": "long", "text": long}]
    report = build_collection(
        [write_rows(tmp_path / "c.jsonl", rows)], tmp_path / "c", word_encoder
    )
    cut = report.truncation
    assert (cut.texts, cut.longest_tokens, cut.max_tokens) == (1, 40, 16)
    lines = (tmp_path / "c" / "truncated.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"id": "long", "tokens": 40, "kept_tokens": 16}]


def test_long_texts_are_split_into_parts_that_know_their_parent(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    chunking = Chunking(tokens=4, overlap=0)
    first = write_rows(
        tmp_path / "1.jsonl",
        [
            {"id": "long", "text": "one two three. four five six. seven eight nine.", "n": 1},
            {"id": "short", "text": "ten"},
        ],
    )
    report = build_collection([first], tmp_path / "c", word_encoder, chunking=chunking)
    assert (report.rows_indexed, report.documents, report.truncation.texts) == (2, 4, 0)
    with DocumentStore.open(tmp_path / "c") as store:
        part = store.get("long#2")
    assert part is not None
    assert part.text.strip() == "four five six."
    assert part.metadata == {"parent": "long", "part": 2, "n": 1}
    shorter = write_rows(tmp_path / "2.jsonl", [{"id": "long", "text": "now just this"}])
    report = build_collection([shorter], tmp_path / "c", word_encoder, mode="append")
    assert (report.rows_replaced, report.documents) == (1, 2)
    assert stored(tmp_path / "c") == {"short#1": "ten", "long#1": "now just this"}


def test_parts_that_would_not_fit_are_refused(tmp_path: Path, word_encoder: Encoder) -> None:
    rows: list[Row] = [
        {"id": "a", "text": "one", "parent": "mine"},
        {"id": "b" * 510, "text": "two"},
        {"id": "c", "text": "three"},
    ]
    corpus = write_rows(tmp_path / "c.jsonl", rows)
    with pytest.raises(ValueError, match="longer than words reads: 16"):
        build_collection(
            [corpus], tmp_path / "x", word_encoder, chunking=Chunking(tokens=17, overlap=0)
        )
    chunking = Chunking(tokens=4, overlap=1)
    report = build_collection([corpus], tmp_path / "c", word_encoder, chunking=chunking)
    assert report.rows_rejected == 2
    assert stored(tmp_path / "c") == {"c#1": "three"}
    with pytest.raises(CollectionExistsError, match="split"):
        build_collection(
            [corpus],
            tmp_path / "c",
            word_encoder,
            chunking=Chunking(tokens=5, overlap=1),
            mode="append",
        )


def test_a_bad_factory_is_refused_before_any_work(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    with pytest.raises(IndexFactoryError, match="NSG"):
        build_collection([corpus], tmp_path / "c", word_encoder, factory="NSG99999x")
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize("factory", ["auto", "Flat", "SQ8", "HNSW32,SQ8", "IVF1024,SQ8"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_tiny_corpus_works_with_any_factory(
    factory: str, count: int, tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(count))
    report = build_collection([corpus], tmp_path / "c", word_encoder, factory=factory)
    assert report.documents == count
    assert sorted(found(tmp_path / "c", word_encoder, "text")) == [f"d{n}" for n in range(count)]


def test_progress_counts_rows_up_to_the_total(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(2500))
    told: list[BuildStatus] = []
    build_collection([corpus], tmp_path / "c", word_encoder, on_progress=told.append)
    rows = [status.rows for status in told if status.stage == "rows"]
    assert rows == sorted(rows)
    assert len(rows) == 4  # at the start and after each of three blocks
    assert (rows[-1], told[0].total_rows) == (2500, 2500)
    assert told[-1] == BuildStatus("index", 2500, 2500)


def test_two_builds_of_one_collection_do_not_mix(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    (tmp_path / ".c.building").mkdir()
    with (
        writer_lock(tmp_path / ".c.building"),
        pytest.raises(CollectionBusyError, match="another process"),
    ):
        build_collection([corpus], tmp_path / "c", word_encoder)
    build_collection([corpus], tmp_path / "c", word_encoder)
    with (
        writer_lock(tmp_path / "c"),
        pytest.raises(CollectionBusyError, match="another process"),
    ):
        build_collection([corpus], tmp_path / "c", word_encoder, mode="append")


def test_a_replacement_waits_for_a_compaction_to_end(tmp_path: Path, word_encoder: Encoder) -> None:
    build_collection([write_rows(tmp_path / "1.jsonl", numbered(5))], tmp_path / "c", word_encoder)
    two = write_rows(tmp_path / "2.jsonl", numbered(2))
    waits = []
    with ExitStack() as compaction:
        compaction.enter_context(writer_lock(tmp_path / "c"))

        def tell(status: BuildStatus) -> None:
            if status.stage == "place":
                waits.append(len(stored(tmp_path / "c")))
                compaction.close()

        build_collection([two], tmp_path / "c", word_encoder, mode="replace", on_progress=tell)
    assert waits == [5]
    assert len(stored(tmp_path / "c")) == 2


def test_a_replacement_that_waited_in_vain_is_put_in_place_by_the_same_command(
    tmp_path: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_collection([write_rows(tmp_path / "1.jsonl", numbered(5))], tmp_path / "c", word_encoder)
    two = write_rows(tmp_path / "2.jsonl", numbered(2))
    monkeypatch.setattr(build_site, "_COMPACTION_SECONDS", 0.01)
    with (
        writer_lock(tmp_path / "c"),
        pytest.raises(CollectionBusyError, match=r"another process .*run the same command again"),
    ):
        build_collection([two], tmp_path / "c", word_encoder, mode="replace")
    assert len(stored(tmp_path / "c")) == 5
    told: list[BuildStatus] = []
    build_collection([two], tmp_path / "c", word_encoder, mode="replace", on_progress=told.append)
    assert told == []  # nothing is read or embedded again
    assert len(stored(tmp_path / "c")) == 2


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    with pytest.raises(LaminaError, match=r"c\.jsonl/.*cannot be written"):
        build_collection([corpus], corpus / "below a file", word_encoder)


def test_a_link_to_a_collection_stays_a_link(tmp_path: Path, word_encoder: Encoder) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(3))
    (tmp_path / "volume").mkdir()
    build_collection([corpus], tmp_path / "volume" / "real", word_encoder)
    (tmp_path / "link").symlink_to(tmp_path / "volume" / "real")
    more = write_rows(tmp_path / "2.jsonl", numbered(7))
    build_collection([more], tmp_path / "link", word_encoder, mode="replace")
    assert (tmp_path / "link").is_symlink()
    assert len(stored(tmp_path / "volume" / "real")) == 7
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["real"]


@pytest.mark.parametrize(
    ("count", "limit"),
    [(0, 10_000), (40_000, 10_000), (100_000, 25_000), (200_000, 50_000), (5_000_000, 50_000)],
)
def test_rows_out_of_the_index_during_an_append_are_bounded(count: int, limit: int) -> None:
    assert backlog.backlog_limit(count) == limit


def test_a_long_append_keeps_few_rows_out_of_the_index(
    tmp_path: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_blocks, "BLOCK_ROWS", 10)
    monkeypatch.setattr(backlog, "DELTA_LIMIT", 20)
    first = write_rows(tmp_path / "1.jsonl", numbered(5))
    build_collection([first], tmp_path / "c", word_encoder)
    newer_rows = []

    def look(status: BuildStatus) -> None:
        with Searcher.open(tmp_path / "c") as searcher:
            newer_rows.append(searcher.info()["delta_count"])

    more = write_rows(tmp_path / "2.jsonl", numbered(120, start=5))
    report = build_collection([more], tmp_path / "c", word_encoder, mode="append", on_progress=look)
    assert report.documents == 125
    assert max(newer_rows) == 30
    assert report.index["snapshot"] >= 4


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_every_row_gets_its_vector_whatever_the_thread_count(threads: int, tmp_path: Path) -> None:
    corpus = write_rows(tmp_path / "c.jsonl", numbered(60))
    encoder = OnnxEncoder.load(threads=threads, check=False)
    report = build_collection([corpus], tmp_path / "c", encoder)
    encoder.close()
    assert report.documents == report.index["rows"] == 60
    assert found(tmp_path / "c", encoder, "text number 47")[0] == "d47"


def test_a_cut_file_is_named_and_never_gives_a_wrong_document(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    corpus = write_rows(tmp_path / "1.jsonl", numbered(20))
    build_collection([corpus], tmp_path / "c", word_encoder)
    keys = tmp_path / "c" / "snapshots" / "1" / "keys.npy"
    keys.write_bytes(keys.read_bytes()[: keys.stat().st_size // 2])
    with pytest.raises(DamagedError, match=r"keys\.npy.*lamina index compact"):
        Searcher.open(tmp_path / "c", word_encoder)
    one = write_rows(tmp_path / "2.jsonl", [{"id": "new", "text": "entirely different words"}])
    build_collection([one], tmp_path / "c", word_encoder, mode="append")  # makes a new snapshot
    for number in range(20):
        assert found(tmp_path / "c", word_encoder, f"text number {number}", 1) == [f"d{number}"]
    database = tmp_path / "c" / "documents.sqlite"
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])
    with pytest.raises(DamagedError, match=r"documents\.sqlite"):
        build_collection([corpus], tmp_path / "c", word_encoder, mode="append")
    report = build_collection([corpus], tmp_path / "c", word_encoder, mode="replace")
    assert report.documents == 20
