"""Writes to a collection that is open elsewhere: checked, embedded, durable, whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina_index.collection import verify_collection
from lamina_index.collection_changes import create_collection, new_manifest
from lamina_index.encoder import Encoder
from lamina_index.filters import parse_filter
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from lamina_index.writer import CollectionWriter


def record(document_id: object, text: object = "a text", **metadata: object) -> dict[str, object]:
    return {"id": document_id, "text": text, **({"metadata": metadata} if metadata else {})}


def stored(folder: Path) -> dict[str, Any]:
    with DocumentStore.open(folder, read_only=True) as store:
        return {each.id: (each.text, each.metadata) for each in store.documents()}


@pytest.fixture
def folder(tmp_path: Path, word_encoder: Encoder) -> Path:
    create_collection(tmp_path / "c", new_manifest(word_encoder))
    return tmp_path / "c"


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
        assert writer.delete(["a", "c", "never"]) == 2
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
            record("also", "text", year=1.5),
        ]
    )
    assert (written.inserted, written.replaced) == (2, 0)
    assert list(stored(folder)) == ["good", "also"]
    assert [(fault.position, fault.id) for fault in written.faults] == [
        (1, None), (2, None), (3, None), (4, "blank"), (5, "mistyped"), (6, "odd"), (7, "list"),
    ]  # fmt: skip
    reasons = " | ".join(fault.reason for fault in written.faults)
    for told in ("an object", "the number 1", "text is missing", "blank", '"late"', '"colour"'):
        assert told in reasons


def test_deleting_by_a_filter_takes_what_matches_and_nothing_else(
    folder: Path, writer: CollectionWriter
) -> None:
    writer.upsert([record(f"d{number}", f"text {number}", year=number) for number in range(10)])
    wanted = parse_filter({"year": {"$gte": 4}}, writer.fields)
    assert writer.delete_matching(wanted) == 6
    assert list(stored(folder)) == ["d0", "d1", "d2", "d3"]
