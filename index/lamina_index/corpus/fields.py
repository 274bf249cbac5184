"""The metadata fields of a collection: each has one type, found once and then kept."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice

from lamina_index.corpus.records import RowError, describe, quote
from lamina_index.instants import instant_of
from lamina_index.manifest import FieldType, Metadata, MetadataValue
from lamina_index.text import repair_text

MAX_FIELDS = 256
"""Most fields that a collection can have."""

MAX_FIELD_NAME_BYTES = 128
"""Longest field name, in bytes of UTF-8."""

RESERVED_FIELDS = frozenset({"id", "text"})
"""Names that stand beside the metadata in exported rows."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "TRUE": True}
_BOOLEANS |= {"false": False, "False": False, "FALSE": False}

_EXPECTED: dict[FieldType, str] = {
    "string": "a string",
    "number": "a finite number (integers within 64 bits)",
    "boolean": "true or false",
    "date": "an ISO 8601 date",
    "strings": "a list of strings",
}


class FieldTypes:
    """Finds the types of metadata fields and holds every later value to them.

    Attributes:
        known: Type by field name; what `collection.json` keeps.
    """

    def __init__(self, known: Mapping[str, FieldType] | None = None) -> None:
        self.known: dict[str, FieldType] = dict(known or {})

    def adopt(self, fixed: Mapping[str, FieldType]) -> bool:
        """Take over the types that others have fixed meanwhile, instead of those found here.

        Returns:
            Whether a value that was checked before may not fit any more.
        """
        changed = any(self.known.get(name, kind) != kind for name, kind in fixed.items())
        merged = {**fixed, **{name: k for name, k in self.known.items() if name not in fixed}}
        self.known = dict(islice(merged.items(), MAX_FIELDS))
        return changed or len(merged) > MAX_FIELDS

    def infer(self, rows: Iterable[Mapping[str, object]], *, textual: bool = False) -> None:
        """Fix the type of every field in the rows that has none yet.

        Rows are taken in order, and one that `check` refuses decides nothing. The first value
        decides; but a field is a date only if all its strings in these rows are dates, and in
        textual rows (CSV, TSV: every value a string) it is a number, boolean or date only if all
        its values are, otherwise a string.
        """
        found: dict[str, FieldType] = {}
        for row in rows:
            if not row.keys() <= self.known.keys():
                with suppress(RowError):
                    found |= self._new_types(row, found, textual)
        self.known |= found

    def check(self, values: Mapping[str, object], *, textual: bool = False) -> Metadata:
        """Give one row's values as they are stored; None means that the field is absent.

        A field met for the first time gets the type of this value, if the row is good.

        Raises:
            RowError: If a name or value does not fit; the message says which and why.
        """
        if not values.keys() <= self.known.keys():
            self.known |= self._new_types(values, {}, textual)
        return {
            name: _converted(name, value, self.known[name], textual)
            for name, value in values.items()
            if value is not None
        }

    def _new_types(
        self, values: Mapping[str, object], found: Mapping[str, FieldType], textual: bool
    ) -> dict[str, FieldType]:
        """Give the types of a row's fields that have none yet, as of this row.

        Args:
            values: Of one row.
            found: Types that earlier rows gave such fields, which may yet become `string`.
            textual: As for `infer`.

        Raises:
            RowError: As `check`.
        """
        types: dict[str, FieldType] = {}
        for name, value in values.items():
            if value is None:
                continue
            if fault := name_fault(name):
                raise RowError(f"field {quote(name)} {fault}")
            if name in self.known:
                _converted(name, value, self.known[name], textual)
                continue
            if len(self.known) + len(found.keys() | types.keys() | {name}) > MAX_FIELDS:
                raise RowError(f"field {quote(name)} would be one more than {MAX_FIELDS}")
            kind = _textual_type(value) if textual else _value_type(value)
            if kind is None:
                raise RowError(f"field {quote(name)} is {_describe_value(value)}; {_SUPPORTED}")
            before = found.get(name, kind)
            if kind != before:
                if not textual and {kind, before} != {"string", "date"}:
                    raise _mismatch(name, value, before)
                kind = "string"
            types[name] = kind
        return types


def _converted(name: str, value: object, known: FieldType, textual: bool) -> MetadataValue:
    """Give a value as one of its field's type.

    Raises:
        RowError: If it is of another.
    """
    converted = _parse(value, known) if textual else _take(value, known)
    if converted is None:
        raise _mismatch(name, value, known)
    return converted


def _mismatch(name: str, value: object, known: FieldType) -> RowError:
    return RowError(
        f"field {quote(name)} is {_describe_value(value)}; earlier rows made it {_EXPECTED[known]}"
    )


_SUPPORTED = "expected a string, finite number within 64 bits, boolean, date or list of strings"


def name_fault(name: str) -> str | None:
    """Why a name cannot be a field's; None if it can."""
    if not name.strip():
        return "has a blank name"
    if name in RESERVED_FIELDS:
        return "cannot be metadata beside another id or text field; rename it"
    if repair_text(name) != name:
        return "has a NUL or a lone surrogate in its name"
    if len(name.encode()) > MAX_FIELD_NAME_BYTES:
        return f"has a name longer than {MAX_FIELD_NAME_BYTES} bytes"
    return None


def _describe_value(value: object) -> str:
    if isinstance(value, list):
        odd = next((item for item in value if not isinstance(item, str)), None)
        return (
            "a list of strings"
            if odd is None and None not in value
            else "a list with other than strings"
        )
    return describe(value)


def _value_type(value: object) -> FieldType | None:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number" if _is_number(value) else None
        case str():
            return "string" if instant_of(value) is None else "date"
        case list():
            return "strings" if all(isinstance(item, str) for item in value) else None
        case _:
            return None


def _textual_type(value: object) -> FieldType:
    if not isinstance(value, str):
        raise TypeError(f"textual rows hold strings only, found {type(value).__name__}")
    if value in _BOOLEANS:
        return "boolean"
    if _number(value) is not None:
        return "number"
    return "string" if instant_of(value) is None else "date"


def _take(value: object, known: FieldType) -> MetadataValue | None:
    """Give a JSON value if it is of the known type, else None."""
    match known, value:
        case ("string", str()):
            return repair_text(value)
        case ("date", str()) if instant_of(value) is not None:
            return value
        case ("boolean", bool()):
            return value
        case ("number", int() | float()) if not isinstance(value, bool) and _is_number(value):
            return value
        case ("strings", list()) if all(isinstance(item, str) for item in value):
            return [repair_text(item) for item in value]
        case _:
            return None


def _parse(value: object, known: FieldType) -> MetadataValue | None:
    """Give a table cell as the known type, or None if it cannot be read so."""
    if not isinstance(value, str):
        return None
    match known:
        case "string":
            return repair_text(value)
        case "number":
            return _number(value)
        case "boolean":
            return _BOOLEANS.get(value)
        case "date":
            return None if instant_of(value) is None else value
        case "strings":
            return None


def _is_number(value: float) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return math.isfinite(value)


def _number(text: str) -> float | None:
    """Read a number as JSON writes it, so that 01, +1, nan and 1,000 stay strings."""
    if _INTEGER.fullmatch(text):
        whole = int(text)
        return whole if _is_number(whole) else None
    if not _NUMBER.fullmatch(text) or text.lstrip("-").isdigit():
        return None  # only digits: an integer past 64 bits, which a float would round
    value = float(text)
    return value if math.isfinite(value) else None
