"""Which rows of a view pass a filter, and how many of them have which values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina_index.field_columns import Column, FieldColumns
from lamina_index.filters import Filter
from lamina_index.instants import instant_text
from lamina_index.manifest import FieldType
from lamina_index.view_columns import RowColumns

FACET_VALUES = 20
"""Most values that a facet names."""


@dataclass(frozen=True, slots=True)
class Facet:
    """How many matching documents have each value of a field.

    Attributes:
        values: The most frequent values and their numbers of documents; equal numbers in the
            order of the values.
        others: How many more values there are.
    """

    values: list[tuple[str | int | float | bool, int]]
    others: int


@dataclass(frozen=True, slots=True)
class Matching:
    """The rows of one view that pass a filter, deleted ones left out.

    Attributes:
        held: (N,) which positions of the snapshot.
        held_count: How many.
        delta: (M,) which rows of the delta.
        count: How many rows in all.
    """

    held: NDArray[np.bool_]
    held_count: int
    delta: NDArray[np.bool_]
    count: int

    @classmethod
    def of(
        cls,
        wanted: Filter | None,
        columns: RowColumns,
        dead: NDArray[np.int64],
        delta_keys: NDArray[np.int64],
    ) -> Matching:
        """Find the rows.

        Args:
            wanted: The filter; None passes every row.
            columns: The view's.
            dead: Positions of the snapshot to pass over.
            delta_keys: (M,) ascending.

        Raises:
            FilterError: If a field has another type by now than when the filter was read.
        """
        if wanted is None:
            return cls.every(columns.held.count, dead, len(delta_keys))
        held = columns.held.matches(wanted)
        held[dead] = False
        delta = np.zeros(len(delta_keys), np.bool_)
        for segment in columns.segments:
            keys = segment.keys[segment.columns.matches(wanted)]
            delta |= among(delta_keys, keys)
        return cls.rows(held, delta)

    @classmethod
    def every(cls, held_count: int, dead: NDArray[np.int64], delta_count: int) -> Matching:
        """All rows but the deleted ones."""
        held = np.ones(held_count, np.bool_)
        held[dead] = False
        return cls.rows(held, np.ones(delta_count, np.bool_))

    @classmethod
    def rows(cls, held: NDArray[np.bool_], delta: NDArray[np.bool_]) -> Matching:
        """The rows of two masks, (N,) and (M,); no deleted row is among them."""
        held_count = int(np.count_nonzero(held))
        return cls(held, held_count, delta, held_count + int(np.count_nonzero(delta)))

    def facet(self, field: str, columns: RowColumns, delta_keys: NDArray[np.int64]) -> Facet:
        """Count the values of a field over the rows."""
        matching_keys = delta_keys[self.delta]
        parts = [
            (segment.columns, among(segment.keys, matching_keys)) for segment in columns.segments
        ]
        return _facet(field, columns.fields.get(field), [(columns.held, self.held), *parts])


def among(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) which keys are in an ascending array."""
    if len(wanted) == 0:
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
    found: NDArray[np.bool_] = wanted[places] == keys
    return found


def _facet(
    field: str,
    field_type: FieldType | None,
    parts: Sequence[tuple[FieldColumns, NDArray[np.bool_]]],
) -> Facet:
    """Add up the values of several parts, of which the first may be large."""
    (first, mask), *rest = parts
    main = first.columns.get(field)
    counts = main.value_counts(mask) if main else np.empty(0, np.int64)
    extra: dict[str | int | float, int] = {}
    for columns, part_mask in rest:
        column = columns.columns.get(field)
        if column is None:
            continue
        found = column.value_counts(part_mask)
        for code in np.flatnonzero(found).tolist():
            value = column.values.value(code)
            known = main.values.code(value) if main else None  # type: ignore[arg-type] # same type
            if known is not None:
                counts[known] += found[code]
            else:
                extra[value] = extra.get(value, 0) + int(found[code])
    best = [*extra.items(), *(_best(main, counts) if main else [])]
    best.sort(key=lambda item: (-item[1], item[0]))
    distinct = len(extra) + int(np.count_nonzero(counts))
    shown = [(_shown(value, field_type), count) for value, count in best[:FACET_VALUES]]
    return Facet(shown, distinct - len(shown))


def _best(column: Column, counts: NDArray[np.int64]) -> list[tuple[str | int | float, int]]:
    """The most frequent values, those of the lowest codes where numbers are equal."""
    codes = np.flatnonzero(counts)
    if len(codes) > FACET_VALUES:
        held = counts[codes]
        least = np.partition(held, -FACET_VALUES)[-FACET_VALUES]
        above, equal = codes[held > least], codes[held == least]
        codes = np.concatenate([above, equal[: FACET_VALUES - len(above)]])
    return [(column.values.value(code), int(counts[code])) for code in codes.tolist()]


def _shown(value: str | float, field_type: FieldType | None) -> str | int | float | bool:
    match field_type:
        case "boolean":
            return bool(value)
        case "date":
            return instant_text(int(value))
    return value
