"""The connections to one `documents.sqlite`: many that read, one that writes, and a short log."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lamina_index.errors import CollectionNotFoundError
from lamina_index.store_file import cannot_make_log, connect, log_bytes, mended
from lamina_index.store_reading import StoreReading

LOG_BYTES_KEPT = 64 << 20
_LOG_WAIT_MILLISECONDS = 500


class StoreConnections:
    """Opens connections as they are needed and keeps them; safe to use from many threads.

    When another store takes the path, connections that are open go on with the old one, and a new
    one that would be needed is refused.

    Attributes:
        path: The SQLite file.
        identity: The store's, once it is known; a file of another is refused from then on.
    """

    def __init__(self, path: Path, *, read_only: bool, mapped: bool) -> None:
        """Open nothing yet.

        Args:
            path: The SQLite file.
            read_only: Refuse writes.
            mapped: Map the file into memory for reading.
        """
        self.path = path
        self.identity: str | None = None
        self._read_only = read_only
        self._mapped = mapped
        self._idle: deque[sqlite3.Connection] = deque()
        self._write_lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._immutable = False
        self._closed = False
        self._log_bound = LOG_BYTES_KEPT

    def close(self) -> None:
        """Close every connection that no thread is using, and each of the others after its use."""
        self._closed = True
        self._close_idle()
        with self._write_lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hold a read transaction on a connection that no other thread uses meanwhile.

        Raises:
            LaminaError: SQLite's errors, as `mended` tells them.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect_reader()
        keep = False
        try:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
            keep = not self._closed
        except sqlite3.Error as error:
            raise mended(self.path, error) from error
        finally:
            if keep:
                self._idle.append(connection)
                if self._closed:  # meanwhile, and perhaps before this connection was there
                    self._close_idle()
            else:
                connection.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the one write transaction, which commits at the end or leaves no trace.

        It raises the generation. Threads wait for each other without end, other processes for five
        seconds.

        Raises:
            LaminaError: As `reading`.
            ValueError: If writes are refused.
        """
        if self._read_only:
            raise ValueError(f"{self.path} was opened read-only")
        with self._write_lock:
            try:
                if self._writer is None:
                    self._writer = self._connect("mode=rw")
                    self._writer.execute("PRAGMA synchronous = FULL")
                    self._writer.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_KEPT}")
                connection = self._writer
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute(
                        "UPDATE meta SET value = CAST(value AS INTEGER) + 1"
                        " WHERE name = 'generation'"
                    )
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
                self._bound_log(connection)
            except sqlite3.Error as error:
                raise mended(self.path, error) from error

    def _bound_log(self, connection: sqlite3.Connection) -> None:
        """Empty the write-ahead log when it has grown.

        SQLite does so by itself only at a moment in which nobody reads, and under many searches
        there is none. Here it waits for those that read now, and later ones do without the log. A
        reader that takes too long, such as an archive, is waited for again once as much is added.
        """
        size = log_bytes(self.path)
        if size < self._log_bound:
            return
        self._log_bound = size + LOG_BYTES_KEPT
        with suppress(sqlite3.Error):  # what was written is safe, whatever becomes of this
            ((patience,),) = connection.execute("PRAGMA busy_timeout").fetchall()
            connection.execute(f"PRAGMA busy_timeout = {_LOG_WAIT_MILLISECONDS}")
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute(f"PRAGMA busy_timeout = {patience}")
            if not busy:
                self._log_bound = LOG_BYTES_KEPT

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _connect(self, how: str) -> sqlite3.Connection:
        """Open a connection, unless another store has taken the path since this one was opened."""
        if self._closed:
            raise ValueError(f"{self.path} has been closed")
        try:
            connection = connect(self.path, how, mapped=self._mapped)
        except sqlite3.Error as error:
            if self.identity is None or self.path.parent.is_dir():
                raise
            raise CollectionNotFoundError(f"{self.path.parent}: has been removed") from error
        try:
            reading = StoreReading(connection, self.path)
            if self.identity is not None and reading.get_meta("identity") != self.identity:
                raise CollectionNotFoundError(
                    f"{self.path.parent}: another collection has taken its place; open it again"
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        try:
            if not self._immutable:
                try:
                    return self._connect("mode=ro")
                except sqlite3.OperationalError as error:
                    if not cannot_make_log(self.path, error):
                        raise
                self._immutable = True
            return self._connect("immutable=1")
        except sqlite3.Error as error:
            raise mended(self.path, error) from error
