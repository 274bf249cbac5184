"""Reading `documents.sqlite` inside one transaction."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from lamina_index.errors import DamagedError, NoWordIndexError
from lamina_index.manifest import Metadata
from lamina_index.scoring import are_unit
from lamina_index.store_file import check_size, damaged
from lamina_index.store_words import WordReading

_KEYS_PER_STATEMENT = 1000
_PAGES_A_STEP = 512
_MISSING = object()
_Value = TypeVar("_Value", int, str)


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as stored, with its key."""

    key: int
    id: str
    text: str
    metadata: Metadata


class StoreReading:
    """What can be asked inside one transaction; `DocumentStore.reading` makes it.

    Every row is checked against its checksum as it is read.

    Raises:
        DamagedError: From any method that meets a row that is not as it was written.
    """

    __slots__ = ("_connection", "_path")

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def generation(self) -> int:
        """Number of the last committed write."""
        return self.number("generation")

    def number(self, name: str) -> int:
        """Read a named value that is a whole number."""
        found = self.get_meta(name)
        if not isinstance(found, int):
            raise self._damaged(f"the value {name!r} is not as it was written")
        return found

    def check_size(self) -> None:
        """Refuse a file that is cut; see `store_file.check_size`."""
        check_size(self._path, self._connection)

    def format(self) -> tuple[int, int]:
        """The file's application id and format version."""
        application_id = self._connection.execute("PRAGMA application_id").fetchall()[0][0]
        return application_id, self._connection.execute("PRAGMA user_version").fetchall()[0][0]

    @property
    def has_words(self) -> bool:
        """Whether there is a word index."""
        return self.format()[1] > 1

    def words(self) -> WordReading:
        """What can be asked of the word index.

        Raises:
            NoWordIndexError: If the store is of the format that had none.
        """
        if not self.has_words:
            folder = self._path.parent
            raise NoWordIndexError(
                f"{folder}: made by a version that had no word index; "
                f"`lamina index upgrade {folder}` adds it, and vectors can be searched meanwhile"
            )
        return WordReading(self._connection, self._path)

    def get_meta(self, name: str, default: Any = _MISSING) -> Any:
        """Read a small named JSON value.

        Raises:
            DamagedError: If it is no JSON, or there is none and no default was given.
        """
        rows = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchall()
        if rows:
            try:
                return orjson.loads(rows[0][0])
            except orjson.JSONDecodeError as error:
                raise self._damaged(f"the value {name!r} is not as it was written") from error
        if default is _MISSING:
            raise self._damaged(f"the value {name!r} is missing")
        return default

    def count(self) -> int:
        """Number of documents."""
        return int(self._connection.execute("SELECT COUNT(*) FROM documents").fetchall()[0][0])

    def count_after(self, key: int) -> int:
        """Number of documents with a higher key; reads their pages."""
        statement = "SELECT COUNT(*) FROM documents WHERE key > ?"
        return int(self._connection.execute(statement, (key,)).fetchall()[0][0])

    def vector_count(self) -> int:
        """Number of vectors; the same as that of documents, or the store is damaged."""
        return int(self._connection.execute("SELECT COUNT(*) FROM vectors").fetchall()[0][0])

    def last_key(self) -> int:
        """The highest key ever given, 0 before the first."""
        return self._last("documents")

    def last_tombstone(self) -> int:
        """The highest sequence number of a tombstone ever given, 0 before the first."""
        return self._last("tombstones")

    def tombstones_after(self, sequence: int) -> tuple[int, list[int]]:
        """Keys buried after a sequence number, and the number up to which that is known."""
        rows = self._connection.execute(
            "SELECT sequence, key FROM tombstones WHERE sequence > ? ORDER BY sequence", (sequence,)
        ).fetchall()
        return (rows[-1][0] if rows else sequence), [key for _, key in rows]

    def keys(self, until_key: int) -> NDArray[np.int64]:
        """(N,) every key up to one, ascending."""
        rows = self._connection.execute("SELECT key FROM documents WHERE key <= ?", (until_key,))
        return np.sort(np.fromiter((key for (key,) in rows), np.int64))

    def get(self, document_id: str) -> StoredDocument | None:
        """Find a document by its id."""
        rows = self._connection.execute(
            "SELECT key, id, text, metadata, crc32 FROM documents WHERE id = ?", (document_id,)
        ).fetchall()
        return self._document(rows[0]) if rows else None

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Tell which of the ids have a document."""
        return {
            row[0]
            for part in _parts(ids)
            for row in self._connection.execute(
                f"SELECT id FROM documents WHERE id IN ({','.join('?' * len(part))})",  # noqa: S608 - only marks
                part,
            ).fetchall()
        }

    def documents(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Documents of the keys that have a row, in key order."""
        return [
            self._document(row)
            for part in _parts(keys)
            for row in self._connection.execute(
                "SELECT key, id, text, metadata, crc32 FROM documents"  # noqa: S608 - only marks
                f" WHERE key IN ({','.join('?' * len(part))}) ORDER BY key",
                part,
            ).fetchall()
        ]

    def documents_after(self, key: int, *, limit: int) -> list[StoredDocument]:
        """Up to `limit` documents with a higher key, in key order."""
        with closing(self._rows_after(key, None, limit)) as rows:
            return [self._document(row) for row in rows]

    def page_after(
        self,
        key: int,
        among: NDArray[np.int64] | None = None,
        *,
        limit: int,
        characters: int,
    ) -> tuple[list[StoredDocument], bool]:
        """The first documents with a higher key, in key order, and whether there are more.

        Args:
            key: Those up to it are left out.
            among: Ascending keys of the only documents that are wanted; None for all.
            limit: Most documents to give, at least 1.
            characters: The last one given is that with which texts and metadata get so long.
        """
        found: list[StoredDocument] = []
        held = 0
        with closing(self._rows_after(key, among, limit + 1)) as rows:
            for row in rows:
                if len(found) == limit or held >= characters:
                    return found, True
                found.append(self._document(row))
                held += len(row[2]) + len(row[3])
        return found, False

    def _rows_after(
        self, key: int, among: NDArray[np.int64] | None, limit: int
    ) -> Generator[tuple[int, str, str, str, int]]:
        """Rows of documents, each read from the disk when it is asked for.

        Close it (contextlib.closing) before the connection closes: a damaged row ends a reading
        half-way, and its error keeps this generator, so its cursor, longer than the connection.
        """
        columns = "SELECT key, id, text, metadata, crc32 FROM documents"
        if among is None:
            yield from self._connection.execute(
                f"{columns} WHERE key > ? ORDER BY key LIMIT ?", (key, limit)
            )
            return
        start = int(np.searchsorted(among, key, side="right"))
        for part in _parts(among[start : start + limit].tolist()):
            yield from self._connection.execute(
                f"{columns} WHERE key IN ({','.join('?' * len(part))}) ORDER BY key", part
            )

    def vectors(self, keys: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Keys (n,) and embeddings (n, D) of the keys that have a row, in key order."""
        rows = [
            row
            for part in _parts(keys)
            for row in self._connection.execute(
                "SELECT key, embedding, crc32 FROM vectors"  # noqa: S608 - only marks
                f" WHERE key IN ({','.join('?' * len(part))}) ORDER BY key",
                part,
            ).fetchall()
        ]
        return self._matrix(rows)

    def ids(self, keys: Sequence[int]) -> dict[int, str]:
        """Ids of the keys that have a row, not compared with their checksums."""
        return {
            key: document_id
            for part in _parts(keys)
            for key, document_id in self._connection.execute(
                f"SELECT key, id FROM documents WHERE key IN ({','.join('?' * len(part))})",  # noqa: S608 - only marks
                part,
            ).fetchall()
        }

    def twins(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of a given key and another key whose row has the very same embedding.

        Ask with one key for each distinct embedding: every key asked for brings all its twins.
        """
        return [
            row
            for part in _parts(keys)
            for row in self._connection.execute(
                "SELECT own.key, other.key FROM vectors AS own JOIN vectors AS other"  # noqa: S608 - only marks
                " ON other.crc32 = own.crc32 AND other.embedding = own.embedding"
                f" AND other.key != own.key WHERE own.key IN ({','.join('?' * len(part))})",
                part,
            ).fetchall()
        ]

    def vectors_after(
        self, key: int, until_key: int | None = None, *, limit: int = -1
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Keys (n,) and embeddings (n, D) with a higher key, in key order; limit -1 is none."""
        last = until_key if until_key is not None else (1 << 63) - 1
        rows = self._connection.execute(
            "SELECT key, embedding, crc32 FROM vectors WHERE key > ? AND key <= ?"
            " ORDER BY key LIMIT ?",
            (key, last, limit),
        ).fetchall()
        return self._matrix(rows)

    def copy_to(self, path: Path, on_step: Callable[[], object]) -> None:
        """Write the whole database, as of this transaction, to a file that is not there yet.

        Others may write to the database meanwhile; its log cannot be emptied until this is done.

        Args:
            path: The new file. It is not made durable.
            on_step: Called every few megabytes; what it raises ends the copy.
        """
        with closing(sqlite3.connect(path)) as target:
            target.execute("PRAGMA synchronous = OFF")
            self._connection.backup(
                target, pages=_PAGES_A_STEP, progress=lambda *_: on_step(), sleep=0
            )

    def damage(self, dimension: int) -> list[str]:
        """List every damaged or missing part of the file, a line each."""
        found = [
            f"{self._path}: {line}"
            for (line,) in self._connection.execute("PRAGMA integrity_check(20)").fetchall()
            if line != "ok"
        ]
        if found:
            return found
        for table in ("documents", "vectors"):
            other = "vectors" if table == "documents" else "documents"
            orphans = self._connection.execute(
                f"SELECT COUNT(*) FROM {table} WHERE key NOT IN (SELECT key FROM {other})"  # noqa: S608 - two constants
            ).fetchall()[0][0]
            if orphans:
                found.append(f"{self._path}: {orphans} rows of {table} lack their row in {other}")
        documents = self._rows("SELECT key, id, text, metadata, crc32 FROM documents ORDER BY key")
        for key, document_id, text, metadata, crc in documents:
            if row_crc(key, document_id, text, metadata) != crc:
                found.append(f"{self._path}: document {document_id!r} is not as it was written")
        for key, blob, crc in self._rows("SELECT key, embedding, crc32 FROM vectors ORDER BY key"):
            if len(blob) != 4 * dimension or zlib.crc32(blob) != crc:
                found.append(f"{self._path}: the vector of key {key} is not as it was written")
            elif not are_unit(np.frombuffer(blob, "<f4")[np.newaxis])[0]:
                found.append(f"{self._path}: the vector of key {key} is not of length 1")
        if self.has_words:
            found += self.words().damage()
        return found

    def _rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        cursor = self._connection.execute(statement)
        while rows := cursor.fetchmany(1024):
            yield from rows

    def _last(self, table: str) -> int:
        rows = self._connection.execute(
            "SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)
        ).fetchall()
        return int(rows[0][0]) if rows else 0

    def _document(self, row: tuple[int, str, str, str, int]) -> StoredDocument:
        key, document_id, text, metadata, crc = row
        if row_crc(key, document_id, text, metadata) != crc:
            raise self._damaged(f"document {document_id!r} is not as it was written")
        return StoredDocument(key, document_id, text, orjson.loads(metadata))

    def _matrix(
        self, rows: list[tuple[int, bytes, int]]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        for key, blob, crc in rows:
            if zlib.crc32(blob) != crc:
                raise self._damaged(f"the vector of key {key} is not as it was written")
        keys = np.array([row[0] for row in rows], dtype=np.int64)
        embeddings = np.frombuffer(b"".join([row[1] for row in rows]), dtype="<f4")
        return keys, embeddings.reshape(len(rows), -1) if rows else embeddings.reshape(0, 0)

    def _damaged(self, found: str) -> DamagedError:
        return damaged(self._path, found)


def row_crc(key: int, document_id: str, text: str, metadata: str) -> int:
    """Checksum of a document row; its key is in it, so a row cannot pass for another."""
    return zlib.crc32(f"{key}\0{document_id}\0{text}\0{metadata}".encode())


def _parts(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    for start in range(0, len(values), _KEYS_PER_STATEMENT):
        yield values[start : start + _KEYS_PER_STATEMENT]
