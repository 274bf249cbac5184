"""Making a snapshot: choose an index, build it from the store, measure it, put it in place."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina_index.collection import MANIFEST_FILE as COLLECTION_FILE
from lamina_index.columns_file import write_columns
from lamina_index.errors import DamagedError, StorageFullError
from lamina_index.index_choice import IndexChoice, choose_index
from lamina_index.manifest import CollectionManifest, Recall, SnapshotManifest, sync_folder
from lamina_index.recall import SAMPLE_QUERIES, Measurement
from lamina_index.runtime import available_threads
from lamina_index.snapshot_files import (
    COLUMNS_FILE,
    KEYS_FILE,
    MANIFEST_FILE,
    SNAPSHOTS,
    VECTORS_FILE,
    Snapshot,
    check_all,
    describe_file,
    open_snapshot,
    read_fourcc,
    remove_leftovers,
    snapshot_folder,
    snapshot_numbers,
    write_keys,
)
from lamina_index.store import DocumentStore
from lamina_index.vectors import EFFORTS, TooFewVectorsError, VectorIndex
from lamina_index.view_columns import build_columns

Progress = Callable[[int, int], None]
"""Called with how many rows are in the index, and of how many."""

_DATA_FILES = (VECTORS_FILE, KEYS_FILE, COLUMNS_FILE)
_SEED = 1
_BATCH = 8192


def write_snapshot(
    collection: Path,
    store: DocumentStore,
    *,
    factory: str = "auto",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Build an index over the stored vectors, measure it, and let searches take it up.

    Nothing is encoded. A kill or an error at any moment leaves the snapshots as they were; older
    ones are removed once the new one has been read back and compared byte by byte. The caller
    holds the collection's `writer_lock`; rows may be written meanwhile, they are simply newer.

    Args:
        collection: The collection folder.
        store: Its store, open for writing.
        factory: `auto` or a FAISS factory string. One that cannot be trained on so few vectors
            gives way to exact search, which the snapshot's `reason` then says.
        threads: Threads to build with; by default the CPUs available to the process.
        progress: Told how far the work is.

    Raises:
        IndexFactoryError: If the factory cannot be built or searched.
        StorageFullError: If the disk is full.
        DamagedError: If a stored vector is damaged, or what was written does not read back.
    """
    threads = threads or available_threads()
    (collection / SNAPSHOTS).mkdir(exist_ok=True)
    remove_leftovers(collection)
    number = max(snapshot_numbers(collection), default=0) + 1
    target = snapshot_folder(collection, number)
    working = Path(tempfile.mkdtemp(prefix=f".writing-{number}-", dir=target.parent))
    try:
        _write_files(working, number, collection, store, factory, threads, progress or _silent)
        if found := check_all(working):
            raise DamagedError(found[0])
        working.chmod(0o755)
        sync_folder(working)
        working.rename(target)
        sync_folder(target.parent)
        snapshot = open_snapshot(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"{working}: no space left on the device; the snapshots there were are untouched"
            ) from error
        raise
    finally:
        shutil.rmtree(working, ignore_errors=True)
    for older in snapshot_numbers(collection)[1:]:
        shutil.rmtree(snapshot_folder(collection, older), ignore_errors=True)
    store.forget_tombstones(snapshot.manifest.last_tombstone)
    return snapshot


def _write_files(
    folder: Path,
    number: int,
    collection: Path,
    store: DocumentStore,
    requested: str,
    threads: int,
    progress: Progress,
) -> None:
    """Build, write and measure the index of the rows that are stored at this moment."""
    with store.reading() as reading:
        last_key = reading.last_key()
        last_tombstone = reading.last_tombstone()
        stored_keys = reading.keys(last_key)
    # Read after the rows: a field is in the manifest before a row that has it is stored.
    fields = CollectionManifest.read(collection / COLLECTION_FILE).fields
    random = np.random.default_rng(_SEED)

    def sample(size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        chosen = random.choice(stored_keys, min(size, len(stored_keys)), replace=False)
        with store.reading() as reading:
            return reading.vectors(np.sort(chosen).tolist())

    measurement = Measurement(*sample(SAMPLE_QUERIES))
    keys: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    done = 0

    def batches() -> Iterator[NDArray[np.float32]]:
        nonlocal done
        for batch_keys, rows in store.scan(until_key=last_key, batch=_BATCH):
            measurement.add(batch_keys, rows)
            keys.append(batch_keys)
            done += len(rows)
            progress(done, len(stored_keys))
            yield rows

    def build(choice: IndexChoice) -> VectorIndex:
        return VectorIndex.build(
            choice.factory,
            dimension=store.dimension,
            count=len(stored_keys),
            training=lambda size: sample(size)[1],
            batches=batches(),
            threads=threads,
        )

    choice = _choose(requested, len(stored_keys), store.dimension)
    try:
        index = build(choice)
    except TooFewVectorsError as error:
        choice = IndexChoice("Flat", f"{error}; exact search instead")
        index = build(choice)
    index.save(folder / VECTORS_FILE)
    build_parameters = index.build_parameters
    del index  # from here on the file is mapped, so there is never a second copy in memory
    held_keys = np.concatenate(keys)
    write_keys(folder / KEYS_FILE, held_keys)
    columns = build_columns(store, held_keys, fields)
    write_columns(folder / COLUMNS_FILE, columns)
    index = VectorIndex.load(folder / VECTORS_FILE)
    draft = SnapshotManifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        last_key=last_key,
        last_tombstone=last_tombstone,
        count=index.count,
        dimension=store.dimension,
        factory=choice.factory,
        requested=requested,
        reason=choice.reason,
        fourcc=read_fourcc(folder / VECTORS_FILE),
        effort_name=index.effort_name,
        effort=EFFORTS[index.effort_name][0],
        build=build_parameters,
        recall=Recall(at_10=1, queries=0, method="exact search, nothing to measure"),
        files={name: describe_file(folder / name) for name in _DATA_FILES},
        checksum="",
    )
    if not index.exact:
        unmeasured = Snapshot(number, folder, draft, index, held_keys, columns)
        effort, recall = measurement.tune(unmeasured, store)
        draft = draft.model_copy(update={"effort": effort, "recall": recall})
    draft.model_copy(update={"checksum": draft.digest()}).write(folder / MANIFEST_FILE)


def _choose(requested: str, count: int, dimension: int) -> IndexChoice:
    if requested == "auto" or count == 0:
        return choose_index(count, dimension)
    return IndexChoice(requested, "asked for")


def _silent(done: int, total: int) -> None:
    """Tell nobody."""
