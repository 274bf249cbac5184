"""Text that has no records of its own: plain lines, and folders of text files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lamina_index.corpus.records import MAX_RECORD_BYTES, RowError, Values
from lamina_index.corpus.sources import decode, not_utf8, open_stream, read_lines
from lamina_index.disk import shown_path
from lamina_index.errors import CorpusError

_TEXT_SUFFIXES = (".md", ".txt", ".md.gz", ".txt.gz")


def read_text_lines(path: Path | str) -> Iterator[tuple[int, Values | RowError]]:
    """Yield the number and the text of each line that is not blank.

    Raises:
        CorpusError: If the file cannot be read.
    """
    for line in read_lines(path):
        try:
            text = decode(line)
        except RowError as error:
            yield line.number, error
        else:
            if text.strip():
                yield line.number, {"text": text}


def read_folder(folder: Path) -> Iterator[tuple[Path, Values | RowError]]:
    """Yield each .md and .txt file below a folder: relative path as id, whole content as text.

    Sorted by name within each folder, files before sub-folders. Names that begin with a dot are
    passed over, and links to folders are not followed.

    Raises:
        CorpusError: If there is no such file.
    """
    found = False
    for path in text_files(folder):
        found = True
        try:
            text = _read_whole(path)
        except RowError as error:
            yield path, error
        else:
            yield path, {"id": shown_path(path.relative_to(folder)), "text": text}
    if not found:
        raise CorpusError(f"{folder}: holds no .md or .txt file; name a file, or another folder")


def text_files(folder: Path) -> Iterator[Path]:
    """Find the files that `read_folder` reads, in its order."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(_TEXT_SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def _read_whole(path: Path) -> str:
    try:
        with open_stream(path) as stream:
            content = stream.read(MAX_RECORD_BYTES + 1)
    except CorpusError as error:  # one bad file of a folder is like one bad row
        raise RowError(str(error)) from error
    if len(content) > MAX_RECORD_BYTES:
        raise RowError(f"file is longer than {MAX_RECORD_BYTES // 2**20} MiB; split it")
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise RowError(not_utf8(content, error.start)) from error
