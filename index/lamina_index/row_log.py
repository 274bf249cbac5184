"""Append-only JSON lines about single rows, kept in step with the store by their length."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import orjson

REJECTS_FILE = "rejects.jsonl"
TRUNCATED_FILE = "truncated.jsonl"


class RowLog:
    """One log of a build, such as `rejects.jsonl`.

    The file is made by the first line. After a crash it may hold lines of rows whose transaction
    never committed; opening it at the committed length drops them, so no row is told twice.
    """

    def __init__(self, path: Path, committed_bytes: int) -> None:
        """Open the log at a length that is known to be committed."""
        self._path = path
        self.size_bytes = 0
        if path.exists():
            self.size_bytes = min(committed_bytes, path.stat().st_size)
            os.truncate(path, self.size_bytes)

    def first_line(self) -> bytes:
        """The first line, or nothing."""
        with self._path.open("rb") as stream:
            return stream.readline()

    def append(self, rows: Sequence[object]) -> None:
        """Write one dataclass a line, durably; `size_bytes` is then the length to commit."""
        if not rows:
            return
        lines = b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
        with self._path.open("ab") as stream:
            stream.write(lines)
            stream.flush()
            os.fsync(stream.fileno())
        self.size_bytes += len(lines)
