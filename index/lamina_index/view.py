"""What a search reads: one snapshot, the rows newer than it, and the rows to pass over.

A view is never changed. It belongs to one generation of the store and is right only inside a read
transaction of that generation; `View.at` gives the view for the transaction at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import DamagedError, IndexDamagedError
from lamina_index.exact import NearestSoFar
from lamina_index.manifest import SnapshotManifest
from lamina_index.matching import Matching, among
from lamina_index.scoring import TIE_MARGIN, exact_scores
from lamina_index.selected import nearest_selected
from lamina_index.snapshot_files import SNAPSHOTS, Snapshot, open_newest, snapshot_numbers
from lamina_index.store_file import STORE_FILE
from lamina_index.store_reading import StoreReading
from lamina_index.vectors import Exclusion
from lamina_index.view_columns import ViewColumns

DELTA_LIMIT = 10_000
"""Rows newer than the snapshot that a collection should have at most: they are compared one by
one, from memory."""

_SPARE = 8
"""Candidates beyond those wanted, to make up for the index's rounding of vectors: 2 are enough for
8-bit components on real questions (docs/storage.md)."""

_SCAN_ROWS = 4096


@dataclass(frozen=True, slots=True)
class View:
    """The searchable rows of one generation.

    Attributes:
        generation: The store's generation.
        snapshot: The index in use, None while there is none.
        damage: What was wrong with newer snapshots than the one in use.
        newest: Number of the newest snapshot there was, sound or not.
        last_key: Rows up to this key are in the snapshot or the delta.
        last_tombstone: Deletions up to this one are applied.
        dead: Positions in the snapshot to pass over.
        delta_keys: (M,) keys of the rows newer than the snapshot.
        delta: (M, D) their embeddings.
        columns: Gives the columns of the rows' metadata.
    """

    generation: int
    snapshot: Snapshot | None
    damage: tuple[DamagedError, ...]
    newest: int
    last_key: int
    last_tombstone: int
    dead: NDArray[np.int64]
    delta_keys: NDArray[np.int64]
    delta: NDArray[np.float32]
    columns: ViewColumns = field(repr=False)
    exclusion: Exclusion | None = field(default=None, repr=False)

    @classmethod
    def over(cls, snapshot: Snapshot | None, dimension: int) -> View:
        """A view of a snapshot alone, as it was made."""
        no_keys = np.empty(0, np.int64)
        keys, stored = (snapshot.keys, snapshot.columns) if snapshot else (no_keys, None)
        dead = snapshot.deleted if snapshot else no_keys
        return cls(
            generation=-1,
            snapshot=snapshot,
            damage=(),
            newest=snapshot.number if snapshot else 0,
            last_key=snapshot.manifest.last_key if snapshot else 0,
            last_tombstone=snapshot.manifest.last_tombstone if snapshot else 0,
            dead=dead,
            delta_keys=no_keys,
            delta=np.empty((0, dimension), np.float32),
            columns=ViewColumns(keys, stored, no_keys),
            exclusion=Exclusion(dead, len(keys)) if len(dead) else None,
        )

    @classmethod
    def open(cls, collection: Path, dimension: int, reading: StoreReading) -> View | None:
        """Open the newest sound snapshot and what came after it.

        Returns:
            The view, or None if the snapshot is newer than the transaction, which is then to be
            begun again: it may see rows that were deleted before the snapshot was made.

        Raises:
            IndexDamagedError: If no snapshot is sound, or there is none and too many rows need one.
        """
        snapshot, damage = open_newest(collection)
        if snapshot is not None and is_ahead(snapshot.manifest, reading):
            return None
        if snapshot is None and (count := reading.count()) > DELTA_LIMIT:
            raise IndexDamagedError(
                f"{collection / SNAPSHOTS}: {count} documents but no search index; "
                f"`lamina index compact {collection}` makes it from documents.sqlite"
            )
        view = cls.over(snapshot, dimension)
        if damage:
            view = replace(view, damage=tuple(damage), newest=snapshot_numbers(collection)[0])
        return view.advanced(reading)

    def at(self, collection: Path, reading: StoreReading) -> View | None:
        """The view for a later generation: a newer snapshot if there is one, else what is new.

        None has the same meaning as in `open`.
        """
        numbers = snapshot_numbers(collection)
        if numbers and numbers[0] > self.newest:
            return View.open(collection, self.delta.shape[1], reading)
        return self.advanced(reading)

    def advanced(self, reading: StoreReading) -> View:
        """Take in the rows and deletions since `last_key` and `last_tombstone`."""
        view = self.buried(reading)
        keys, rows = reading.vectors_after(self.last_key)
        delta_keys, delta = view.delta_keys, view.delta
        if len(keys):
            delta_keys = np.concatenate([delta_keys, keys])
            delta = np.concatenate([delta, rows])
        return replace(
            view,
            generation=reading.generation(),
            last_key=reading.last_key(),
            delta_keys=delta_keys,
            delta=delta,
            columns=self.columns.advanced(delta_keys),
        )

    def buried(self, reading: StoreReading) -> View:
        """Take in the deletions since `last_tombstone` alone."""
        last_tombstone, buried = reading.tombstones_after(self.last_tombstone)
        if not buried:
            return replace(self, last_tombstone=last_tombstone)
        gone = np.array(buried, dtype=np.int64)
        stays = ~np.isin(self.delta_keys, gone)
        dead, exclusion = self.dead, self.exclusion
        if self.snapshot is not None:
            held = self.snapshot.positions(gone)
            if len(held):
                dead = np.union1d(dead, held)
                exclusion = Exclusion(dead, self.snapshot.index.count)
        return replace(
            self,
            last_tombstone=last_tombstone,
            dead=dead,
            delta_keys=self.delta_keys[stays],
            delta=self.delta[stays],
            exclusion=exclusion,
        )

    @property
    def tombstone_count(self) -> int:
        """Number of deletions since the snapshot was made, of rows newer than it too."""
        known = self.snapshot.manifest.last_tombstone if self.snapshot else 0
        return self.last_tombstone - known

    @property
    def count(self) -> int:
        """Number of documents that a search can return."""
        held = self.snapshot.index.count if self.snapshot else 0
        return held - len(self.dead) + len(self.delta_keys)

    @property
    def every(self) -> Matching:
        """All rows that a search can return, as a filter that all pass would give them."""
        held = self.snapshot.index.count if self.snapshot else 0
        return Matching.every(held, self.dead, len(self.delta_keys))

    def places(self, keys: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Where rows of this view are: whether in the delta, and at which position, (n,) each."""
        newer = among(keys, self.delta_keys)
        places = np.searchsorted(self.delta_keys, keys)
        if self.snapshot is not None:
            places = np.where(newer, places, np.searchsorted(self.snapshot.keys, keys))
        return newer, places

    def rows(self, keys: NDArray[np.int64]) -> Matching:
        """The rows of some keys, as a filter that they alone pass would give them."""
        newer, places = self.places(keys)
        held = np.zeros(self.snapshot.index.count if self.snapshot else 0, np.bool_)
        delta = np.zeros(len(self.delta_keys), np.bool_)
        held[places[~newer]] = True
        delta[places[newer]] = True
        return Matching.rows(held, delta)

    def keys_of(self, matching: Matching) -> NDArray[np.int64]:
        """Keys (n,) of the rows that pass a filter."""
        held = self.snapshot.keys[matching.held] if self.snapshot else np.empty(0, np.int64)
        return np.concatenate([held, self.delta_keys[matching.delta]])

    def nearest(
        self,
        reading: StoreReading,
        query: NDArray[np.float32],
        wanted: int,
        matching: Matching | None = None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Find the best rows and score them exactly with their stored vectors.

        Args:
            reading: The transaction that this view is of.
            query: (D,) unit vector.
            wanted: How many, at least 1.
            matching: Which rows to search among; None for all.

        Returns:
            Scores (n,), descending, and keys (n,). n is `wanted` or more, where more rows tie with
            the last; fewer only if there are fewer documents.
        """
        wanted = min(wanted, matching.count if matching else self.count)
        if wanted == 0:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        width = wanted + _SPARE
        while True:
            rough, candidates = self._candidates(reading, query, width, matching)
            order = np.argsort(candidates)
            keys, rows = reading.vectors(candidates[order].tolist())
            if len(candidates) < wanted or len(keys) < len(candidates):
                return self._scan(reading, query, wanted, matching)
            scores = exact_scores(rows, query)
            best = np.argsort(-scores, kind="stable")
            if not self.is_exact:
                best_rows = scores[best], keys[best], rows[best]
                return self._with_twins(reading, *best_rows, wanted, matching)
            cut = rough[order[best[wanted - 1]]]
            if len(candidates) < width or rough[-1] < cut - TIE_MARGIN:
                return scores[best], keys[best]
            width *= 4

    @property
    def is_exact(self) -> bool:
        """Whether every row is compared at full precision, so that none is missed."""
        return self.snapshot is None or self.snapshot.index.exact

    def _candidates(
        self,
        reading: StoreReading,
        query: NDArray[np.float32],
        width: int,
        matching: Matching | None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Rough scores, descending, and keys of up to `width` rows that may be the nearest."""
        rough, keys = np.empty(0, np.float32), np.empty(0, np.int64)
        if self.snapshot is not None and self.snapshot.index.count:
            if matching is None:
                rough, positions = self.snapshot.index.search(
                    query,
                    min(width, self.snapshot.index.count),
                    effort=self.snapshot.manifest.effort,
                    exclusion=self.exclusion,
                )
            else:
                rough, positions = nearest_selected(
                    self.snapshot, reading, query, width, matching, self.exclusion
                )
            keys = self.snapshot.keys[positions]
        if len(self.delta_keys):
            delta, delta_keys = self.delta, self.delta_keys
            if matching is not None:
                delta, delta_keys = delta[matching.delta], delta_keys[matching.delta]
            # no matrix product: its threads wait for each other, 10 ms and more on a busy machine
            rough = np.concatenate([rough, exact_scores(delta, query)])
            keys = np.concatenate([keys, delta_keys])
            if len(rough) > width:
                kept = rough >= np.partition(rough, -width)[-width]
                rough, keys = rough[kept], keys[kept]
            best = np.argsort(-rough, kind="stable")[:width]
            rough, keys = rough[best], keys[best]
        return rough, keys

    def _scan(
        self,
        reading: StoreReading,
        query: NDArray[np.float32],
        wanted: int,
        matching: Matching | None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Compare every stored vector: slow, but it finds what an index could not reach."""
        nearest = NearestSoFar(query[np.newaxis], wanted)
        after = 0
        while True:
            keys, rows = reading.vectors_after(after, limit=_SCAN_ROWS)
            if len(keys) == 0:
                return nearest.result(0)
            after = int(keys[-1])
            if matching is not None:
                passed = self._pass(keys, matching)
                keys, rows = keys[passed], rows[passed]
            nearest.add(keys, rows)

    def _with_twins(
        self,
        reading: StoreReading,
        scores: NDArray[np.float32],
        keys: NDArray[np.int64],
        rows: NDArray[np.float32],
        wanted: int,
        matching: Matching | None,
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Add the rows that an index missed among rows with one and the same vector.

        A graph reaches few of many equal vectors, and which ones is chance. Where two candidates
        tie, the store tells all rows with their vectors.
        """
        same = scores[1 : wanted + 1] == scores[:-1][:wanted]
        if not same.any():
            return scores, keys
        pairs = np.flatnonzero(same)
        tied = np.union1d(pairs, pairs + 1)
        distinct = {
            row.tobytes(): key for row, key in zip(rows[tied], keys[tied].tolist(), strict=True)
        }
        score_of = dict(zip(keys.tolist(), scores.tolist(), strict=True))
        twins = reading.twins(list(distinct.values()))
        if matching is not None:
            others = np.array([other for _, other in twins], np.int64)
            passed = self._pass(others, matching).tolist()
            twins = [twin for twin, passes in zip(twins, passed, strict=True) if passes]
        for own, other in twins:
            score_of.setdefault(other, score_of[own])
        all_scores = np.array(list(score_of.values()), np.float32)
        best = np.argsort(-all_scores, kind="stable")
        return all_scores[best], np.array(list(score_of), np.int64)[best]

    def _pass(self, keys: NDArray[np.int64], matching: Matching) -> NDArray[np.bool_]:
        """(n,) which keys are of matching rows."""
        passed = among(keys, self.delta_keys[matching.delta])
        if self.snapshot is not None:
            passed |= among(keys, self.snapshot.keys[matching.held])
        return passed


def is_ahead(manifest: SnapshotManifest, reading: StoreReading) -> bool:
    """Whether a snapshot was made from rows or deletions that a transaction does not see."""
    return (
        manifest.last_key > reading.last_key() or manifest.last_tombstone > reading.last_tombstone()
    )


def older_store(collection: Path, number: int) -> DamagedError:
    """The error for a store that lacks what a snapshot was made from, and will not get it."""
    return DamagedError(
        f"{collection}: snapshot {number} holds rows that {STORE_FILE} does not have, so that file "
        f"is an older copy; `lamina index compact {collection}` makes the snapshot again from it"
    )
