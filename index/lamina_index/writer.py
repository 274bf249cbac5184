"""Writing to a collection while others search it: each request a transaction that lasts.

A write has two halves. `prepare` checks and embeds the records, at leisure and beside others'.
`commit` waits for the collection's turn (`write_turn`) and, inside it, holds the metadata to the
types that the collection has by then, makes new fields known, and commits; so it takes as long as
one transaction, which the threads that wait for it share. Processes and threads may write at once,
also beside `lamina index build --append` and a compaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from lamina_index.backlog import Backlog
from lamina_index.build_blocks import (
    Block,
    BlockRows,
    CutText,
    EncodedBlock,
    check_for,
    encode_block,
)
from lamina_index.chunking import splitter
from lamina_index.collection import (
    MANIFEST_FILE,
    WRITE_LOCK_FILE,
    check_store_age,
    is_collection,
    open_collection,
    recover_swap,
    write_turn,
)
from lamina_index.corpus import Check, Document, FieldTypes, Rejected, RowError, read_values
from lamina_index.disk import disk_errors_told
from lamina_index.encoder import Encoder
from lamina_index.errors import (
    BacklogFullError,
    CollectionNotFoundError,
    FilterError,
    FormatError,
    WriteTooLargeError,
)
from lamina_index.filters import Filter, outcome_of_all
from lamina_index.group_commit import GroupCommit
from lamina_index.manifest import CollectionManifest, FieldType
from lamina_index.matching import Matching
from lamina_index.parts import parent_id
from lamina_index.query_encoding import check_encoder
from lamina_index.snapshot_files import snapshot_numbers
from lamina_index.store import StoreReading
from lamina_index.text import repair_text
from lamina_index.view import View, older_store
from lamina_index.writing_turn import Opened, Turn, replaced

__all__ = ["CollectionWriter", "CutText", "Fault", "Prepared", "Written"]

T = TypeVar("T")

_DELETED_AT_ONCE = 1000
_PASSES_ALL = (
    "passes every document, so all would be deleted; expected a condition, such as "
    '{"year": {"$lt": 2000}}; to empty a collection, delete it and make it anew'
)
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one record of a request is not stored.

    Attributes:
        position: Where it stands in the request, from 0.
        id: Its id, if that much is right.
        reason: In words for whoever sent it.
        file: Where it was read, if it comes from a file; `position` is in that.
    """

    position: int
    id: str | None
    reason: str
    file: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """What one request did.

    Attributes:
        inserted: Documents whose ids are new.
        replaced: Documents whose ids were there.
        faults: Records that are not stored, in order.
        truncated: Texts that the encoder did not read to the end; where texts are split, parts.
        generation: The store's, as of this write: a search that sees it sees what was written.
    """

    inserted: int
    replaced: int
    faults: tuple[Fault, ...]
    truncated: tuple[CutText, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Records that are checked and embedded, for `CollectionWriter.commit`."""

    encoded: EncodedBlock
    opened: Opened


class CollectionWriter:
    """A collection opened for writing; safe to use from many threads.

    When another collection has taken its place, calls go on with that one; so a write that
    returns is in the collection that lies at the folder then.
    """

    def __init__(self, folder: Path, encoder: Encoder | None, max_backlog: int | None) -> None:
        """Use `CollectionWriter.open`."""
        self.folder = folder
        self.encoder = encoder
        self._max_backlog = max_backlog
        self._changing = threading.Lock()
        self._retired: list[Opened] = []
        self._opened = self._open()
        refusals = (BacklogFullError, CollectionNotFoundError, WriteTooLargeError)
        self._commits: GroupCommit[Turn] = GroupCommit(self._turn, refusals)

    @classmethod
    def open(
        cls, folder: Path | str, encoder: Encoder | None = None, *, max_backlog: int | None = None
    ) -> Self:
        """Open a collection.

        Args:
            folder: The collection folder.
            encoder: Embeds the texts. Any object that has an encoder's attributes will do: a
                service gives one whose `encode` waits in its queue. Without one, documents can
                only be deleted.
            max_backlog: How many rows may be newer than the search index; by default as
                `backlog_limit` says.

        Raises:
            CollectionNotFoundError: If no collection lies there.
            EncoderMismatchError: If another encoder built it, even one of the same dimension.
            DamagedError: If a file is missing or cut, or the store is older than the snapshot.
            FormatError: If it is of a format that this version does not read.
            LaminaError: If the folder cannot be written to.
        """
        return cls(Path(folder), encoder, max_backlog)

    def close(self) -> None:
        """Let go of the files; calls that are running end first or fail."""
        with self._changing:
            for opened in (*self._retired, self._opened):
                opened.close()
            self._retired.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def fields(self) -> dict[str, FieldType]:
        """Names and types of the documents' metadata, as of now."""
        return self._manifest().fields

    @property
    def check(self) -> Check:
        """What a reader is to ask before a document may decide the types of metadata."""
        split = self._opened.split
        plain = check_for(self._embedding, chunked=self._opened.chunked)
        if split is None:
            return plain
        most = self.backlog.largest_write

        def check(document: Document, values: dict[str, object]) -> None:
            plain(document, values)
            if len(document.text) > most and (count := len(split(document.text))) > most:
                raise RowError(
                    f"text has {count} parts, expected at most {most}; make several documents of it"
                )

        return check

    @property
    def backlog(self) -> Backlog:
        """How much is newer than the search index, as of now."""
        with self._opened.store.reading() as reading:
            return Backlog.of(self.folder, reading, self._max_backlog)

    def upsert(self, records: Sequence[object]) -> Written:
        """Store documents; those whose ids are there are replaced. Returns when that is durable.

        One bad record does not keep the others from being stored. Of records with one id the last
        good one counts.

        Args:
            records: Decoded JSON values, each `{"id": str, "text": str, "metadata": {...}}`, the
                last one optional.

        Raises:
            BacklogFullError: If too many rows are newer than the search index.
            CollectionBusyError: If others kept writing for too long.
            CollectionNotFoundError: If the collection has been removed.
            EncoderMismatchError: If one of another encoder has taken its place.
            EncoderOutputError: If the encoder fails on everything.
            StorageFullError: If the disk is full.
            WriteTooLargeError: If they are more rows than one write may have.
        """
        return self._or_anew(lambda: self.commit(self.prepare(records)))

    def prepare(self, records: Sequence[object]) -> Prepared:
        """Check and embed records; nothing is locked, and nothing stored.

        Raises:
            BacklogFullError, WriteTooLargeError: As `upsert`, before anything is embedded.
            EncoderOutputError: As `upsert`.
        """
        types = FieldTypes(self.fields)
        return self.prepare_documents(read_values(records, types, check=self.check), types)

    def prepare_documents(
        self, records: Iterable[Document | Rejected], types: FieldTypes
    ) -> Prepared:
        """As `prepare`, with what a reader of files yields.

        Args:
            records: Documents that `check` and `types` have passed, and rows that are none.
            types: The types found so far.
        """
        encoder, opened, block = self._embedding, self._opened, Block()
        for record in records:
            block.add(record, opened.split)
        block.fields = dict(types.known)
        with opened.store.reading() as reading:
            self._check_room(reading, sum(map(len, block.texts)))
        encoded = encode_block(block, encoder, chunked=opened.chunked)
        return Prepared(encoded, opened)

    def commit(self, prepared: Prepared) -> Written:
        """Store what was prepared, in one transaction.

        Raises:
            CollectionNotFoundError: If another collection has taken the place of the one that it
                was prepared for, or this one has been removed: nothing is stored.
            BacklogFullError, CollectionBusyError, StorageFullError, WriteTooLargeError: As
                `upsert`.
        """
        encoded, rows, known, generation = self._commits.run(partial(self._store, prepared))
        faults = (
            Fault(row.line - 1, row.id, row.reason, row.file) for row in encoded.block.rejected
        )
        return Written(
            inserted=len(rows.parts) - known,
            replaced=known,
            faults=tuple(sorted(faults, key=lambda fault: fault.position)),
            truncated=tuple(rows.cut),
            generation=generation,
        )

    def delete(self, ids: Iterable[str]) -> int:
        """Delete documents in one durable transaction; where texts are split, all their parts.

        Returns:
            How many of them there were.

        Raises:
            CollectionBusyError, CollectionNotFoundError, StorageFullError: As `upsert`.
        """
        storable = [each for each in ids if repair_text(each) == each]  # no other id can exist
        return self._or_anew(lambda: self._commits.run(lambda turn: turn.delete(storable)))

    def delete_matching(self, wanted: Filter) -> int:
        """Delete the documents that pass a filter, as of one moment during the call.

        A thousand rows a transaction, so that other writers get their turns. What is written
        meanwhile stays: a row that has been replaced since is another row. Where texts are split,
        a document goes as a whole if one of its parts passes. After an error or a kill some may
        be left; the same call deletes them.

        Returns:
            How many documents were deleted.

        Raises:
            FilterError: If a field has another type by now than when the filter was read, or if
                the filter passes all documents without a condition, as `{}` does.
            DamagedError: If no snapshot can be read.
            CollectionBusyError, CollectionNotFoundError, StorageFullError: As `upsert`.
        """
        if outcome_of_all(wanted) is True:
            raise FilterError("filter", _PASSES_ALL)

        def delete() -> int:
            opened = self._opened
            keys = self._matching(opened, wanted).tolist()
            count = max(len(keys), 1)  # without any too, a turn tells if this is the collection yet
            parts = (
                keys[start : start + _DELETED_AT_ONCE]
                for start in range(0, count, _DELETED_AT_ONCE)
            )
            return sum(self._commits.run(partial(_delete_keys, opened, part)) for part in parts)

        return self._or_anew(delete)

    def _matching(self, opened: Opened, wanted: Filter) -> NDArray[np.int64]:
        """Keys of the rows that pass a filter, as a search would find them."""
        for _ in range(_ATTEMPTS):
            with opened.store.reading() as reading:
                view = View.open(self.folder, opened.store.dimension, reading)
                if view is not None:
                    columns = view.columns.get(reading, self.fields)
                    matching = Matching.of(wanted, columns, view.dead, view.delta_keys)
                    return view.keys_of(matching)
        self._commits.run(lambda turn: turn.check(opened))  # it may be another's by now
        raise older_store(self.folder, snapshot_numbers(self.folder)[0])

    def reopen(self) -> None:
        """Take up the collection that lies at the folder now.

        Raises:
            LaminaError: As `open`; what was open stays so.
        """
        opened = self._open()
        with self._changing:
            if opened.has_lock(self._opened.lock.fileno()):
                opened.close()  # another thread has taken it up already
                return
            while self._retired:
                self._retired.pop().close()
            self._retired.append(self._opened)  # others may be reading from it
            self._opened = opened

    def _or_anew(self, call: Callable[[], T]) -> T:
        """Make a call, and again if another collection has taken the place of this one."""
        for _ in range(_ATTEMPTS):
            with suppress(CollectionNotFoundError):
                return call()
            with suppress(CollectionNotFoundError):  # removed, or being replaced yet again
                self.reopen()
        return call()

    def _open(self) -> Opened:
        recover_swap(self.folder)
        with write_turn(self.folder), ExitStack() as undo:
            manifest, store = open_collection(self.folder, read_only=False)
            undo.callback(store.close)
            for stray in self.folder.glob(f".{MANIFEST_FILE}.*"):  # of a write that was killed
                stray.unlink()
            split = None
            if self.encoder is not None:
                check_encoder(self.folder, manifest, self.encoder)
                split = splitter(self.encoder, manifest.chunking)
            check_store_age(self.folder, store)
            lock = (self.folder / WRITE_LOCK_FILE).open("rb")
            undo.pop_all()
        return Opened(store, lock, split, chunked=manifest.chunking is not None)

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        """Have the turn, and a transaction, of the collection that is open.

        Raises:
            CollectionNotFoundError: If another has taken its place.
        """
        told = disk_errors_told(self.folder, when_full="nothing of this request is stored")
        with told, self._changing, write_turn(self.folder) as descriptor:
            opened = self._opened
            if not opened.has_lock(descriptor):
                raise replaced(self.folder)
            with opened.store.writing() as writing:
                yield Turn(self.folder, opened, writing, self._manifest())

    def _store(self, prepared: Prepared, turn: Turn) -> tuple[EncodedBlock, BlockRows, int, int]:
        turn.check(prepared.opened)
        encoded = prepared.encoded.held_to(turn.manifest.fields)
        rows = encoded.rows()
        if rows.documents:
            self._check_room(turn.writing.reading, len(rows.documents))
        return encoded, rows, turn.store(encoded, rows), turn.writing.generation

    @property
    def _embedding(self) -> Encoder:
        """The encoder, without which documents cannot be stored."""
        if self.encoder is None:
            raise ValueError(f"{self.folder} was opened without an encoder; it can only delete")
        return self.encoder

    def _check_room(self, reading: StoreReading, adding: int) -> None:
        backlog = Backlog.of(self.folder, reading, self._max_backlog, adding=adding)
        backlog.check_room(self.folder, adding)

    def _manifest(self) -> CollectionManifest:
        try:
            return CollectionManifest.read(self.folder / MANIFEST_FILE)
        except FormatError as error:
            if is_collection(self.folder):
                raise
            raise CollectionNotFoundError(f"{self.folder}: has been removed") from error


def _delete_keys(opened: Opened, keys: Sequence[int], turn: Turn) -> int:
    """Delete the documents of those keys that still have a row."""
    turn.check(opened)
    found = turn.writing.reading.ids(keys).values()
    return turn.delete(map(parent_id, found) if opened.chunked else found)
