"""The file `documents.sqlite`: its schema, its connections, and SQLite's errors in plain words."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import orjson

from lamina_index.errors import (
    CollectionBusyError,
    DamagedError,
    FormatError,
    LaminaError,
    ReadOnlyError,
    StorageFullError,
)
from lamina_index.store_words import WORDS_STATEMENTS

STORE_FILE = "documents.sqlite"

_APPLICATION_ID = 0x4C4D4E41  # "LMNA"
STORE_FORMAT = 2
"""What is written. Format 1 lacks the word index and is still read and written."""

_FORMATS = (1, STORE_FORMAT)
_BUSY_TIMEOUT_SECONDS = 5.0
_CACHE_KIB = 4096

# 8 KiB pages hold five 384-wide rows where 4 KiB pages hold two and waste a quarter.
_SCHEMA = """
PRAGMA page_size = 8192;
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
CREATE TABLE documents (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    metadata TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE vectors (
    key INTEGER PRIMARY KEY,
    embedding BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE INDEX vectors_by_crc32 ON vectors (crc32);
CREATE TABLE tombstones (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    key INTEGER NOT NULL
);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('generation', '0');
{words}
COMMIT;
"""


def create_file(path: Path, dimension: int) -> None:
    """Make an empty store for embeddings of a dimension."""
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.executescript(_SCHEMA.format(words=";\n".join(WORDS_STATEMENTS) + ";"))
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")
            put(connection, "dimension", dimension)
            put(connection, "identity", secrets.token_hex(16))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise mended(path, error) from error


def connect(path: Path, how: str, *, mapped: bool) -> sqlite3.Connection:
    """Open a connection that can pass between threads and begins transactions only when told.

    Args:
        path: The file.
        how: SQLite's URI parameter: `mode=ro`, `mode=rw` or `immutable=1`.
        mapped: Whether to map the file into memory.

    Raises:
        sqlite3.Error: If the file cannot be opened and read.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_TIMEOUT_SECONDS,
    )
    try:
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        if mapped:
            connection.execute(f"PRAGMA mmap_size = {1 << 40}")
        connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def put(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Keep a small JSON value under a name."""
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        (name, orjson.dumps(value).decode()),
    )


def check_format(path: Path, application_id: int, version: int) -> None:
    """Refuse a database of something else, or of another format version."""
    if application_id != _APPLICATION_ID:
        raise FormatError(f"{path} is a database, but not one of Lamina's document stores")
    if version not in _FORMATS:
        raise FormatError(
            f"{path}: store format {version}, expected {STORE_FORMAT}; "
            "use the Lamina that wrote it, or build the collection again"
        )


def check_size(path: Path, connection: sqlite3.Connection) -> None:
    """Refuse a file that is cut, before a search meets the missing page.

    While a log lies beside it the file may rightly be shorter than its header says.

    The file is never opened but by SQLite: when a process closes it, the system drops all of the
    process's locks on it, and SQLite's other connections here would lose theirs without knowing.
    """
    pages, size = (
        connection.execute(f"PRAGMA {name}").fetchall()[0][0]
        for name in ("page_count", "page_size")
    )
    if log_bytes(path) > 0:
        return
    found = path.stat().st_size
    if pages == 0 or found < pages * size:
        raise damaged(path, f"it has {found} bytes, expected {max(pages, 1) * size}")


def log_bytes(path: Path) -> int:
    """Size of the write-ahead log beside the file, 0 if there is none."""
    try:
        return os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return 0


def cannot_make_log(path: Path, error: sqlite3.Error) -> bool:
    """Whether opening failed only because the folder cannot be written and no log lies there."""
    primary = (error.sqlite_errorcode or 0) & 0xFF
    return (
        primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        and not path.with_name(f"{path.name}-wal").exists()
        and not os.access(path.parent, os.W_OK)
    )


def damaged(path: Path, found: str) -> DamagedError:
    """The error for a damaged store; its remedy is a backup or the source."""
    return DamagedError(
        f"{path}: {found}; restore the collection from a backup or build it again from its source"
    )


def mended(path: Path, error: sqlite3.Error) -> LaminaError:
    """Give SQLite's error the class and remedy that a user can act on."""
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if primary == sqlite3.SQLITE_FULL or (
        primary == sqlite3.SQLITE_IOERR and shutil.disk_usage(path.parent).free < 1 << 20
    ):
        return StorageFullError(
            f"{path}: no space left on the device; what was stored before is untouched"
        )
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CollectionBusyError(f"{path}: another process is writing to it; try again")
    undecodable = primary == 0 and isinstance(error, sqlite3.OperationalError)
    if undecodable or primary in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_IOERR,
    ):
        return damaged(path, f"damaged ({error})")
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return ReadOnlyError(f"{path}: cannot be written ({error})")
    return LaminaError(f"{path}: {error}")
