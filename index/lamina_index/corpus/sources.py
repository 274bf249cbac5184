"""Bytes from files, gzip and standard input, cut into lines of bounded length."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lamina_index.corpus.records import MAX_RECORD_BYTES, RowError
from lamina_index.disk import shown_path
from lamina_index.errors import CorpusError

STDIN = "-"
"""The path that means standard input."""

_BLOCK_BYTES = 2**20
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
GZIP_MAGIC = b"\x1f\x8b"  # no UTF-8 text begins so, hence gzip is known by content, not by name


@dataclass(frozen=True, slots=True)
class Line:
    """A physical line: its number from 1, and its bytes with the line ending.

    `content` is None for a line longer than `MAX_RECORD_BYTES`, which is skipped unread.
    """

    number: int
    content: bytes | None


def label(path: Path | str) -> str:
    """Name an input in messages."""
    return "<stdin>" if str(path) == STDIN else shown_path(path)


@contextmanager
def open_stream(path: Path | str) -> Iterator[io.BufferedIOBase]:
    """Open an input for reading, unpacked if it is gzip.

    Raises:
        CorpusError: If the file is missing, a folder, unreadable, or damaged gzip.
    """
    stdin = str(path) == STDIN
    try:
        with nullcontext(sys.stdin.buffer) if stdin else Path(path).open("rb") as file:
            # Standard input may have been replaced by a stream without peek().
            stream = (
                file
                if isinstance(file, io.BufferedReader)
                else io.BufferedReader(cast(io.RawIOBase, file))
            )
            packed = stream.peek(2)[:2] == GZIP_MAGIC
            yield gzip.GzipFile(fileobj=stream) if packed else stream
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{label(path)}: cut or damaged gzip ({error}); copy it again") from error
    except OSError as error:
        raise CorpusError(f"{label(path)}: cannot be read ({error.strerror or error})") from error


def read_lines(path: Path | str) -> Iterator[Line]:
    """Yield the physical lines of an input, its UTF-8 byte order mark left out.

    A line ends with LF or CR LF; only where the first MiB holds a CR but no LF does each CR end
    a line. Memory stays within a few times `MAX_RECORD_BYTES`, however long the lines are.

    Raises:
        CorpusError: If the input is empty, UTF-16, or cannot be read.
    """
    with open_stream(path) as stream:
        block = stream.read(_BLOCK_BYTES)
        if block.startswith(_UTF16_BOMS):
            raise CorpusError(
                f"{label(path)}: is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"
            )
        block = block.removeprefix(_UTF8_BOM)
        if not block:
            raise CorpusError(f"{label(path)}: is empty; expected at least one record")
        ending = b"\r" if b"\r" in block and b"\n" not in block else b"\n"
        number, begun = 1, bytearray()
        while block:
            *ended, rest = block.split(ending)
            for part in ended:
                yield _line(number, begun, part, ending)
                number, begun = number + 1, bytearray()
            # One byte past the limit is enough to know that the line is too long.
            begun += rest[: MAX_RECORD_BYTES + 1 - len(begun)]
            block = stream.read(_BLOCK_BYTES)
        if begun:
            yield _line(number, begun, b"", b"")


def _line(number: int, begun: bytearray, rest: bytes, ending: bytes) -> Line:
    """Join the parts of a line unless it is too long."""
    if len(begun) + len(rest) > MAX_RECORD_BYTES:
        return Line(number, None)
    return Line(number, bytes(begun) + rest + ending)


def decode(line: Line) -> str:
    """Give the characters of a line without its ending.

    Raises:
        RowError: If it is too long or not UTF-8.
    """
    if line.content is None:
        raise RowError(f"line is longer than {MAX_RECORD_BYTES // 2**20} MiB")
    try:
        text = line.content.decode()
    except UnicodeDecodeError as error:
        raise RowError(not_utf8(line.content, error.start)) from error
    return text.removesuffix("\n").removesuffix("\r")


def not_utf8(content: bytes, position: int) -> str:
    """Say which byte of a line is not UTF-8."""
    return f"not UTF-8: byte 0x{content[position]:02x} at position {position + 1}"
