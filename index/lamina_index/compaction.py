"""Bringing a collection's search index up to date with its rows, without encoding anything."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lamina_index.collection import open_collection, writer_lock
from lamina_index.disk import disk_errors_told
from lamina_index.errors import CompactionError, DamagedError
from lamina_index.index_choice import choose_index
from lamina_index.snapshot import (
    Progress,
    RecallLostError,
    extend_snapshot,
    write_snapshot,
)
from lamina_index.snapshot_files import (
    Snapshot,
    check_all,
    open_newest,
    read_manifest,
    snapshot_folder,
    snapshot_numbers,
)
from lamina_index.store import DocumentStore
from lamina_index.view import DELTA_LIMIT, is_ahead

REBUILD_SHARE = 0.3
"""Share of deleted positions from which an index is built anew: they cost memory and time."""

MAX_DELTA = DELTA_LIMIT // 2
"""Rows newer than the index that are added to it without delay: as many may come meanwhile."""

MIN_DELTA = 500
MIN_DELTA_SHARE = 0.01
"""Fewer newer rows, also as a share of the index, are not worth the copy of it: they are compared
in less than the time of encoding a query."""

MAX_TOMBSTONES = 20_000
MAX_TOMBSTONE_SHARE = 0.1
"""Deletions since the index was made, also as a share of the index, that are worth the copy of it:
whoever opens the collection reads all of them, also those of rows that were written since."""

MAX_AGE = 30.0
"""Seconds that rows worth a copy wait for more."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did.

    Attributes:
        snapshot: The new search index.
        added: Rows that were added to a copy of the last index; None if it was built anew.
        reason: Why it was built anew; empty if it was not.
        seconds: How long it took.
    """

    snapshot: Snapshot
    added: int | None
    reason: str
    seconds: float

    def summary(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        return {
            "documents": self.snapshot.count,
            "added": self.added,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "index": self.snapshot.summary(),
        }


def needs_compaction(
    info: Mapping[str, Any],
    age: float,
    *,
    max_delta: int = MAX_DELTA,
    max_age: float = MAX_AGE,
) -> str | None:
    """Tell why a collection's index should be brought up to date, None if it need not be.

    Args:
        info: What `Searcher.info` tells.
        age: Seconds since there are rows that are newer than the index.
        max_delta: So many newer rows are added to it without delay.
        max_age: So many seconds they wait for more, if they are enough to be worth a copy.
    """
    delta, index = info["delta_count"], info["index"]
    positions = index["rows"] + index["deleted"] if index else 0
    if delta >= max_delta:
        return f"{delta} rows are newer than the index"
    if info["damage"]:
        return f"a newer index is damaged: {info['damage'][0]}"
    if info["deleted_count"] > REBUILD_SHARE * positions:
        return f"{info['deleted_count']} of {positions} rows of the index are deleted"
    tombstones = info["tombstone_count"]
    if tombstones >= max(MAX_TOMBSTONES, MAX_TOMBSTONE_SHARE * positions):
        return f"{tombstones} rows were deleted or replaced since the index was made"
    if delta >= max(MIN_DELTA, MIN_DELTA_SHARE * positions) and age >= max_age:
        return f"{delta} rows are newer than the index, for {age:.0f} seconds"
    return None


def compact(
    folder: Path,
    *,
    factory: str | None = None,
    full: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Compaction:
    """Make a new search index: the last one and the rows that came since, or all anew.

    It is built anew where there is no sound last one, where about a third of it is deleted, where
    so many rows deserve another kind, and where recall would fall. Searches and writes go on
    meanwhile; a kill or an error leaves the index that there was.

    Args:
        folder: The collection folder.
        factory: A FAISS factory string, or `auto`, to build another kind of index than before.
        full: Build anew in any case.
        threads: Threads to work with; by default the CPUs available to the process.
        progress: Told how many rows are in the index.

    Raises:
        CollectionBusyError: If a build or another compaction is at work.
        CompactionError: If the new index is not what it should be; it is gone then.
        LaminaError: As `open_collection` and `write_snapshot`.
    """
    started = time.monotonic()
    _, store = open_collection(folder, read_only=False)
    told = disk_errors_told(folder, when_full="its snapshots are as they were")
    with told, store, writer_lock(folder):
        base, reason = _base(folder, store, factory, full)
        snapshot = None
        if base is not None and not reason:
            try:
                snapshot = extend_snapshot(folder, store, base, threads=threads, progress=progress)
            except RecallLostError as error:
                reason = str(error)
            except CompactionError as error:
                raise CompactionError(
                    f"{error}; the index is as it was, `lamina index compact {folder} --full` "
                    "builds it anew from documents.sqlite"
                ) from error
        if snapshot is not None and base is not None:
            added = snapshot.manifest.appended - base.manifest.appended
            return Compaction(snapshot, added, "", time.monotonic() - started)
        wanted = factory or _requested(folder)
        snapshot = write_snapshot(folder, store, factory=wanted, threads=threads, progress=progress)
        return Compaction(snapshot, None, reason, time.monotonic() - started)


def _base(
    folder: Path, store: DocumentStore, factory: str | None, full: bool
) -> tuple[Snapshot | None, str]:
    """The newest sound snapshot, and why it cannot be added to; empty if it can."""
    try:
        base, _ = open_newest(folder)
    except DamagedError as error:
        return None, str(error)
    if base is None:
        return None, "there is no index yet"
    if full or factory is not None:
        return base, "asked for"
    if base.columns is None:
        return base, "the last index is of a format without columns"
    if found := check_all(base.folder):
        return base, found[0]
    with store.reading() as reading:
        if is_ahead(base.manifest, reading):
            return base, "the last index was made from a newer store"
        _, buried = reading.tombstones_after(base.manifest.last_tombstone)
        count = reading.count()
    deleted = len(base.deleted) + len(base.positions(np.array(buried, np.int64)))
    if deleted > REBUILD_SHARE * base.manifest.count:
        return base, f"{deleted} of {base.manifest.count} rows of the last index are deleted"
    return base, _outgrown(base, count)


def _requested(folder: Path) -> str:
    """What kind of index was asked for last, even if the index itself is damaged."""
    for number in snapshot_numbers(folder):
        with suppress(DamagedError):
            return read_manifest(snapshot_folder(folder, number)).requested
    return "auto"


def _outgrown(base: Snapshot, count: int) -> str:
    """Why so many rows deserve another kind of index than the last; empty if they do not.

    A collection that shrinks keeps what it has, so one that grows and shrinks in turn is not built
    anew each time.
    """
    made = base.manifest
    if made.requested not in ("auto", made.factory):
        return f"{made.requested} was asked for, and there were too few rows for it"
    if made.requested == "auto" and count > made.count - made.appended:
        choice = choose_index(count, made.dimension)
        if choice.factory != made.factory:
            return choice.reason
    return ""
