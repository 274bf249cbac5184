"""CSV and TSV: rows under a header line."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lamina_index.corpus.records import MAX_RECORD_BYTES, RowError, Values
from lamina_index.corpus.sources import Line, decode, label, not_utf8, read_lines
from lamina_index.errors import CorpusError

Cells = tuple[int, list[str] | RowError]
"""A record's first line and its cells, or why it has none."""


def read_table(
    path: Path | str,
    *,
    delimiter: str,
    quoted: bool,
    check_columns: Callable[[Sequence[str]], None] = lambda columns: None,
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the first line and the cells by column name of each record below the header.

    Columns without a name are left out; empty lines are no records.

    Args:
        path: A file, or `-`.
        delimiter: One character.
        quoted: CSV after RFC 4180, where a quoted field may hold delimiters, quotes (doubled)
            and line breaks. If false, every line is a record and a quote is a plain character.
        check_columns: Called with the header before the first record.

    Raises:
        CorpusError: If the header cannot be read or names a column twice, and whatever
            `check_columns` raises.
    """
    records = (_csv_records if quoted else _plain_records)(read_lines(path), delimiter)
    header = _header(label(path), records)
    check_columns(header)
    for line, cells in records:
        if isinstance(cells, RowError):
            yield line, cells
        elif len(cells) != len(header):
            yield line, RowError(f"{_columns(len(cells))}; the header has {len(header)}")
        else:
            named = zip(header, cells, strict=True)
            yield line, {name: cell for name, cell in named if name}


def _header(name: str, records: Iterator[Cells]) -> list[str]:
    line, header = next(records, (1, RowError("no header line")))
    if isinstance(header, RowError):
        raise CorpusError(f"{name}:{line}: cannot read the header: {header}")
    named = [column for column in header if column]
    twice = sorted({column for column in named if named.count(column) > 1})
    if twice:
        raise CorpusError(f'{name}:{line}: column "{twice[0]}" is named twice; rename one')
    return header


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"


def _plain_records(lines: Iterator[Line], delimiter: str) -> Iterator[Cells]:
    for line in lines:
        try:
            text = decode(line)
        except RowError as error:
            yield line.number, error
        else:
            if text:
                yield line.number, text.split(delimiter)


def _csv_records(lines: Iterator[Line], delimiter: str) -> Iterator[Cells]:
    """Parse CSV; after a bad record go on at its second line.

    So a stray opening quote costs its own line and not all lines up to the next quote.
    """
    # A process-wide setting of the standard library; only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_RECORD_BYTES))
    feed = _Feed(lines)
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.begin_record()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except (csv.Error, RowError) as error:
            first = feed.go_back()
            yield first, error if isinstance(error, RowError) else _csv_reason(error)
        else:
            if cells:
                yield feed.first_line, cells


def _csv_reason(error: csv.Error) -> RowError:
    message = str(error)
    if "unexpected end of data" in message:
        return RowError("a quoted field is never closed")
    if "new-line character" in message:
        return RowError("a carriage return stands in an unquoted field")
    return RowError(f"not RFC 4180 CSV: {message}")


class _Feed:
    """Lines for `csv.reader`, with a way back to the second line of the record being read."""

    def __init__(self, lines: Iterator[Line]) -> None:
        self._lines = lines
        self._again: deque[Line] = deque()
        self._taken: list[Line] = []
        self._taken_bytes = 0

    def __iter__(self) -> _Feed:
        return self

    def begin_record(self) -> None:
        self._taken = []
        self._taken_bytes = 0

    @property
    def first_line(self) -> int:
        return self._taken[0].number

    def go_back(self) -> int:
        """Put back all lines but the first; give the number of the first."""
        first, *rest = self._taken
        self._again.extendleft(reversed(rest))
        return first.number

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self._taken.append(line)
        if line.content is None:
            raise RowError(f"line is longer than {MAX_RECORD_BYTES // 2**20} MiB")
        self._taken_bytes += len(line.content)
        if len(self._taken) > 1 and self._taken_bytes > MAX_RECORD_BYTES:
            raise RowError(f"a quoted field is not closed within {MAX_RECORD_BYTES // 2**20} MiB")
        try:
            return line.content.decode()
        except UnicodeDecodeError as error:
            raise RowError(not_utf8(line.content, error.start)) from error
