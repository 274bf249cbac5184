"""A collection as one file: made while it is served and written to, verified before it appears.

What the archive holds is one committed state. The database is copied inside one read transaction;
the search index is the newest one, held open from before that transaction on. An index that is
published only afterwards would be too new, and one replaced before could lack deletions that the
database has forgotten; so the newest is looked for again once the transaction has begun.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from lamina_index import __version__
from lamina_index.archive_format import (
    ARCHIVE_FILE,
    BLOCK_BYTES,
    END,
    PIECE_BYTES,
    check_archive,
    header,
    padding,
)
from lamina_index.collection import (
    MANIFEST_FILE,
    beside,
    open_collection,
    writer_lock,
)
from lamina_index.disk import disk_errors_told
from lamina_index.errors import (
    CollectionBusyError,
    CollectionExistsError,
    DamagedError,
    LaminaError,
)
from lamina_index.manifest import ArchiveManifest, ArchiveMember, SnapshotFile, sync_folder
from lamina_index.row_log import REJECTS_FILE, TRUNCATED_FILE
from lamina_index.snapshot_files import MANIFEST_FILE as SNAPSHOT_FILE
from lamina_index.snapshot_files import (
    SNAPSHOTS,
    damaged,
    read_manifest,
    snapshot_folder,
    snapshot_numbers,
)
from lamina_index.store import STORE_FILE, DocumentStore
from lamina_index.store_reading import StoreReading

_REPORTS = ("build.json", REJECTS_FILE, TRUNCATED_FILE)
"""What builds tell; taken along where it is there."""

_WORKING = "archiving"
_NO_DIGEST = "0" * 64
_ATTEMPTS = 20

StillWanted = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Source:
    """A file to archive: its name, an open stream, and the digests that it must have, if any."""

    name: str
    stream: BinaryIO
    size_bytes: int
    expected: SnapshotFile | None = None
    path: Path | None = None


def write_archive(
    collection: Path, file: Path, *, still_wanted: StillWanted = lambda: None
) -> ArchiveManifest:
    """Write a collection, as of its last committed write, to a new file.

    The collection may be searched and written to meanwhile. Free space for the archive and one
    copy of `documents.sqlite` is needed beside the file. A kill or an error at any moment leaves
    no file of that name; what a killed run leaves is removed by the next one in that folder.

    Args:
        collection: The collection's folder.
        file: The archive; appears when all of it was read back and found right.
        still_wanted: Called for each megabyte; what it raises ends the work without a trace.

    Raises:
        CollectionExistsError: If there is something of that name.
        CollectionNotFoundError: If there is no such collection.
        CollectionBusyError: If another process writes that very file.
        DamagedError: If a part of the collection is not as it was written.
        StorageFullError: If the disk is full.
    """
    _check_free(file)
    working = beside(file, _WORKING)
    with (
        disk_errors_told(file, when_full="there is no archive, the collection is as it was"),
        open_collection(collection)[1] as store,
    ):
        _remove_leftovers(working.parent)
        working.mkdir(exist_ok=True)
        with writer_lock(working):
            try:
                partial = working / file.name
                manifest = _write(collection, store, partial, still_wanted)
                if check_archive(partial, still_wanted) != manifest:
                    raise DamagedError(f"{partial}: does not read back as it was written")
                _check_free(file)
                partial.rename(file)
                sync_folder(working.parent)
            finally:
                shutil.rmtree(working, ignore_errors=True)
    return manifest


def _write(
    collection: Path, store: DocumentStore, partial: Path, still_wanted: StillWanted
) -> ArchiveManifest:
    copy = partial.parent / STORE_FILE
    with ExitStack() as files:
        with _newest_snapshot(collection, store, files) as (number, sources, reading):
            documents, generation = reading.count(), reading.generation()
            reading.copy_to(copy, still_wanted)
            # read within the transaction: it names all fields of the rows that are in it
            sources.append(_in_memory(MANIFEST_FILE, collection / MANIFEST_FILE))
        _check_copy(collection, copy)
        sources.append(_opened(files, STORE_FILE, copy))
        for name in _REPORTS:
            with suppress(FileNotFoundError):
                sources.append(_opened(files, name, collection / name))
        draft = ArchiveManifest(
            lamina=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            collection=collection.absolute().name,
            documents=documents,
            generation=generation,
            snapshot=number,
            members=[_member(source, _NO_DIGEST) for source in sources],
            checksum=_NO_DIGEST,
        )
        return _write_tar(partial, draft, sources, still_wanted)


def _write_tar(
    partial: Path, draft: ArchiveManifest, sources: list[_Source], still_wanted: StillWanted
) -> ArchiveManifest:
    """Write the members in one pass, then the manifest with their digests over its draft."""
    content = _encoded(draft)
    with partial.open("xb") as target:
        target.write(header(ARCHIVE_FILE, len(content)) + content + padding(len(content)))
        members = []
        for source in sources:
            target.write(header(source.name, source.size_bytes))
            members.append(_member(source, _copy(source, target, still_wanted)))
            target.write(padding(source.size_bytes))
        target.write(END)
        manifest = draft.model_copy(update={"members": members})
        manifest = manifest.model_copy(update={"checksum": manifest.digest()})
        assert len(_encoded(manifest)) == len(content)  # a digest is as long as none
        target.seek(BLOCK_BYTES)
        target.write(_encoded(manifest))
        target.flush()
        os.fsync(target.fileno())
    return manifest


def _copy(source: _Source, target: BinaryIO, still_wanted: StillWanted) -> str:
    """Copy a file into the archive; gives its sha256.

    Raises:
        DamagedError: If it is shorter than it was, or differs from the digests it must have.
    """
    whole, chunk = hashlib.sha256(), hashlib.sha256()
    chunks: list[str] = []
    left = source.size_bytes
    chunk_bytes = source.expected.chunk_bytes if source.expected else source.size_bytes
    chunk_left = chunk_bytes
    while left:
        still_wanted()
        piece = source.stream.read(min(left, chunk_left, PIECE_BYTES))
        if not piece:
            raise DamagedError(f"{source.name}: became shorter while it was archived; try again")
        target.write(piece)
        whole.update(piece)
        chunk.update(piece)
        left -= len(piece)
        chunk_left -= len(piece)
        if not left or not chunk_left:
            chunks.append(chunk.hexdigest())
            chunk, chunk_left = hashlib.sha256(), chunk_bytes
    if source.expected is not None and chunks != source.expected.sha256:
        assert source.path is not None  # only files of a snapshot have digests
        raise damaged(source.path, "altered")
    return whole.hexdigest()


@contextmanager
def _newest_snapshot(
    collection: Path, store: DocumentStore, files: ExitStack
) -> Iterator[tuple[int | None, list[_Source], StoreReading]]:
    """The newest snapshot's number and open files, and a transaction that it belongs to."""
    for _ in range(_ATTEMPTS):
        number = next(iter(snapshot_numbers(collection)), None)
        try:
            sources = [] if number is None else _snapshot_sources(files, collection, number)
        except (DamagedError, OSError):
            if next(iter(snapshot_numbers(collection)), None) != number:
                continue  # it was replaced while we opened it
            raise
        with store.reading() as reading:
            reading.generation()  # the transaction begins with the first statement
            if next(iter(snapshot_numbers(collection)), None) == number:
                yield number, sources, reading
                return
    raise CollectionBusyError(f"{collection}: its index is replaced again and again; try later")


def _snapshot_sources(files: ExitStack, collection: Path, number: int) -> list[_Source]:
    """Open all files of a snapshot.

    Raises:
        DamagedError: If one is missing or of another length.
    """
    folder = snapshot_folder(collection, number)
    manifest = read_manifest(folder)
    sources = [_in_memory(f"{SNAPSHOTS}/{number}/{SNAPSHOT_FILE}", folder / SNAPSHOT_FILE)]
    for name, file in sorted(manifest.files.items()):
        try:
            source = _opened(files, f"{SNAPSHOTS}/{number}/{name}", folder / name, file)
        except FileNotFoundError as error:
            raise damaged(folder / name, "the file is missing") from error
        sources.append(source)
        if source.size_bytes != file.size_bytes:
            raise damaged(
                folder / name, f"has {source.size_bytes} bytes, expected {file.size_bytes}"
            )
    return sources


def _check_copy(collection: Path, copy: Path) -> None:
    """Read every row of the copied database: an archive must not keep what is broken."""
    with DocumentStore.open(copy.parent, read_only=True) as copied:
        damage = copied.verify()
    if damage:
        raise DamagedError(damage[0].replace(str(copy.parent), str(collection)))


def _opened(
    files: ExitStack, name: str, path: Path, expected: SnapshotFile | None = None
) -> _Source:
    stream = files.enter_context(path.open("rb"))
    return _Source(name, stream, os.fstat(stream.fileno()).st_size, expected, path)


def _in_memory(name: str, path: Path) -> _Source:
    content = path.read_bytes()
    return _Source(name, BytesIO(content), len(content))


def _member(source: _Source, sha256: str) -> ArchiveMember:
    return ArchiveMember(name=source.name, size_bytes=source.size_bytes, sha256=sha256)


def _encoded(manifest: ArchiveManifest) -> bytes:
    return manifest.model_dump_json(indent=2).encode() + b"\n"


def _check_free(file: Path) -> None:
    if os.path.lexists(file):
        raise CollectionExistsError(f"{file}: is there already; name a file that is not")


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed runs left beside other archives; whoever is alive holds the lock."""
    for working in folder.glob(f".*.{_WORKING}"):
        with suppress(LaminaError), writer_lock(working):
            shutil.rmtree(working, ignore_errors=True)
