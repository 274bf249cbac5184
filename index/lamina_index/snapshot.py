"""Making a snapshot: build an index or add to the last, measure it, prove it, put it in place."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina_index.collection import MANIFEST_FILE as COLLECTION_FILE
from lamina_index.columns_file import write_columns
from lamina_index.errors import CollectionBusyError, StorageFullError
from lamina_index.field_columns import FieldColumns
from lamina_index.index_choice import IndexChoice, choose_index
from lamina_index.manifest import (
    CollectionManifest,
    FieldType,
    Recall,
    SnapshotManifest,
    sync_folder,
)
from lamina_index.recall import SAMPLE_QUERIES, TARGET_RECALL, Measurement
from lamina_index.runtime import available_threads
from lamina_index.snapshot_check import prove
from lamina_index.snapshot_files import (
    COLUMNS_FILE,
    DELETED_FILE,
    KEYS_FILE,
    MANIFEST_FILE,
    SNAPSHOTS,
    VECTORS_FILE,
    Snapshot,
    describe_file,
    open_snapshot,
    read_fourcc,
    remove_leftovers,
    remove_snapshot,
    snapshot_folder,
    snapshot_numbers,
    write_numbers,
)
from lamina_index.store import DocumentStore
from lamina_index.vectors import EFFORTS, TooFewVectorsError, VectorIndex
from lamina_index.view_columns import build_columns

Progress = Callable[[int, int], None]
"""Called with how many rows are in the index, and of how many."""

_SEED = 1
_BATCH = 8192

_LEAST_QUERIES = 64
_COMPARISONS = SAMPLE_QUERIES * 200_000
"""Query and row compared exactly to measure an index that rows were added to: large ones are
measured with fewer queries, so that this takes no longer than copying them."""

_NOISE = 0.01
_NOISE_SHARE = 0.25
"""By how much a recall may seem to fall, measured with other and fewer queries: so much, or this
share of what it lacks."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """The rows that are stored when a snapshot is begun; those written later are newer."""

    last_key: int
    last_tombstone: int
    keys: NDArray[np.int64]
    buried: list[int]

    @classmethod
    def of(cls, store: DocumentStore, after_tombstone: int = 0) -> _Moment:
        with store.reading() as reading:
            last_key = reading.last_key()
            return cls(
                last_key,
                reading.last_tombstone(),
                reading.keys(last_key),
                reading.tombstones_after(after_tombstone)[1],
            )


@dataclass(frozen=True, slots=True)
class _Made:
    """What the files of a snapshot hold, before it is measured."""

    moment: _Moment
    keys: NDArray[np.int64]
    deleted: NDArray[np.int64]
    appended: int
    choice: IndexChoice
    requested: str
    build: dict[str, int]
    columns: FieldColumns
    measurement: Measurement


class RecallLostError(Exception):
    """An index that rows were added to finds too little; built anew it would find more."""


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
    ones are removed once the new one has been read back, compared and searched. The caller holds
    the collection's `writer_lock`; rows may be written meanwhile, they are simply newer.

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
        DamagedError: If a stored vector is damaged.
        CompactionError: If what was written is not what it should be.
    """
    threads = threads or available_threads()

    def write(folder: Path) -> None:
        made = _build(folder, store, factory, threads, progress or _silent)
        _finish(folder, store, made)

    return _published(collection, store, write)


def extend_snapshot(
    collection: Path,
    store: DocumentStore,
    base: Snapshot,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Snapshot:
    """Add the rows that are newer than a snapshot to a copy of its index; else `write_snapshot`.

    Rows that were deleted keep their positions, which searches pass over.

    Args:
        collection: The collection folder.
        store: Its store, open for writing.
        base: The newest snapshot, of which every byte has been compared.
        threads, progress: As for `write_snapshot`.

    Raises:
        RecallLostError: If the index then finds less than `recall_floor`; nothing was changed.
        StorageFullError, DamagedError, CompactionError: As `write_snapshot`.
    """
    threads = threads or available_threads()

    def write(folder: Path) -> None:
        made = _extend(folder, store, base, threads, progress or _silent)
        floor = base.manifest.recall_floor or _floor(base.manifest.recall.at_10)
        _finish(folder, store, made, floor=floor)

    return _published(collection, store, write)


def _published(collection: Path, store: DocumentStore, write: Callable[[Path], None]) -> Snapshot:
    """Let a snapshot be written beside the others, prove it, and put it in their place."""
    (collection / SNAPSHOTS).mkdir(exist_ok=True)
    remove_leftovers(collection)
    number = max(snapshot_numbers(collection), default=0) + 1
    target = snapshot_folder(collection, number)
    working = Path(tempfile.mkdtemp(prefix=f".writing-{number}-", dir=target.parent))
    try:
        write(working)
        prove(working, number, store)
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
        remove_snapshot(collection, older)
    with suppress(CollectionBusyError):  # then the next one does it
        store.forget_tombstones(snapshot.manifest.last_tombstone)
    return snapshot


def _build(
    folder: Path, store: DocumentStore, requested: str, threads: int, progress: Progress
) -> _Made:
    """Build and write the index of the rows that are stored at this moment."""
    moment = _Moment.of(store)
    random = np.random.default_rng(_SEED)
    sample = partial(_sample, store, moment.keys, random)
    measurement = Measurement(*sample(SAMPLE_QUERIES))
    rows = _Rows(store, moment, measurement, progress)

    def build(choice: IndexChoice) -> VectorIndex:
        return VectorIndex.build(
            choice.factory,
            dimension=store.dimension,
            count=len(moment.keys),
            training=lambda size: sample(size)[1],
            batches=rows.after(0),
            threads=threads,
        )

    choice = _choose(requested, len(moment.keys), store.dimension)
    try:
        index = build(choice)
    except TooFewVectorsError as error:
        choice = IndexChoice("Flat", f"{error}; exact search instead")
        index = build(choice)
    index.save(folder / VECTORS_FILE)
    keys = rows.keys()
    return _Made(
        moment=moment,
        keys=keys,
        deleted=np.empty(0, np.int64),
        appended=0,
        choice=choice,
        requested=requested,
        build=index.build_parameters,
        columns=build_columns(store, keys, _fields(store)),
        measurement=measurement,
    )


def _extend(
    folder: Path, store: DocumentStore, base: Snapshot, threads: int, progress: Progress
) -> _Made:
    """Write a copy of an index with the rows that were stored since."""
    before = base.manifest
    moment = _Moment.of(store, before.last_tombstone)
    rows_measured = len(moment.keys) if not base.index.exact else 0
    queries = min(SAMPLE_QUERIES, max(_LEAST_QUERIES, _COMPARISONS // max(rows_measured, 1)))
    random = np.random.default_rng(_SEED)
    measurement = Measurement(*_sample(store, moment.keys, random, queries))
    if not base.index.exact:
        for keys, rows in store.scan(until_key=before.last_key, batch=_BATCH):
            measurement.add(keys, rows)
    new = _Rows(store, moment, measurement, progress, done=base.count)
    count = int(np.count_nonzero(moment.keys > before.last_key))
    index = VectorIndex.copied(base.folder / VECTORS_FILE, room=base.index.count + count)
    index.add(new.after(before.last_key), count=count, threads=threads)
    index.save(folder / VECTORS_FILE)
    new_keys = new.keys()
    gone = base.positions(np.array(moment.buried, np.int64))
    return _Made(
        moment=moment,
        keys=np.concatenate([base.keys, new_keys]),
        deleted=np.union1d(base.deleted, gone),
        appended=before.appended + len(new_keys),
        choice=IndexChoice(before.factory, before.reason),
        requested=before.requested,
        build=index.build_parameters,
        columns=_extended_columns(store, base, new_keys),
        measurement=measurement,
    )


def _extended_columns(
    store: DocumentStore, base: Snapshot, new_keys: NDArray[np.int64]
) -> FieldColumns:
    fields = _fields(store)
    held = base.columns
    if held is None or any(fields.get(name) != kind for name, kind in held.types.items()):
        return build_columns(store, np.concatenate([base.keys, new_keys]), fields)
    return held.followed_by(build_columns(store, new_keys, fields))


def _finish(folder: Path, store: DocumentStore, made: _Made, *, floor: float | None = None) -> None:
    """Write what goes with an index that lies in the folder, and measure that.

    Raises:
        RecallLostError: If it finds less than the floor.
    """
    write_numbers(folder / KEYS_FILE, made.keys)
    write_columns(folder / COLUMNS_FILE, made.columns)
    files = [VECTORS_FILE, KEYS_FILE, COLUMNS_FILE]
    if len(made.deleted):
        write_numbers(folder / DELETED_FILE, made.deleted)
        files.append(DELETED_FILE)
    index = VectorIndex.load(folder / VECTORS_FILE)
    draft = SnapshotManifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        last_key=made.moment.last_key,
        last_tombstone=made.moment.last_tombstone,
        count=index.count,
        deleted=len(made.deleted),
        appended=made.appended,
        dimension=store.dimension,
        factory=made.choice.factory,
        requested=made.requested,
        reason=made.choice.reason,
        fourcc=read_fourcc(folder / VECTORS_FILE),
        effort_name=index.effort_name,
        effort=EFFORTS[index.effort_name][0],
        build=made.build,
        recall=Recall(at_10=1, queries=0, method="exact search, nothing to measure"),
        files={name: describe_file(folder / name) for name in files},
        checksum="",
    )
    if not index.exact:
        unmeasured = Snapshot(0, folder, draft, index, made.keys, made.deleted, made.columns)
        effort, recall = made.measurement.tune(unmeasured, store)
        if floor is not None and recall.at_10 < floor:
            raise RecallLostError(f"recall@10 fell to {recall.at_10}, below {floor:.3f}")
        draft = draft.model_copy(
            update={
                "effort": effort,
                "recall": recall,
                "recall_floor": floor or _floor(recall.at_10),
            }
        )
    draft.model_copy(update={"checksum": draft.digest()}).write(folder / MANIFEST_FILE)


class _Rows:
    """The stored rows of a moment on their way into an index."""

    def __init__(
        self,
        store: DocumentStore,
        moment: _Moment,
        measurement: Measurement,
        progress: Progress,
        done: int = 0,
    ) -> None:
        self._store = store
        self._moment = moment
        self._measurement = measurement
        self._progress = progress
        self._done = done
        self._keys = [np.empty(0, np.int64)]

    def after(self, key: int) -> Iterator[NDArray[np.float32]]:
        """Give the rows (n, D) with higher keys, and take note of them."""
        for keys, rows in self._store.scan(key, until_key=self._moment.last_key, batch=_BATCH):
            self._measurement.add(keys, rows)
            self._keys.append(keys)
            self._done += len(rows)
            self._progress(self._done, len(self._moment.keys))
            yield rows

    def keys(self) -> NDArray[np.int64]:
        """(n,) those of the rows that were given."""
        return np.concatenate(self._keys)


def _sample(
    store: DocumentStore, stored: NDArray[np.int64], random: np.random.Generator, size: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Keys (n,) and vectors (n, D) of up to so many of the stored rows, in key order."""
    chosen = np.sort(random.choice(stored, min(size, len(stored)), replace=False))
    keys = np.empty(len(chosen), np.int64)
    rows = np.empty((len(chosen), store.dimension), np.float32)
    read = 0
    for start in range(0, len(chosen), _BATCH):  # a list index learns from half a million and more
        with store.reading() as reading:
            found, part = reading.vectors(chosen[start : start + _BATCH].tolist())
        if len(found) == 0:  # all of them deleted meanwhile
            continue
        keys[read : read + len(found)], rows[read : read + len(found)] = found, part
        read += len(found)
    return keys[:read], rows[:read]


def _fields(store: DocumentStore) -> dict[str, FieldType]:
    """The types of the metadata, read after the rows: a field is there before a row that has it."""
    return CollectionManifest.read(store.path.parent / COLLECTION_FILE).fields


def _floor(recall: float) -> float:
    """What an index that was built with a recall has to keep when rows are added to it."""
    return min(TARGET_RECALL, max(recall - max(_NOISE, _NOISE_SHARE * (1 - recall)), 0.0))


def _choose(requested: str, count: int, dimension: int) -> IndexChoice:
    if requested == "auto" or count == 0:
        return choose_index(count, dimension)
    return IndexChoice(requested, "asked for")


def _silent(done: int, total: int) -> None:
    """Tell nobody."""
