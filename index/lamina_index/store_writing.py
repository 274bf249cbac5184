"""Changing `documents.sqlite` inside one transaction."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from numpy.typing import ArrayLike

from lamina_index.manifest import MAX_ID_BYTES
from lamina_index.scoring import unit_rows
from lamina_index.store_file import put
from lamina_index.store_reading import StoreReading, row_crc

if TYPE_CHECKING:
    from lamina_index.corpus import Document

_NAMES_PER_STATEMENT = 500


@dataclass(frozen=True, slots=True)
class Upserted:
    """What one `upsert` did: new ids and ids that were there before."""

    inserted: int
    replaced: int


class StoreWriting:
    """What can be done inside one write transaction; `DocumentStore.writing` makes it.

    Attributes:
        reading: Reads what is committed, and what this transaction has done so far.
        generation: The store's generation once this has committed.
    """

    __slots__ = ("_connection", "_dimension", "generation", "reading")

    def __init__(self, connection: sqlite3.Connection, path: Path, dimension: int) -> None:
        self._connection = connection
        self._dimension = dimension
        self.reading = StoreReading(connection, path)
        self.generation = self.reading.generation() + 1

    def upsert(self, documents: Sequence[Document], embeddings: ArrayLike) -> Upserted:
        """Store documents with their embeddings; a known id is replaced.

        When an id occurs twice in `documents`, the last one counts.

        Args:
            documents: N documents.
            embeddings: (N, D) finite unit rows of any float type; kept as float32.

        Raises:
            ValueError: If an id is empty, too long or not valid Unicode, the metadata is not
                JSON, or the embeddings are of a wrong shape, not finite or not of unit length.
        """
        rows = unit_rows(embeddings, dimension=self._dimension, count=len(documents))
        kept = sorted({document.id: row for row, document in enumerate(documents)}.values())
        encoded = [_encode(documents[row]) for row in kept]
        replaced = self.delete([values[0] for values in encoded])
        key = self.reading.last_key() + 1
        self._connection.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?)",
            ((key + i, *values, row_crc(key + i, *values)) for i, values in enumerate(encoded)),
        )
        self._connection.executemany(
            "INSERT INTO vectors VALUES (?, ?, ?)",
            (
                (key + i, blob, zlib.crc32(blob))
                for i, blob in enumerate(rows[row].tobytes() for row in kept)
            ),
        )
        return Upserted(inserted=len(kept) - replaced, replaced=replaced)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete the rows of the ids that exist, bury their keys, and give their number."""
        deleted = 0
        for start in range(0, len(ids), _NAMES_PER_STATEMENT):
            part = ids[start : start + _NAMES_PER_STATEMENT]
            marks = ",".join("?" * len(part))
            keys = self._connection.execute(
                f"DELETE FROM documents WHERE id IN ({marks}) RETURNING key",  # noqa: S608 - only marks
                part,
            ).fetchall()
            self._connection.executemany("DELETE FROM vectors WHERE key = ?", keys)
            self._connection.executemany("INSERT INTO tombstones (key) VALUES (?)", sorted(keys))
            deleted += len(keys)
        return deleted

    def forget_tombstones(self, until: int) -> None:
        """Drop tombstones that no snapshot on disk needs: those up to a sequence number."""
        self._connection.execute("DELETE FROM tombstones WHERE sequence <= ?", (until,))

    def set_meta(self, name: str, value: Any) -> None:
        """Keep a small JSON value under a name."""
        put(self._connection, name, value)


def _encode(document: Document) -> tuple[str, str, str]:
    """Check a document and give its id, text and metadata as they are stored."""
    if not isinstance(document.id, str):
        raise ValueError(f"document id {document.id!r} is not a string")
    size = len(document.id.encode())
    if not 0 < size <= MAX_ID_BYTES:
        raise ValueError(
            f"document id {document.id[:40]!r} has {size} bytes, expected 1 to {MAX_ID_BYTES}"
        )
    try:
        metadata = orjson.dumps(document.metadata).decode()
    except TypeError as error:
        raise ValueError(f"metadata of document {document.id!r}: {error}") from error
    return document.id, document.text, metadata
