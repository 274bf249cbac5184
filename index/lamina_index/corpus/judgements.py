"""Queries and relevance judgements of an evaluation.

Here a bad record stops the reading: a score over a part of the queries would mislead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from lamina_index.corpus.objects import read_objects
from lamina_index.corpus.records import (
    Judgement,
    Query,
    RowError,
    Values,
    check_id,
    check_text,
    quote,
)
from lamina_index.corpus.tables import read_table
from lamina_index.errors import CorpusError


def read_queries(path: Path | str) -> Iterator[Query]:
    """Stream the queries of a TSV, CSV or JSONL file: id first, a `text`, perhaps a `split`.

    The id is `id` or `_id` where there is one, or else the first column or value.

    Raises:
        CorpusError: If the file or any record cannot be read; names file and line.
    """
    for line, values in _read(path):
        try:
            if "text" not in values:
                raise RowError('no "text"')
            key = next((name for name in ("id", "_id") if name in values), next(iter(values)))
            yield Query(check_id(values[key]), check_text(values["text"]), _split(values))
        except RowError as error:
            raise CorpusError(f"{path}:{line}: {error}") from error


def read_qrels(path: Path | str) -> Iterator[Judgement]:
    """Stream the judgements of a TSV, CSV or JSONL file.

    The first two columns are query id and document id, whatever their names. The third, unless
    it is `split`, is the grade if it is numeric in the first record, and then must be in every
    record; otherwise each judgement has grade 1.

    Raises:
        CorpusError: If the file or any record cannot be read; names file and line.
    """
    graded: bool | None = None
    for line, values in _read(path):
        try:
            names = [name for name in values if name != "split"]
            if len(names) < 2:
                raise RowError("fewer than two columns; expected query id and document id")
            third = values[names[2]] if len(names) > 2 else None
            if graded is None:
                graded = _number(third) is not None
            grade = _number(third) if graded else 1
            if grade is None:
                raise RowError(f"grade {quote(third)} is not a finite number")
            query_id, document_id = check_id(values[names[0]]), check_id(values[names[1]])
            yield Judgement(query_id, document_id, grade, _split(values))
        except RowError as error:
            raise CorpusError(f"{path}:{line}: {error}") from error


def _read(path: Path | str) -> Iterator[tuple[int, Values]]:
    """Yield line and values of each record of a table or JSONL file, by its suffix."""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        rows = read_objects(path)
    elif name.endswith((".tsv", ".csv")):
        quoted = name.endswith(".csv")
        rows = read_table(path, delimiter="," if quoted else "\t", quoted=quoted)
    else:
        raise CorpusError(f"{path}: expected a .tsv, .csv or .jsonl file, plain or .gz")
    for line, values in rows:
        if isinstance(values, RowError):
            raise CorpusError(f"{path}:{line}: {values}") from values
        yield line, values


def _split(values: Values) -> str | None:
    split = values.get("split") or None
    if split is not None and not isinstance(split, str):
        raise RowError(f"split {quote(split)} is not a string")
    return split


def _number(value: object) -> float | None:
    """Read a grade, keeping whole ones whole."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number
