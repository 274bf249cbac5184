"""`documents.sqlite`: the source of truth of a collection, rows and vectors alike.

A row's key is a number that is never used again: replacing a document deletes its row and inserts
one with a new key, and the old key becomes a tombstone, because a search index made earlier may
still hold it. Every write is one transaction that also raises the generation, so two reads that
see the same generation see the same rows.

Local disk only (WAL needs shared memory). Threads may share a `DocumentStore`; after a fork, open
a new one (SQLite connections do not survive it), or better, spawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina_index.errors import (
    CollectionExistsError,
    CollectionNotFoundError,
    DamagedError,
)
from lamina_index.store_connections import StoreConnections
from lamina_index.store_file import STORE_FILE, STORE_FORMAT, check_format, create_file, damaged
from lamina_index.store_reading import StoredDocument, StoreReading
from lamina_index.store_words import add_words, drop_words
from lamina_index.store_writing import StoreWriting, Upserted

if TYPE_CHECKING:
    from lamina_index.corpus import Document

__all__ = [
    "STORE_FILE",
    "DocumentStore",
    "StoreReading",
    "StoreWriting",
    "StoredDocument",
    "Upserted",
]


class DocumentStore:
    """Documents, their vectors, and small named values, in one SQLite file.

    Make one with `create` or `open`. Reads come from a pool of read-only connections, one for each
    thread that reads at the same moment; writes go one at a time through one connection. When
    another collection takes the folder's place, connections that are open go on with the old one,
    and a new one that would be needed is refused with `CollectionNotFoundError`.

    Attributes:
        path: The SQLite file.
        dimension: D of every embedding.
    """

    def __init__(self, path: Path, *, read_only: bool, mapped: bool = False) -> None:
        self.path = path
        self._connections = StoreConnections(path, read_only=read_only, mapped=mapped)
        try:
            with self.reading() as reading:
                reading.check_size()
                check_format(path, *reading.format())
                self.dimension = reading.number("dimension")
                self._connections.identity = str(reading.get_meta("identity"))
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, folder: Path, *, dimension: int) -> Self:
        """Make an empty store in an existing folder and open it.

        Args:
            folder: The collection folder.
            dimension: D of the embeddings that it will hold.

        Raises:
            CollectionExistsError: If the folder already has a store.
            ValueError: If the dimension is not positive.
        """
        if dimension < 1:
            raise ValueError(f"dimension must be positive, got {dimension}")
        path = folder / STORE_FILE
        if path.exists():
            raise CollectionExistsError(f"{path} already exists; append to it or replace it")
        create_file(path, dimension)
        return cls(path, read_only=False)

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, mapped: bool = False) -> Self:
        """Open the store of a collection folder.

        Args:
            folder: The collection folder.
            read_only: Refuse writes. On media that cannot be written this is the only way, and
                the file is then taken as unchanging.
            mapped: Map the file into memory for reading (its first 2 GiB). Faster for the
                scattered rows of a search, but a scan's pages then count as resident memory.

        Raises:
            CollectionNotFoundError: If the folder does not exist.
            DamagedError: If the file is missing, cut, or no longer a database.
            FormatError: If it is a database of something else or of another format version.
        """
        path = folder / STORE_FILE
        if not folder.is_dir():
            raise CollectionNotFoundError(f"{folder}: no such collection folder")
        if not path.is_file():
            raise damaged(path, "the file is missing")
        return cls(path, read_only=read_only, mapped=mapped)

    def close(self) -> None:
        """Close every connection that no thread is using; the store cannot be used afterwards."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Reading

    @contextmanager
    def reading(self) -> Iterator[StoreReading]:
        """Hold one short read transaction: all answers inside are as of the same commit.

        Keep it short, and never write through this store inside it: the write-ahead log cannot be
        emptied while a reader is in it.
        """
        with self._connections.reading() as connection:
            yield StoreReading(connection, self.path)

    def get(self, document_id: str) -> StoredDocument | None:
        """Find a document by its id."""
        with self.reading() as reading:
            return reading.get(document_id)

    def by_keys(self, keys: Sequence[int]) -> dict[int, StoredDocument]:
        """Find documents by key; keys without a row are left out."""
        with self.reading() as reading:
            return {document.key: document for document in reading.documents(keys)}

    def vectors(self, keys: Sequence[int]) -> NDArray[np.float32]:
        """Stored embeddings (N, D) in the order of the keys.

        Raises:
            KeyError: If a key has no row.
        """
        with self.reading() as reading:
            found, embeddings = reading.vectors(keys)
        rows = {key: row for row, key in enumerate(found.tolist())}
        return embeddings[[rows[key] for key in keys]]

    def scan(
        self, after_key: int = 0, *, until_key: int | None = None, batch: int = 4096
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Yield (keys (n,), embeddings (n, D)) in key order, n <= batch.

        Each batch is its own read transaction, so a long scan never holds up the log; rows written
        meanwhile appear if their keys are still ahead.
        """
        while True:
            with self.reading() as reading:
                keys, embeddings = reading.vectors_after(after_key, until_key, limit=batch)
            if len(keys) == 0:
                return
            yield keys, embeddings
            after_key = int(keys[-1])

    def documents(self, after_key: int = 0, *, batch: int = 1024) -> Iterator[StoredDocument]:
        """Yield all documents in key order."""
        while True:
            with self.reading() as reading:
                found = reading.documents_after(after_key, limit=batch)
            if not found:
                return
            yield from found
            after_key = found[-1].key

    def count(self) -> int:
        """Number of documents."""
        with self.reading() as reading:
            return reading.count()

    def last_key(self) -> int:
        """The highest key ever given, 0 before the first."""
        with self.reading() as reading:
            return reading.last_key()

    def tombstones(self) -> list[int]:
        """Keys deleted or replaced since the newest snapshot was made."""
        with self.reading() as reading:
            return reading.tombstones_after(0)[1]

    def version(self) -> int:
        """Number of the last committed write (the generation)."""
        with self.reading() as reading:
            return reading.generation()

    def get_meta(self, name: str, default: Any = None) -> Any:
        """Read a small named JSON value."""
        with self.reading() as reading:
            return reading.get_meta(name, default)

    def verify(self) -> list[str]:
        """Read everything and list what is damaged, a line each; an empty list is a sound store.

        Checks SQLite's structure, every row's checksum, that vectors are finite and of unit
        length, and that documents and vectors match one to one.
        """
        try:
            with self.reading() as reading:
                return reading.damage(self.dimension)
        except DamagedError as error:
            return [str(error)]

    # Writing

    @contextmanager
    def writing(self) -> Iterator[StoreWriting]:
        """Hold the one write transaction: durable when the block ends, without a trace if it fails.

        Raises:
            StorageFullError: If the disk is full.
            CollectionBusyError: If another process kept writing for five seconds.
            ValueError: If the store was opened read-only.
        """
        with self._connections.writing() as connection:
            yield StoreWriting(connection, self.path, self.dimension)

    def upsert(
        self,
        documents: Sequence[Document],
        embeddings: ArrayLike,
        *,
        remove: Sequence[str] = (),
        progress: dict[str, Any] | None = None,
    ) -> Upserted:
        """Store documents in a transaction of their own, see `StoreWriting.upsert`.

        Args:
            documents: N documents.
            embeddings: (N, D) finite unit rows of any float type; kept as float32.
            remove: Ids of documents to delete in the same transaction.
            progress: JSON value to keep under the name "progress" in the same transaction.

        Raises:
            ValueError: As `StoreWriting.upsert`; else as `writing`.
        """
        with self.writing() as writing:
            writing.delete(remove)
            upserted = writing.upsert(documents, embeddings)
            if progress is not None:
                writing.set_meta("progress", progress)
        return upserted

    def upgrade(self) -> str | None:
        """Give the store the newest format, and a word index that is right, in one transaction.

        A kill leaves what there was. Who searches meanwhile goes on; writers wait.

        Returns:
            What was done, None if there was nothing to do.
        """
        with self.reading() as reading:
            has_words = reading.has_words
            if has_words and not reading.words().damage():
                return None
        with self._connections.writing() as connection:
            if has_words:
                drop_words(connection)
            add_words(connection)
            connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")
        return "made the word index again" if has_words else "added the word index"

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents by id in a transaction of their own; give how many there were."""
        with self.writing() as writing:
            return writing.delete(list(dict.fromkeys(ids)))

    def set_meta(self, name: str, value: Any) -> None:
        """Keep a small JSON value under a name, durably."""
        with self.writing() as writing:
            writing.set_meta(name, value)

    def forget_tombstones(self, until: int) -> None:
        """Drop tombstones that no snapshot on disk needs: those up to a sequence number."""
        with self.writing() as writing:
            writing.forget_tombstones(until)
