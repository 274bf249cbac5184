"""Columns of metadata in a file that is mapped for reading.

The file is in the safetensors format (a JSON header, then flat arrays), which many tools read. Its
arrays are named by the field's place in the header's `fields` and by what they hold: `0.codes`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from lamina_index.field_columns import Column, FieldColumns
from lamina_index.field_values import Arrays, Numbers, Texts

_DTYPES = {"<f8": "F64", "<i8": "I64", "<i4": "I32", "<i2": "I16", "|u1": "U8"}
_CODES = {"codes": "<i4"}
_ROWS = {"rows": "<i4"}
_MAX_HEADER_BYTES = 16 << 20


def write_columns(path: Path, columns: FieldColumns) -> None:
    """Write columns to a new file."""
    arrays: Arrays = {}
    for place, column in enumerate(columns.columns.values()):
        held = {"codes": column.codes, **column.values.arrays}
        if column.rows is not None:
            held["rows"] = column.rows
        arrays |= {f"{place}.{part}": array for part, array in held.items()}
    widest_first = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so all are aligned
    header: dict[str, Any] = {
        "__metadata__": {
            "rows": str(columns.count),
            "fields": orjson.dumps(list(columns.types.items())).decode(),
        }
    }
    end = 0
    for name, array in widest_first:
        begin, end = end, end + array.nbytes
        dtype = _DTYPES[array.dtype.newbyteorder("<").str]
        header[name] = {"dtype": dtype, "shape": [len(array)], "data_offsets": [begin, end]}
    written = orjson.dumps(header)
    written += b" " * (-len(written) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(written)))
        stream.write(written)
        for _, array in widest_first:
            stream.write(np.ascontiguousarray(array).data)


def read_columns(path: Path) -> FieldColumns:
    """Map a file of columns.

    Raises:
        ValueError: If it is not as `write_columns` writes it.
    """
    mapped = np.memmap(path, np.uint8, "r").view(np.ndarray)
    if len(mapped) < 8:
        raise ValueError("too short for a header")
    (size,) = struct.unpack("<Q", mapped[:8].tobytes())
    if size > min(len(mapped) - 8, _MAX_HEADER_BYTES):
        raise ValueError(f"its header would have {size} bytes")
    try:
        header = orjson.loads(mapped[8 : 8 + size].tobytes())
        count = int(header["__metadata__"]["rows"])
        fields = orjson.loads(header["__metadata__"]["fields"])
        body = mapped[8 + size :]
        columns = {}
        for place, (name, field_type) in enumerate(fields):
            kind = Texts if field_type in ("string", "strings") else Numbers
            has_rows = field_type == "strings"
            parts = {**kind.dtypes, **_CODES, **(_ROWS if has_rows else {})}
            held = {
                part: _array(body, header[f"{place}.{part}"], dtype)
                for part, dtype in parts.items()
            }
            codes, rows = held.pop("codes"), held.pop("rows", None)
            if len(codes) != (count if rows is None else len(rows)):
                raise ValueError(f"{len(codes)} codes of field {name!r} for {count} rows")
            columns[name] = Column(field_type, kind(**held), codes, rows)
    except (KeyError, TypeError, orjson.JSONDecodeError) as error:
        raise ValueError(f"its header does not fit ({error!r})") from error
    return FieldColumns(count, columns)


def _array(body: NDArray[np.uint8], entry: dict[str, Any], dtype: str) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    if entry["dtype"] != _DTYPES[dtype] or not 0 <= begin <= end <= len(body):
        raise ValueError(f"an array of {entry['dtype']} at {begin} to {end} of {len(body)}")
    return body[begin:end].view(dtype)
