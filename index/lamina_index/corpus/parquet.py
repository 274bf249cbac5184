"""Parquet, read a small batch at a time; needs the `parquet` extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina_index.corpus.records import RowError, Values
from lamina_index.errors import CorpusError, MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_ROWS = 1024


def read_parquet(
    path: Path, *, check_columns: Callable[[Sequence[str]], None]
) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the number, from 1, and the values of each row, or why they cannot be had.

    `check_columns` is called with the column names first. Dates and times become ISO 8601
    strings, decimals floats; null is None.

    Raises:
        MissingExtraError: If pyarrow is not installed.
        CorpusError: If the file is not Parquet or is damaged, and whatever `check_columns` raises.
    """
    row = 0
    with _open(path) as file:
        import pyarrow as pa

        check_columns(file.schema_arrow.names)
        try:
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                for values in _batch_rows(_whole_microseconds(batch)):
                    row += 1
                    yield row, values
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path}: damaged Parquet after row {row} ({error})") from error


def _open(path: Path) -> pq.ParquetFile:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError(
            f"{path}: reading Parquet needs pyarrow: pip install 'lamina-search[parquet]'"
        ) from error
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise CorpusError(f"{path}: no such file") from error
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: cannot be read as Parquet ({error})") from error


def _whole_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cut nanosecond timestamps to what Python's datetime holds."""
    import pyarrow as pa

    for position, column in enumerate(batch.schema):
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            whole = batch.column(position).cast(pa.timestamp("us", column.type.tz), safe=False)
            batch = batch.set_column(position, column.name, whole)
    return batch


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Values | RowError]:
    try:
        rows = batch.to_pylist()
    except UnicodeDecodeError:  # in one of the rows: look for it
        for position in range(batch.num_rows):
            try:
                yield _json_like(batch.slice(position, 1).to_pylist()[0])
            except UnicodeDecodeError:
                yield RowError("a string is not UTF-8")
    else:
        yield from map(_json_like, rows)


def _json_like(row: dict[str, Any]) -> Values:
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: object) -> object:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
