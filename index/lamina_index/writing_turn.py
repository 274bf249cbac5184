"""A collection as it was opened for writing, and what is done to it in one turn."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lamina_index.build_blocks import BlockRows, EncodedBlock, Split
from lamina_index.collection import MANIFEST_FILE
from lamina_index.errors import CollectionNotFoundError
from lamina_index.manifest import CollectionManifest
from lamina_index.parts import present
from lamina_index.store import DocumentStore, StoreWriting


@dataclass(frozen=True, slots=True)
class Opened:
    """A collection as it was opened; another one may have taken its place since.

    Attributes:
        lock: Its lock file, kept open so that its number is not given to another collection's.
    """

    store: DocumentStore
    lock: BinaryIO
    split: Split | None
    chunked: bool

    def has_lock(self, descriptor: int) -> bool:
        """Whether an open lock file is that of this collection."""
        return os.path.samestat(os.fstat(descriptor), os.fstat(self.lock.fileno()))

    def close(self) -> None:
        """Let go of the files."""
        self.store.close()
        self.lock.close()


@dataclass(slots=True)
class Turn:
    """What can be done while nobody else writes: one transaction, with the manifest as it is."""

    folder: Path
    opened: Opened
    writing: StoreWriting
    manifest: CollectionManifest

    def check(self, opened: Opened) -> None:
        """Refuse what was meant for the collection that lay here before.

        Raises:
            CollectionNotFoundError: If this is another one.
        """
        if opened is not self.opened:
            raise replaced(self.folder)

    def store(self, encoded: EncodedBlock, rows: BlockRows) -> int:
        """Store documents; gives how many of them were there."""
        # new fields are known, durably, before a row that has them is stored
        used = {name for document, _ in encoded.kept for name in document.metadata}
        new = {
            name: encoded.block.fields[name] for name in sorted(used - self.manifest.fields.keys())
        }
        if new:
            fields = {**self.manifest.fields, **new}
            self.manifest = self.manifest.model_copy(update={"fields": fields})
            self.manifest.write(self.folder / MANIFEST_FILE)
        known, stale = present(self.writing.reading, rows.parts, chunked=self.opened.chunked)
        self.writing.delete(stale)
        self.writing.upsert(rows.documents, rows.embeddings)
        return known

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents; gives how many there were."""
        parts = dict.fromkeys(ids, 0)
        known, rows = present(self.writing.reading, parts, chunked=self.opened.chunked)
        self.writing.delete(rows)
        return known


def replaced(folder: Path) -> CollectionNotFoundError:
    """The error for a write to a collection that does not lie there any more."""
    return CollectionNotFoundError(
        f"{folder}: another collection has taken its place; open it again"
    )
