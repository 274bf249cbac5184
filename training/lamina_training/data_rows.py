"""Rows of the files that training and its evaluation read: TSV, CSV and JSONL, plain or gzip.

Dialects and limits are those of corpora (`docs/formats.md`). Unlike there one bad row stops the
reading: a model trained or measured on a part of its data would mislead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lamina_index.corpus.objects import read_objects
from lamina_index.corpus.records import RowError, Values, check_text, describe, quote
from lamina_index.corpus.tables import read_table
from lamina_index.errors import LaminaError
from lamina_index.text import normalize_text


class TrainingDataError(LaminaError):
    """A file cannot be trained or measured on; the message names file, line and remedy."""


class Row:
    """The values of one record, and where it stands."""

    def __init__(self, path: Path, line: int, values: Values) -> None:
        self._path = path
        self._line = line
        self._values = values

    def error(self, problem: str) -> TrainingDataError:
        """Make an error that begins with file and line."""
        return TrainingDataError(f"{self._path}:{self._line}: {problem}")

    def text(self, column: str) -> str:
        """Give a text, normalised as it will be at index and query time.

        Raises:
            TrainingDataError: If it is no string, or blank.
        """
        try:
            return normalize_text(check_text(self._value(column)))
        except RowError as error:
            raise self.error(f'column "{column}": {error}; mend or remove the row') from error

    def name(self, column: str) -> str:
        """Give an id or label: a string as it is, an integer as its digits, true and false.

        Raises:
            TrainingDataError: If it is of another type, or blank.
        """
        value = self._value(column)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return str(value)
        if not isinstance(value, str) or not value.strip():
            found = "blank" if isinstance(value, str) else describe(value)
            raise self.error(
                f'column "{column}" is {found}; expected a name or a whole number, mend the row'
            )
        return value.strip()

    def is_among(self, column: str, names: Sequence[str]) -> bool:
        """Tell whether a value is one of these names; a blank one is none."""
        value = self._value(column)
        return value not in (None, "") and self.name(column) in names

    def number(self, column: str, *, low: float, high: float) -> float:
        """Give a number within bounds.

        Raises:
            TrainingDataError: If it is none, or outside.
        """
        value = self._value(column)
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise TypeError
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = float("nan")
        if not low <= number <= high:
            raise self.error(
                f'column "{column}" is {quote(value)}; expected a number from {low:g} to {high:g}'
            )
        return number

    def _value(self, column: str) -> object:
        if column not in self._values:  # in JSONL each record has its own keys
            raise self.error(_missing([column], list(self._values)))
        return self._values[column]


def read_rows(
    path: Path | str, columns: Sequence[str], *, where: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Row]:
    """Stream the rows of a table or of a JSONL file, by its suffix; memory does not grow.

    Args:
        path: `.tsv`, `.csv`, `.jsonl` or `.ndjson`, also with `.gz`.
        columns: The header must have these; of JSONL each row that asks for one.
        where: For each column the names that a row may have in it; other rows are passed over.

    Raises:
        TrainingDataError: If a column is missing, a record cannot be read, or no row is left.
        CorpusError: If the file cannot be read at all.
    """
    path = Path(path)
    where = where or {}
    needed = [*columns, *where]

    def check_columns(found: Sequence[str]) -> None:
        if missing := [column for column in needed if column not in found]:
            raise TrainingDataError(f"{path}:1: {_missing(missing, found)}")

    name = path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        records = read_objects(path)
    elif name.endswith((".tsv", ".csv")):
        comma = name.endswith(".csv")
        records = read_table(
            path, delimiter="," if comma else "\t", quoted=comma, check_columns=check_columns
        )
    else:
        raise TrainingDataError(f"{path}: expected a .tsv, .csv or .jsonl file, plain or .gz")
    total = kept = 0
    for line, values in records:
        if isinstance(values, RowError):
            raise TrainingDataError(f"{path}:{line}: {values}; mend or remove the row")
        row = Row(path, line, values)
        total += 1
        if all(row.is_among(column, names) for column, names in where.items()):
            kept += 1
            yield row
    if not total:
        raise TrainingDataError(f"{path}: has a header but no rows; expected at least one")
    if not kept:
        asked = " and ".join(f"{column} in {list(names)}" for column, names in where.items())
        raise TrainingDataError(f"{path}: none of its {total} rows has {asked}")


def _missing(missing: Sequence[str], found: Sequence[str]) -> str:
    listed = ", ".join(quote(column) for column in found) or "none"
    wanted = ", ".join(quote(column) for column in missing)
    plural = "columns" if len(missing) > 1 else "column"
    return f"no {plural} {wanted}; found {listed}: rename one or name another in the settings"
