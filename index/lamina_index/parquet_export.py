"""Documents to Parquet, a column for each field of the collection; needs the `parquet` extra."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, BinaryIO

from lamina_index.errors import MissingExtraError
from lamina_index.manifest import FieldType
from lamina_index.store_reading import StoredDocument


@contextmanager
def parquet_writer(
    stream: BinaryIO, fields: Mapping[str, FieldType], fractional: Set[str]
) -> Iterator[Callable[[Sequence[StoredDocument]], None]]:
    """Give a function that writes some documents, a row group at a time.

    Numbers are 64-bit integers, dates strings in the spelling that they were given in.

    Args:
        stream: Where to.
        fields: The type of every field that the documents have.
        fractional: Fields of numbers that are not all integers, and so are 64-bit floats.

    Raises:
        MissingExtraError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError(
            "writing Parquet needs pyarrow: pip install 'lamina-search[parquet]'"
        ) from error
    types = {
        "string": pa.string(),
        "date": pa.string(),
        "boolean": pa.bool_(),
        "number": pa.int64(),
        "strings": pa.list_(pa.string()),
    }
    columns = [
        (name, pa.float64() if name in fractional else types[kind]) for name, kind in fields.items()
    ]
    # texts of one row group may be longer together than 32-bit offsets reach
    schema = pa.schema([("id", pa.string()), ("text", pa.large_string()), *columns])

    def write(documents: Sequence[StoredDocument]) -> None:
        rows: list[dict[str, Any]] = [
            {"id": document.id, "text": document.text, **document.metadata}
            for document in documents
        ]
        for row in rows:
            row.update({name: float(row[name]) for name in fractional & row.keys()})
        writer.write_table(pa.Table.from_pylist(rows, schema=schema))

    with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
        yield write
