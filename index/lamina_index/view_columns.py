"""The metadata columns of a view's rows, made when a filter or a facet first needs them.

The rows of the snapshot have theirs in a file; those of a snapshot without one (format 1), or whose
fields changed type since, get them in memory. Newer rows come in segments that are joined as they
grow, so that each is coded anew a few times only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina_index.field_columns import ColumnsBuilder, FieldColumns
from lamina_index.manifest import FieldType, Metadata
from lamina_index.store import DocumentStore
from lamina_index.store_reading import StoredDocument, StoreReading

if TYPE_CHECKING:
    from lamina_index.group_codes import GroupCodes

_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Segment:
    """Some rows of a delta: their keys (n,), ascending, their metadata, and its columns."""

    keys: NDArray[np.int64]
    metadata: list[Metadata]
    columns: FieldColumns

    @classmethod
    def of(
        cls, keys: NDArray[np.int64], metadata: list[Metadata], fields: Mapping[str, FieldType]
    ) -> Segment:
        """Make the columns of some rows."""
        builder = ColumnsBuilder(fields)
        for each in metadata:
            builder.add(each)
        return cls(keys, metadata, builder.columns())


@dataclass(frozen=True, slots=True)
class RowColumns:
    """The columns of a view's rows.

    Attributes:
        fields: The types that they were made with.
        held: Of the snapshot's rows, by position.
        segments: Of the delta's rows, and perhaps of some that have gone since.
        group_codes: By field, kept for the next search of the same generation.
    """

    fields: dict[str, FieldType]
    held: FieldColumns
    segments: tuple[Segment, ...]
    group_codes: dict[str, GroupCodes] = field(default_factory=dict, compare=False, repr=False)


class ViewColumns:
    """Makes the columns of one view from those of the view before it; safe for many threads.

    Only columns of an earlier view are ever taken over: they have every row that a later one has
    not got from its delta.
    """

    def __init__(
        self,
        snapshot_keys: NDArray[np.int64],
        stored: FieldColumns | None,
        delta_keys: NDArray[np.int64],
        earlier: RowColumns | None = None,
    ) -> None:
        """Remember what the columns are of.

        Args:
            snapshot_keys: (N,) keys of the snapshot's rows.
            stored: Their columns, where the snapshot has them.
            delta_keys: (M,) keys of the newer rows, ascending.
            earlier: Columns of an earlier view of the same snapshot.
        """
        self._snapshot_keys = snapshot_keys
        self._stored = stored
        self._delta_keys = delta_keys
        self._earlier = earlier
        self._made: RowColumns | None = None
        self._making = threading.Lock()

    def advanced(self, delta_keys: NDArray[np.int64]) -> ViewColumns:
        """For a later view of the same snapshot."""
        earlier = self._made or self._earlier
        return ViewColumns(self._snapshot_keys, self._stored, delta_keys, earlier)

    def get(self, reading: StoreReading, fields: Mapping[str, FieldType]) -> RowColumns:
        """Give the columns, inside a transaction of the view's generation.

        Raises:
            DamagedError: If a row is not as it was written.
        """
        made = self._made
        if made is not None and made.fields == fields:
            return made
        with self._making:
            if self._made is None or self._made.fields != fields:
                self._made = self._make(reading, dict(fields))
            return self._made

    def _make(self, reading: StoreReading, fields: dict[str, FieldType]) -> RowColumns:
        earlier = self._made or self._earlier
        if earlier is None:
            segments: tuple[Segment, ...] = ()
        elif earlier.fields == fields:
            segments = earlier.segments
        else:
            segments = tuple(Segment.of(s.keys, s.metadata, fields) for s in earlier.segments)
        covered = int(segments[-1].keys[-1]) if segments else 0
        new = self._delta_keys[np.searchsorted(self._delta_keys, covered, "right") :]
        if len(new):
            rows = [row.metadata for row in reading.documents(new.tolist())]
            segments = _joined((*segments, Segment.of(new, rows, fields)), fields)
        return RowColumns(fields, self._held(reading, fields, earlier), segments)

    def _held(
        self, reading: StoreReading, fields: dict[str, FieldType], earlier: RowColumns | None
    ) -> FieldColumns:
        stored = self._stored
        if stored is not None and all(fields.get(n, t) == t for n, t in stored.types.items()):
            return stored
        if earlier is not None and earlier.fields == fields:
            return earlier.held
        return columns_of(reading, self._snapshot_keys, fields)


def build_columns(
    store: DocumentStore, keys: NDArray[np.int64], fields: Mapping[str, FieldType]
) -> FieldColumns:
    """Make the columns of rows by key, in many short transactions; else as `columns_of`."""
    return _build(keys, fields, store.by_keys)


def columns_of(
    reading: StoreReading, keys: NDArray[np.int64], fields: Mapping[str, FieldType]
) -> FieldColumns:
    """Make the columns of rows by key in one transaction.

    Args:
        reading: The transaction.
        keys: (N,) A row of one that has gone has no metadata.
        fields: The fields to make columns of.
    """
    return _build(keys, fields, lambda part: {row.key: row for row in reading.documents(part)})


def _build(
    keys: NDArray[np.int64],
    fields: Mapping[str, FieldType],
    rows_of: Callable[[list[int]], dict[int, StoredDocument]],
) -> FieldColumns:
    builder = ColumnsBuilder(fields)
    for start in range(0, len(keys), _BATCH):
        part = keys[start : start + _BATCH].tolist()
        rows = rows_of(part) if fields else {}
        for key in part:
            builder.add(rows[key].metadata if key in rows else None)
    return builder.columns()


def _joined(segments: tuple[Segment, ...], fields: Mapping[str, FieldType]) -> tuple[Segment, ...]:
    """Join the last segments while the one before is not twice as long."""
    *before, last = segments
    while before and len(before[-1].keys) < 2 * len(last.keys):
        other = before.pop()
        keys = np.concatenate([other.keys, last.keys])
        last = Segment.of(keys, other.metadata + last.metadata, fields)
    return (*before, last)
