"""Which group each row of a view is in: the rows that have one value of a metadata field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import GroupFieldError
from lamina_index.manifest import FieldType
from lamina_index.matching import Matching
from lamina_index.view_columns import RowColumns

ALONE = -1
"""The code of a row without the field, which is a group of its own."""


@dataclass(frozen=True, slots=True)
class GroupCodes:
    """The group of each row, as a number.

    Attributes:
        held: (N,) int32, of the snapshot's rows by position; `ALONE` where the field is missing.
        delta: (M,) int32, of the newer rows.
        count: One more than the highest code that any row can have.
    """

    held: NDArray[np.int32]
    delta: NDArray[np.int32]
    count: int

    @classmethod
    def alone(cls, held_count: int, delta_count: int) -> GroupCodes:
        """Each row is a group of its own."""
        return cls(np.full(held_count, ALONE, np.int32), np.full(delta_count, ALONE, np.int32), 0)

    @classmethod
    def of(cls, name: str, columns: RowColumns, delta_keys: NDArray[np.int64]) -> GroupCodes:
        """Take the codes of a field's column; once for each generation, then they are kept.

        Args:
            name: The field's.
            columns: Of the view's rows.
            delta_keys: (M,) keys of the newer rows, ascending.

        Raises:
            GroupFieldError: If rows cannot be grouped by the field.
        """
        check_group_field(name, columns.fields)
        known = columns.group_codes.get(name)
        if known is None:
            known = columns.group_codes[name] = _codes(name, columns, delta_keys)
        return known

    def total(self, matching: Matching) -> int:
        """Number of groups that matching rows are in."""
        counts = np.bincount(self.held[matching.held] + 1, minlength=self.count + 1)
        counts += np.bincount(self.delta[matching.delta] + 1, minlength=self.count + 1)
        return int(counts[0]) + int(np.count_nonzero(counts[1:]))


def check_group_field(name: str, fields: Mapping[str, FieldType]) -> None:
    """Refuse a field that rows cannot be grouped by.

    Raises:
        GroupFieldError: If there is no such field, or a row can have several values of it.
    """
    if name not in fields:
        known = ", ".join(sorted(each for each, kind in fields.items() if kind != "strings"))
        raise GroupFieldError(f"no such metadata: {name!r}; there is: {known or 'none'}")
    if fields[name] == "strings":
        raise GroupFieldError(
            f"{name!r} is a list of strings, so a document could be in several groups; "
            "expected a field with one value"
        )


def _codes(name: str, columns: RowColumns, delta_keys: NDArray[np.int64]) -> GroupCodes:
    column = columns.held.columns.get(name)
    held = column.codes if column else np.full(columns.held.count, ALONE, np.int32)
    count = len(column.values) if column else 0
    if not len(delta_keys):
        return GroupCodes(held, np.empty(0, np.int32), count)
    newer: dict[str | int | float, int] = {}
    parts = []
    for segment in columns.segments:
        own = segment.columns.columns.get(name)
        if own is None:
            parts.append(np.full(len(segment.keys), ALONE, np.int32))
            continue
        table = np.full(len(own.values) + 1, ALONE, np.int32)  # the last is for `ALONE`
        for code in range(len(own.values)):
            value = own.values.value(code)
            known = column.values.code(value) if column else None  # type: ignore[arg-type] # same type
            table[code] = newer.setdefault(value, count + len(newer)) if known is None else known
        parts.append(table[own.codes])
    keys = np.concatenate([segment.keys for segment in columns.segments])
    codes = np.concatenate(parts)[np.searchsorted(keys, delta_keys)]
    return GroupCodes(held, codes, count + len(newer))
