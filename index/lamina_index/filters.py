"""Filters: conditions on metadata, written as JSON, held to the types of the fields they name.

    {"kind": "class"}                                  equal; a list of strings contains it
    {"year": {"$gte": 2000, "$lt": 2010}}              both
    {"kind": "class", "year": {"$exists": true}}       both
    {"$or": [{"kind": {"$in": ["a", "b"]}}, {"$not": {"path": {"$prefix": "os."}}}]}

`$ne`, `$nin` and `$not` say that the condition does not hold, so a document without the field
passes them; every other condition needs the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from lamina_index.errors import FilterError
from lamina_index.instants import instant_of
from lamina_index.manifest import FieldType
from lamina_index.text import repair_text

MAX_DEPTH = 16
"""Deepest nesting of `$and`, `$or` and `$not`."""

MAX_CONDITIONS = 256
"""Most conditions in one filter."""

MAX_VALUES = 10_000
"""Most values in one filter, over all its lists."""

FilterValue: TypeAlias = str | int | float
"""A value as columns hold it: text, number, 0 or 1 for booleans, microseconds for dates."""


@dataclass(frozen=True, slots=True)
class Among:
    """The field has one of the values."""

    field: str
    type: FieldType
    values: tuple[FilterValue, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The field's value is above or below a number or date."""

    field: str
    type: FieldType
    operator: Literal["$gt", "$gte", "$lt", "$lte"]
    bound: int | float


@dataclass(frozen=True, slots=True)
class Prefixed:
    """The field's text, or one of its texts, begins with this."""

    field: str
    type: FieldType
    prefix: str


@dataclass(frozen=True, slots=True)
class Exists:
    """The field is there; an empty list is."""

    field: str
    type: FieldType


Condition: TypeAlias = Among | Compared | Prefixed | Exists


@dataclass(frozen=True, slots=True)
class Not:
    """The filter does not hold."""

    inner: Filter


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every one of the filters holds; all documents pass where there is none."""

    inner: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one of the filters holds."""

    inner: tuple[Filter, ...]


Filter: TypeAlias = Condition | Not | AllOf | AnyOf

_ORDERED: tuple[FieldType, ...] = ("number", "date")
_TEXTUAL: tuple[FieldType, ...] = ("string", "strings")
_OPERATORS = "$eq, $ne, $in, $nin, $gt, $gte, $lt, $lte, $exists or $prefix"
_VALUE: dict[FieldType, str] = {
    "string": "a string",
    "strings": "a string",
    "number": "a finite number (integers within 64 bits)",
    "boolean": "true or false",
    "date": "an ISO 8601 date, such as 2026-01-31 or 2026-01-31T12:00:00Z",
}


def parse_filter(value: object, fields: Mapping[str, FieldType], *, path: str = "filter") -> Filter:
    """Read a filter as it was parsed from JSON.

    Args:
        value: The JSON value.
        fields: Names and types of the collection's metadata.
        path: What the value is called in errors.

    Raises:
        FilterError: If it is no filter, names a field that the collection does not have, compares
            it with a value of another type, or is too large.
    """
    return _Parser(fields).filter(value, path, 0)


def outcome_of_all(wanted: Filter) -> bool | None:
    """What a filter says of every document, whatever its metadata; None if that depends on it."""
    match wanted:
        case Not(inner):
            found = outcome_of_all(inner)
            return None if found is None else not found
        case AllOf(inners) | AnyOf(inners):
            decisive = isinstance(wanted, AnyOf)
            outcomes = {outcome_of_all(inner) for inner in inners}
            if decisive in outcomes:
                return decisive
            return None if None in outcomes else not decisive
        case _:
            return None


class _Parser:
    """Counts what one filter holds while it is read."""

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        self._fields = fields
        self._conditions = 0
        self._values = 0

    def filter(self, value: object, path: str, depth: int) -> Filter:
        if not isinstance(value, dict):
            raise FilterError(path, f"{_shown(value)}, expected an object of conditions")
        if depth > MAX_DEPTH:
            raise FilterError(path, f"nested more than {MAX_DEPTH} deep")
        parts = [self._part(key, inner, f"{path}.{key}", depth) for key, inner in value.items()]
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _part(self, key: str, value: object, path: str, depth: int) -> Filter:
        if key == "$not":
            return Not(self.filter(value, path, depth + 1))
        if key in ("$and", "$or"):
            if not isinstance(value, list) or not value:
                raise FilterError(path, f"{_shown(value)}, expected a list of filters")
            inner = tuple(
                self.filter(item, f"{path}[{position}]", depth + 1)
                for position, item in enumerate(value)
            )
            return AllOf(inner) if key == "$and" else AnyOf(inner)
        if key.startswith("$"):
            raise FilterError(path, "no such operator; expected a field, $and, $or or $not")
        field_type = self._fields.get(key)
        if field_type is None:
            known = ", ".join(sorted(self._fields)) or "none"
            raise FilterError(path, f"no such metadata; there is: {known}")
        if not isinstance(value, dict):
            value = {"$eq": value}
        if not value:
            raise FilterError(path, f"an empty object, expected a value or {_OPERATORS}")
        parts = [
            self._condition(key, field_type, operator, operand, path)
            for operator, operand in value.items()
        ]
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _condition(
        self, field: str, field_type: FieldType, operator: str, operand: object, path: str
    ) -> Filter:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise FilterError(path, f"is one condition more than {MAX_CONDITIONS}")
        where = path if operator == "$eq" else f"{path}.{operator}"
        match operator:
            case "$eq" | "$ne":
                equal = Among(field, field_type, (self._value(field_type, operand, where),))
                return equal if operator == "$eq" else Not(equal)
            case "$in" | "$nin":
                among = Among(field, field_type, self._list(field_type, operand, where))
                return among if operator == "$in" else Not(among)
            case "$gt" | "$gte" | "$lt" | "$lte":
                _check_type(field_type, _ORDERED, operator, where)
                bound = self._value(field_type, operand, where)
                assert not isinstance(bound, str)  # those two types have no texts
                return Compared(field, field_type, operator, bound)
            case "$prefix":
                _check_type(field_type, _TEXTUAL, operator, where)
                if not isinstance(operand, str):
                    raise FilterError(where, f"{_shown(operand)}, expected a string")
                return Prefixed(field, field_type, repair_text(operand))
            case "$exists":
                if not isinstance(operand, bool):
                    raise FilterError(where, f"{_shown(operand)}, expected true or false")
                there = Exists(field, field_type)
                return there if operand else Not(there)
        raise FilterError(where, f"no such operator; expected {_OPERATORS}")

    def _list(self, field_type: FieldType, operand: object, where: str) -> tuple[FilterValue, ...]:
        if not isinstance(operand, list):
            raise FilterError(where, f"{_shown(operand)}, expected a list of values")
        if len(operand) + self._values > MAX_VALUES:
            raise FilterError(where, f"more than {MAX_VALUES} values in one filter")
        return tuple(
            self._value(field_type, item, f"{where}[{position}]")
            for position, item in enumerate(operand)
        )

    def _value(self, field_type: FieldType, value: object, where: str) -> FilterValue:
        self._values += 1
        found = _as_held(field_type, value)
        if found is None:
            hint = "; ask for a missing field with $exists" if value is None else ""
            raise FilterError(
                where,
                f"{_shown(value)}, expected {_VALUE[field_type]}: the field is a "
                f"{field_type}{hint}",
            )
        return found


def _as_held(field_type: FieldType, value: object) -> FilterValue | None:
    """Give a JSON value as columns hold those of the type; None if it is not of it."""
    match field_type, value:
        case ("string" | "strings", str()):
            return repair_text(value)
        case ("boolean", bool()):
            return int(value)
        case ("number", bool()):
            return None
        case ("number", int()):
            return value if -(2**63) <= value < 2**63 else None
        case ("number", float()):
            return value if math.isfinite(value) else None
        case ("date", str()):
            return instant_of(value)
    return None


def _check_type(
    field_type: FieldType, allowed: tuple[FieldType, ...], operator: str, where: str
) -> None:
    if field_type not in allowed:
        raise FilterError(
            where, f"the field is a {field_type}; {operator} is for {' and '.join(allowed)}"
        )


def _shown(value: Any) -> str:
    """Name a JSON value, or its kind where that is long."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list():
            return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
