"""How much was written since the newest search index was made, and how much may be."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lamina_index.errors import BacklogFullError, DamagedError, WriteTooLargeError
from lamina_index.manifest import SnapshotManifest
from lamina_index.snapshot_files import read_manifest, snapshot_folder, snapshot_numbers
from lamina_index.store_reading import StoreReading
from lamina_index.view import DELTA_LIMIT

_SHARE = 4
_LARGEST_LIMIT = 50_000
_KEPT_SHARE = 10
"""Of the limit so much is kept from a single write: fewer newer rows are not always worth a new
index, so a write that needs their room, too, might wait for it for ever."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a search has to do besides the index.

    Attributes:
        rows: Rows newer than the index; as long as that is below the limit, those that have gone
            again may be counted too, because that needs no scan.
        deletions: Rows deleted or replaced since the index was made, newer ones included.
        limit: How many rows may be newer before a new index has to be made.
    """

    rows: int
    deletions: int
    limit: int

    @classmethod
    def of(
        cls, collection: Path, reading: StoreReading, limit: int | None = None, *, adding: int = 0
    ) -> Self:
        """Measure a collection's, inside a transaction.

        Args:
            collection: Its folder.
            reading: The transaction, on its store.
            limit: By default what `backlog_limit` gives for the rows that are in the index.
            adding: Count exactly if so many rows more might exceed the limit.
        """
        snapshot = _newest(collection)
        last_key = snapshot.last_key if snapshot else 0
        if limit is None:
            limit = backlog_limit(snapshot.count if snapshot else 0)
        rows = reading.last_key() - last_key
        if rows + adding > limit:
            rows = reading.count_after(last_key)
        deletions = reading.last_tombstone() - (snapshot.last_tombstone if snapshot else 0)
        return cls(rows, deletions, limit)

    @property
    def full(self) -> bool:
        """Whether a new index has to be made."""
        return self.rows >= self.limit

    @property
    def largest_write(self) -> int:
        """Most rows that one write may have."""
        return self.limit - self.limit // _KEPT_SHARE

    def check_room(self, collection: Path, adding: int) -> None:
        """Refuse rows that there is no room for; the backlog must have been measured for them.

        Raises:
            BacklogFullError: Naming the numbers; there will be room once a new index is made.
            WriteTooLargeError: If there will never be.
        """
        if adding > self.largest_write:
            raise WriteTooLargeError(
                f"{collection}: {adding} documents or parts of them at once, expected at most "
                f"{self.largest_write}; nothing of them is stored, write fewer documents at once"
            )
        if self.rows + adding > self.limit:
            raise BacklogFullError(
                f"{collection}: {self.rows} rows are newer than the search index, and {adding} "
                f"more would exceed the limit of {self.limit}; wait for a compaction, or run "
                f"`lamina index compact {collection}`"
            )


def backlog_limit(count: int) -> int:
    """How many rows may be newer than an index of `count` rows.

    Until a new index is made, whoever searches holds them in memory and compares them one by one.
    Making an index of everything is dear, so a larger collection waits longer, up to 77 MB of
    384-wide rows.
    """
    return min(max(DELTA_LIMIT, count // _SHARE), _LARGEST_LIMIT)


def _newest(collection: Path) -> SnapshotManifest | None:
    """Read the newest sound manifest of a snapshot."""
    while True:
        numbers = snapshot_numbers(collection)
        for number in numbers:
            with suppress(DamagedError):
                return read_manifest(snapshot_folder(collection, number))
        if numbers == snapshot_numbers(collection):  # else a newer one has just taken their place
            return None
