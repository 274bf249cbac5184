"""Collections that are made empty, and collections that are taken away."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_index.collection import recover_swap, replaced_folder, verify_collection, writer_lock
from lamina_index.collection_changes import (
    create_collection,
    drop_removed,
    new_manifest,
    remove_collection,
)
from lamina_index.corpus import Document
from lamina_index.encoder import Encoder
from lamina_index.errors import (
    CollectionBusyError,
    CollectionExistsError,
    CollectionNotFoundError,
    EncoderMismatchError,
    StorageFullError,
)
from lamina_index.manifest import Chunking
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore

MakeCollection = Callable[..., Any]
ROW = np.eye(32, dtype=np.float32)[:1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_a_new_collection_is_empty_sound_and_bound_to_its_encoder(
    data: Path, word_encoder: Encoder
) -> None:
    manifest = new_manifest(
        word_encoder, fields={"year": "number"}, chunking=Chunking(tokens=8, overlap=2)
    )
    create_collection(data / "c", manifest)
    with Searcher.open(data / "c", word_encoder) as searcher:
        assert searcher.search("anything").hits == []
        assert searcher.fields == {"year": "number", "parent": "string", "part": "number"}
        assert searcher.info()["chunking"] == {"tokens": 8, "overlap": 2}
        with DocumentStore.open(data / "c") as store:
            store.upsert([Document("a", "text", {})], ROW)
        assert [hit.id for hit in searcher.search("text").hits] == ["a"]
    assert verify_collection(data / "c") == []
    assert [path.name for path in data.iterdir()] == ["c"]
    other = type("Other", (type(word_encoder),), {"fingerprint": "f" * 64})()
    with pytest.raises(EncoderMismatchError):
        Searcher.open(data / "c", other)


def test_what_is_there_is_not_made_anew(data: Path, word_encoder: Encoder) -> None:
    manifest = new_manifest(word_encoder)
    create_collection(data / "c", manifest)
    with DocumentStore.open(data / "c") as store:
        store.upsert([Document("a", "text", {})], ROW)
    (data / "file").write_text("kept")
    for name in ("c", "file"):
        with pytest.raises(CollectionExistsError, match="something already"):
            create_collection(data / name, manifest)
    assert (data / "file").read_text() == "kept"
    with Searcher.open(data / "c") as searcher:
        assert searcher.count == 1
    assert sorted(path.name for path in data.iterdir()) == ["c", "file"]


def test_what_a_killed_attempt_left_is_no_obstacle(data: Path, word_encoder: Encoder) -> None:
    left = data / ".c.creating"
    left.mkdir()
    (left / "documents.sqlite").write_bytes(b"half a database")
    create_collection(data / "c", new_manifest(word_encoder))
    assert [path.name for path in data.iterdir()] == ["c"]


def test_a_full_disk_leaves_nothing(small_disk: Path, word_encoder: Encoder) -> None:
    with (small_disk / "filler").open("wb") as stream:
        stream.write(bytes(shutil.disk_usage(small_disk).free - 4096))
    with pytest.raises(StorageFullError, match="was not made"):
        create_collection(small_disk / "c", new_manifest(word_encoder))
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_removed_collection_is_gone_at_once_and_open_searches_end_well(
    data: Path, make_collection: MakeCollection, word_encoder: Encoder
) -> None:
    made = make_collection("data/c")
    made.put(["a"], ROW)
    made.snapshot()
    with Searcher.open(made.folder, word_encoder) as searcher, searcher._store.reading() as reading:
        remove_collection(made.folder)
        drop_removed(data)
        assert list(data.iterdir()) == []
        assert reading.get("a") is not None
        with pytest.raises(CollectionNotFoundError, match="removed"):
            searcher.search("text")  # its only connection is taken
    with pytest.raises(CollectionNotFoundError):
        remove_collection(made.folder)


@pytest.fixture
def data_with_collection(data: Path, make_collection: MakeCollection) -> Path:
    made = make_collection("data/c")
    made.put(["a"], ROW)
    made.store.close()
    return data


def test_the_one_that_it_replaced_is_not_brought_back_in_its_place(
    data_with_collection: Path,
) -> None:
    folder = data_with_collection / "c"
    shutil.copytree(folder, replaced_folder(folder))
    remove_collection(folder)
    recover_swap(folder)
    assert not folder.exists()
    drop_removed(data_with_collection)
    assert list(data_with_collection.iterdir()) == []


def test_a_collection_that_is_being_written_by_a_build_is_not_removed(
    data_with_collection: Path,
) -> None:
    folder = data_with_collection / "c"
    with writer_lock(folder), pytest.raises(CollectionBusyError):
        remove_collection(folder)
    assert verify_collection(folder) == []


def test_of_a_link_only_the_link_is_removed(data_with_collection: Path) -> None:
    link = data_with_collection / "link"
    link.symlink_to(data_with_collection / "c")
    remove_collection(link)
    drop_removed(data_with_collection)
    assert [path.name for path in data_with_collection.iterdir()] == ["c"]
    assert verify_collection(data_with_collection / "c") == []


def test_a_folder_that_is_no_collection_is_left_alone(data: Path) -> None:
    (data / "other").mkdir()
    (data / "other" / "file").touch()
    with pytest.raises(CollectionNotFoundError):
        remove_collection(data / "other")
    assert (data / "other" / "file").exists()
