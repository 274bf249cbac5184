"""Who may write a collection, and what a replacement leaves when it is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_index.collection import (
    building_folder,
    is_collection,
    open_collection,
    publish_collection,
    recover_swap,
    verify_collection,
    writer_lock,
)
from lamina_index.errors import CollectionBusyError, CollectionNotFoundError, DamagedError
from lamina_index.searcher import Searcher

MakeCollection = Callable[..., Any]
ROW = np.eye(32, dtype=np.float32)[:1]


def collection(make_collection: MakeCollection, name: str, text: str) -> Path:
    made = make_collection(name)
    made.put(["a"], ROW, text=text)
    made.snapshot()
    made.store.close()
    folder: Path = made.folder
    return folder


def text_of(folder: Path) -> str:
    with Searcher.open(folder) as searcher:
        return searcher.search_embedding(ROW[0]).hits[0].text


def test_only_one_writer_at_a_time(tmp_path: Path) -> None:
    with writer_lock(tmp_path):
        with (
            pytest.raises(CollectionBusyError, match="another process is writing"),
            writer_lock(tmp_path),
        ):
            pass
        code = f"""
from pathlib import Path
from lamina_index.collection import writer_lock
from lamina_index.errors import CollectionBusyError
try:
    with writer_lock(Path({str(tmp_path)!r})): pass
except CollectionBusyError: print("busy")
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert done.stdout == "busy\n"
    with writer_lock(tmp_path):
        pass


def test_the_lock_goes_with_a_killed_process(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from lamina_index.collection import writer_lock
with writer_lock(Path({str(tmp_path)!r})): os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with writer_lock(tmp_path):
        pass


def test_a_folder_that_is_not_there_cannot_be_locked(tmp_path: Path) -> None:
    with pytest.raises(CollectionNotFoundError), writer_lock(tmp_path / "absent"):
        pass


def test_a_new_collection_takes_its_place(make_collection: MakeCollection, tmp_path: Path) -> None:
    target = tmp_path / "data"
    publish_collection(collection(make_collection, ".data.building", "new"), target)
    assert building_folder(target) == tmp_path / ".data.building"
    assert text_of(target) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_replacement_takes_the_old_ones_place(
    make_collection: MakeCollection, tmp_path: Path
) -> None:
    target = collection(make_collection, "data", "old")
    with Searcher.open(target) as before:
        publish_collection(collection(make_collection, ".data.building", "new"), target)
        assert before.search_embedding(ROW[0]).hits[0].text == "old"  # until it is opened again
    assert text_of(target) == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_searcher_never_mixes_a_collection_with_the_one_that_replaced_it(
    make_collection: MakeCollection,
) -> None:
    target = collection(make_collection, "data", "old")
    with Searcher.open(target) as before:
        publish_collection(collection(make_collection, ".data.building", "new"), target)
        with (
            before._store.reading(),
            pytest.raises(CollectionNotFoundError, match="taken its place"),
        ):
            before.search_embedding(ROW[0])  # needs a second connection, and finds the new store
        assert before.search_embedding(ROW[0]).hits[0].text == "old"


def test_a_collection_that_is_being_written_is_not_replaced(
    make_collection: MakeCollection,
) -> None:
    target = collection(make_collection, "data", "old")
    new = collection(make_collection, ".data.building", "new")
    with writer_lock(target), pytest.raises(CollectionBusyError):
        publish_collection(new, target)
    assert text_of(target) == "old"
    assert is_collection(new)


def test_a_replacement_killed_between_its_renames_is_undone(
    make_collection: MakeCollection, tmp_path: Path
) -> None:
    target = collection(make_collection, "data", "old")
    new = collection(make_collection, ".data.building", "new")
    target.rename(tmp_path / ".data.old")
    assert text_of(target) == "old"  # opening is enough
    assert is_collection(new)
    publish_collection(new, target)
    assert text_of(target) == "new"


def test_a_replacement_killed_before_the_old_one_was_removed_is_done(
    make_collection: MakeCollection, tmp_path: Path
) -> None:
    target = collection(make_collection, "data", "new")
    collection(make_collection, ".data.old", "old")
    recover_swap(target)
    assert text_of(target) == "new"
    publish_collection(collection(make_collection, ".data.building", "newest"), target)
    assert text_of(target) == "newest"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_where_a_replacement_cannot_be_undone_the_remedy_is_told(
    make_collection: MakeCollection, tmp_path: Path, read_only: Callable[[Path], Path]
) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    collection(make_collection, "data", "old").rename(parent / ".data.old")
    with pytest.raises(CollectionNotFoundError, match=r"rename .*\.data\.old to .*/data"):
        open_collection(read_only(parent) / "data")


def test_opening_in_the_midst_of_a_replacement_waits_for_it(
    make_collection: MakeCollection, tmp_path: Path
) -> None:
    target = collection(make_collection, "data", "old")
    new = collection(make_collection, ".data.building", "new")
    with writer_lock(target):
        target.rename(tmp_path / ".data.old")
        finish = threading.Timer(0.2, lambda: new.rename(target))
        finish.start()
        assert text_of(target) == "new"
        finish.join()


def test_what_is_no_collection_is_refused(make_collection: MakeCollection, tmp_path: Path) -> None:
    with pytest.raises(CollectionNotFoundError, match=r"has no collection\.json"):
        open_collection(tmp_path)
    folder = collection(make_collection, "data", "x")
    (folder / "documents.sqlite").unlink()
    with pytest.raises(DamagedError, match=r"documents\.sqlite"):
        open_collection(folder)
    assert "documents.sqlite" in verify_collection(folder)[0]


def test_a_sound_collection_has_nothing_to_report(make_collection: MakeCollection) -> None:
    folder = collection(make_collection, "data", "x")
    assert verify_collection(folder) == []
    manifest = folder / "collection.json"
    manifest.write_text(manifest.read_text().replace('"dimension": 32', '"dimension": 33'))
    assert verify_collection(folder) == [f"{manifest}: says dimension 33, the store has 32"]
