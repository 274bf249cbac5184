"""`service.sqlite` in the data folder: what the workers of a service share beside collections."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lamina_index.collection import is_collection
from lamina_index.errors import (
    CollectionBusyError,
    DamagedError,
    FormatError,
    LaminaError,
    StorageFullError,
)
from lamina_service.errors import SettingsError

DATABASE = "service.sqlite"
DATABASE_VERSION = 2
"""2 added aliases; a file of version 1 becomes one of version 2 when it is opened."""

_BUSY_TIMEOUT_SECONDS = 10.0
_RETRY_SECONDS = 0.005

_KEYS = """
CREATE TABLE keys (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    sha256 BLOB NOT NULL UNIQUE,
    created TEXT NOT NULL,
    revoked TEXT
) STRICT
"""
_ALIASES = """
CREATE TABLE aliases (
    name TEXT PRIMARY KEY,
    collection TEXT NOT NULL,
    changed TEXT NOT NULL
) STRICT
"""
_STEPS = (_KEYS, _ALIASES)
"""Statement n leads from version n to version n + 1."""


def make_data_folder(data: Path) -> bool:
    """Make the data folder where it is missing; true if that was so.

    Raises:
        SettingsError: If there is a file of that name, or the folder cannot be made.
    """
    if data.is_dir():
        return False
    try:
        data.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SettingsError(_not_a_folder(data)) from error
    except OSError as error:
        raise SettingsError(
            f"{data}: the folder cannot be made: {error.strerror}; give another with --data"
        ) from error
    return True


def _not_a_folder(data: Path) -> str:
    return f"{data}: is a file, expected the folder of the collections; give another with --data"


def open_database(data: Path) -> sqlite3.Connection:
    """Open, make or bring up to date the data folder's `service.sqlite`.

    Threads may share the connection one at a time. It is in autocommit mode.

    Raises:
        SettingsError: If the folder is missing, is a file, is itself a collection, or cannot be
            written.
        FormatError: If a newer Lamina wrote the file.
        DamagedError: If it is not a database.
    """
    path = data / DATABASE
    if not data.exists():
        raise SettingsError(
            f"{data}: no such folder; give the one of the collections, or make one: "
            "`lamina serve` and `lamina keys create` do, too"
        )
    if not data.is_dir():
        raise SettingsError(_not_a_folder(data))
    if is_collection(data):
        raise SettingsError(
            f"{data}: is one collection, expected the folder of all; give {data.resolve().parent}, "
            "which holds it"
        )
    try:
        connection = _connect(path)
        try:
            _migrate(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.OperationalError as error:
        raise SettingsError(
            f"{path}: {error}; the service must be able to write it. Collections that it may "
            "not write can be linked into a folder that it may"
        ) from error
    except sqlite3.DatabaseError as error:
        raise DamagedError(
            f"{path}: {error}; put a backup of it back, or remove it, which loses all keys and "
            "aliases: make them again with `lamina keys create` and PUT /v1/aliases/{name}"
        ) from error
    return connection


@contextmanager
def exclusive(data: Path) -> Iterator[sqlite3.Connection]:
    """Be alone, among all workers, in changing names: one transaction on `service.sqlite`.

    It is committed at the end, and leaves no trace if the block raises.

    Raises:
        CollectionBusyError: If others kept changing names for ten seconds.
        StorageFullError: If the disk is full.
    """
    path = data / DATABASE
    try:
        with closing(_connect(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    except sqlite3.Error as error:
        raise _told(path, error) from error


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=_BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
    )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to this version in one transaction; workers that start together take turns."""
    _use_log(connection)
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > DATABASE_VERSION:
        connection.execute("ROLLBACK")
        raise FormatError(
            f"{path}: version {version}, this Lamina reads up to {DATABASE_VERSION}; "
            "use the Lamina that wrote it"
        )
    for statement in _STEPS[version:]:
        connection.execute(statement)
    if version < DATABASE_VERSION:
        connection.execute(f"PRAGMA user_version = {DATABASE_VERSION}")
    connection.execute("COMMIT")


def _use_log(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on, in turn with others: here SQLite itself does not wait for them.

    Two that both read an empty file and want to write it would wait for each other, so SQLite
    refuses one of them at once, whatever the timeout.
    """
    deadline = time.monotonic() + _BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            busy = (error.sqlite_errorcode or 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _told(path: Path, error: sqlite3.Error) -> LaminaError:
    """Give SQLite's error the class and remedy that a user can act on."""
    primary = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return CollectionBusyError(f"{path}: others are changing names; try again")
    if primary == sqlite3.SQLITE_FULL:
        return StorageFullError(f"{path}: no space left on the device; nothing was changed")
    return LaminaError(f"{path}: {error}")
