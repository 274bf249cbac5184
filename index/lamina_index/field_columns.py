"""The metadata of some rows as columns of codes, on which filters are quick.

A column holds a field's distinct values, sorted, and a code for each row that has one. A condition
on values becomes a range or a set of codes, so its cost does not depend on how long texts are. A
list of strings gives one entry for each distinct string.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import FilterError
from lamina_index.field_values import Numbers, Texts, Values, joined
from lamina_index.filters import AllOf, Among, AnyOf, Compared, Condition, Exists, Filter, Not
from lamina_index.instants import instant_of
from lamina_index.manifest import FieldType, Metadata, MetadataValue


@dataclass(frozen=True, slots=True)
class Column:
    """One field over N rows.

    Attributes:
        type: The field's type.
        values: Its distinct values.
        codes: (N,) int32, -1 where the field is absent; of a list of strings (E,), one for each
            entry, -1 for an empty list.
        rows: (E,) int32, ascending, the row of each entry; None if each row has one entry.
    """

    type: FieldType
    values: Values
    codes: NDArray[np.int32]
    rows: NDArray[np.int32] | None = None

    def matches(self, condition: Condition, count: int) -> NDArray[np.bool_]:
        """(N,) which of the `count` rows the condition holds for."""
        if isinstance(condition, Exists):
            least = 0 if self.rows is None else -1  # an empty list is there too
            hits: NDArray[np.bool_] = self.codes >= least
        elif isinstance(condition, Among):
            hits = self._among(condition)
        else:
            hits = self._between(*self._range(condition))
        if self.rows is None:
            return hits
        result = np.zeros(count, np.bool_)
        result[self.rows[hits]] = True
        return result

    def value_counts(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(V,) how many of the rows that the mask (N,) tells have each value."""
        codes = self.codes[mask if self.rows is None else mask[self.rows]]
        counts: NDArray[np.int64] = np.bincount(codes + 1, minlength=len(self.values) + 1)[1:]
        return counts

    def followed_by(self, other: Column, count: int) -> Column:
        """The column of these rows, `count` of them, and then those of another of the type."""
        values, own, others = joined(self.values, other.values)  # type: ignore[type-var] # alike
        codes = [_recoded(self.codes, own), _recoded(other.codes, others)]
        rows = None
        if self.rows is not None and other.rows is not None:
            rows = np.concatenate([self.rows, other.rows + np.int32(count)])
        return Column(self.type, values, np.concatenate(codes), rows)

    def _among(self, condition: Among) -> NDArray[np.bool_]:
        values = self.values
        found = {
            values.code(value)  # type: ignore[arg-type] # texts and numbers go by the type
            for value in condition.values
        }
        codes = [code for code in found if code is not None]
        if len(codes) == 1:
            return self._between(codes[0], codes[0] + 1)
        chosen = np.zeros(len(values) + 1, np.bool_)  # the last is for -1
        chosen[codes] = True
        hits: NDArray[np.bool_] = chosen[self.codes]
        return hits

    def _range(self, condition: Condition) -> tuple[int, int]:
        """The codes, from the first up to before the second, that a condition means."""
        values = self.values
        if isinstance(condition, Compared):
            assert isinstance(values, Numbers)  # ordered types are
            match condition.operator:
                case "$gte":
                    return values.first(condition.bound, "left"), len(values)
                case "$gt":
                    return values.first(condition.bound, "right"), len(values)
                case "$lt":
                    return 0, values.first(condition.bound, "left")
                case "$lte":
                    return 0, values.first(condition.bound, "right")
        assert isinstance(values, Texts)
        return values.beginning_with(condition.prefix)  # type: ignore[union-attr] # all that is left

    def _between(self, first: int, end: int) -> NDArray[np.bool_]:
        hits: NDArray[np.bool_] = self.codes >= first
        if end < len(self.values):
            hits &= self.codes < end
        return hits


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """The columns of N rows.

    Attributes:
        count: N.
        columns: By the field's name; a field that no row has may be missing.
    """

    count: int
    columns: dict[str, Column]

    @property
    def types(self) -> dict[str, FieldType]:
        """The types of the fields as they are held."""
        return {name: column.type for name, column in self.columns.items()}

    def followed_by(self, other: FieldColumns) -> FieldColumns:
        """The columns of these rows and then those of `other`; fields of both have one type."""
        columns = {}
        for name in self.columns | other.columns:
            first, second = self.columns.get(name), other.columns.get(name)
            if first is None:
                assert second is not None  # a name is of one or the other
                first = _absent(second.type, self.count)
            columns[name] = first.followed_by(
                second or _absent(first.type, other.count), self.count
            )
        return FieldColumns(self.count + other.count, columns)

    def matches(self, wanted: Filter) -> NDArray[np.bool_]:
        """(N,) which rows pass a filter.

        Raises:
            FilterError: If a field has another type by now than when the filter was read.
        """
        match wanted:
            case Not(inner):
                return ~self.matches(inner)
            case AllOf(inner):
                result = np.ones(self.count, np.bool_)
                for each in inner:
                    result &= self.matches(each)
                return result
            case AnyOf(inner):
                result = np.zeros(self.count, np.bool_)
                for each in inner:
                    result |= self.matches(each)
                return result
        column = self.columns.get(wanted.field)
        if column is None:
            return np.zeros(self.count, np.bool_)
        if column.type != wanted.type:
            raise FilterError(
                f"filter.{wanted.field}",
                f"the field was a {wanted.type} and is a {column.type} by now; ask again",
            )
        return column.matches(wanted, self.count)


@dataclass(slots=True)
class _Growing:
    """A column while rows are added: codes are in the order in which values came."""

    code_of: dict[str | int | float, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("i"))
    rows: array[int] = field(default_factory=lambda: array("i"))

    def add(self, value: str | float | None) -> None:
        if value is None:
            self.codes.append(-1)
        else:
            self.codes.append(self.code_of.setdefault(value, len(self.code_of)))


class ColumnsBuilder:
    """Takes rows one by one and makes their columns."""

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        """Begin with no row; fields that are not named here are left out."""
        self._fields = dict(fields)
        self._growing = {name: _Growing() for name in fields}
        self._count = 0

    def add(self, metadata: Metadata | None) -> None:
        """Add a row; None is one without any metadata."""
        for name, field_type in self._fields.items():
            growing = self._growing[name]
            value = metadata.get(name) if metadata else None
            if field_type != "strings":
                growing.add(None if value is None else _as_held(field_type, value))
            elif isinstance(value, list):
                for item in dict.fromkeys(value) or (None,):
                    growing.add(item)
                    growing.rows.append(self._count)
        self._count += 1

    def columns(self) -> FieldColumns:
        """Give the columns of the rows that were added."""
        made = {}
        for name, growing in self._growing.items():
            ordered = sorted(growing.code_of.items())
            rank = np.full(len(ordered) + 1, -1, np.int32)  # the last is for -1
            rank[[code for _, code in ordered]] = np.arange(len(ordered), dtype=np.int32)
            field_type = self._fields[name]
            made[name] = Column(
                field_type,
                _kind(field_type).of(value for value, _ in ordered),  # type: ignore[misc] # one type each
                rank[np.frombuffer(growing.codes, np.int32)],
                np.array(growing.rows, np.int32) if field_type == "strings" else None,
            )
        return FieldColumns(self._count, made)


def _kind(field_type: FieldType) -> type[Texts] | type[Numbers]:
    return Texts if field_type in ("string", "strings") else Numbers


def _absent(field_type: FieldType, count: int) -> Column:
    """The column of a field that none of `count` rows has."""
    no_rows = np.empty(0, np.int32)
    values = _kind(field_type).of(())
    if field_type == "strings":
        return Column(field_type, values, no_rows, no_rows)
    return Column(field_type, values, np.full(count, -1, np.int32))


def _recoded(codes: NDArray[np.int32], code_of: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.append(code_of, np.int32(-1))[codes]  # the last is for -1


def _as_held(field_type: FieldType, value: MetadataValue) -> str | int | float | None:
    """Give a stored value as columns hold it; None if it is not of the type."""
    match field_type, value:
        case "string", str():
            return value
        case "date", str():
            return instant_of(value)
        case (("number" | "boolean"), int() | float()):
            return value
    return None
