"""Making, deleting, archiving and compacting collections, on the threads of `Service.changes`."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina_index.archive import write_archive
from lamina_index.chunking import longest_part
from lamina_index.collection import writer_lock
from lamina_index.collection_changes import (
    create_collection,
    drop_removed,
    new_manifest,
    remove_collection,
)
from lamina_index.corpus.fields import name_fault
from lamina_index.errors import (
    CollectionBusyError,
    CollectionExistsError,
    CollectionNotFoundError,
    IndexDamagedError,
    LaminaError,
)
from lamina_index.manifest import Chunking, CollectionManifest
from lamina_service.aliases import check_name, exists
from lamina_service.collection_schemas import CollectionRequest, CompactRequest
from lamina_service.database import exclusive
from lamina_service.errors import (
    CollectionInUseError,
    InvalidRequestError,
    NameTakenError,
    SnapshotsOffError,
    for_clients,
)

if TYPE_CHECKING:
    from lamina_index.searcher import Searcher
    from lamina_service.service import Service


def create(service: Service, name: str, asked: CollectionRequest) -> tuple[dict[str, Any], bool]:
    """Make an empty collection, or find the one that is there to be as asked for.

    Returns:
        Its description, and whether it was made just now.

    Raises:
        InvalidRequestError: If name, fields or chunking cannot be.
        NameTakenError: If an alias has the name.
        CollectionExistsError: If there is one of that name that is otherwise.
    """
    check_name(name)
    manifest = _manifest(service, asked)
    data = service.settings.data
    with exclusive(data) as connection:
        if connection.execute("SELECT 1 FROM aliases WHERE name = ?", (name,)).fetchall():
            raise NameTakenError(f"{name!r} is an alias, so it cannot be a collection too")
        made = not exists(data, name)
        if made:
            create_collection(data / name, manifest)
    service.catalog.follow(name)
    if not made:
        _check_same(name, service.catalog.get(name).manifest, manifest)
    return service.catalog.describe(name), made


def delete(service: Service, name: str) -> None:
    """Take a collection away for all workers at once, then free its space.

    Raises:
        CollectionNotFoundError: If there is none; an alias is none.
        CollectionInUseError: If an alias leads to it.
        CollectionBusyError: If a build or a compaction is writing to it.
    """
    data = service.settings.data
    with exclusive(data) as connection:
        if not exists(data, name):
            raise CollectionNotFoundError(f"no collection {name[:100]!r} that could be deleted")
        rows = connection.execute(
            "SELECT name FROM aliases WHERE collection = ? ORDER BY name", (name,)
        ).fetchall()
        if rows:
            raise CollectionInUseError(
                f"alias {rows[0][0]!r} leads to {name!r}; lead it elsewhere or delete it first"
            )
        remove_collection(data / name)
    service.catalog.follow(name)
    drop_removed(data)


def archive(service: Service, collection: str) -> dict[str, Any]:
    """Write a collection to a new file of the configured folder, under a name made here.

    Raises:
        SnapshotsOffError: If no folder is configured.
        CollectionBusyError: If another archive is being written, or the service stops.
        LaminaError: As `write_archive`.
    """
    folder = service.settings.snapshots
    if folder is None:
        raise SnapshotsOffError("set LAMINA_SNAPSHOTS to a folder that archives may be written to")
    service.catalog.get(collection)

    def write(searcher: Searcher) -> dict[str, Any]:
        now = datetime.now(UTC)
        name = searcher.folder.name
        file = folder / f"{name}-{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}.tar"
        try:
            made = write_archive(searcher.folder, file, still_wanted=still_wanted)
        except IndexDamagedError:
            searcher.doubt()  # the catalog's check finds it then, and the index is made again
            raise
        return {
            "file": file.name,
            "collection": name,
            "documents": made.documents,
            "generation": made.generation,
            "size_bytes": file.stat().st_size,
            "created": made.created,
        }

    def still_wanted() -> None:
        if service.closing.is_set():
            raise CollectionBusyError("the service stops, so no archive was made")

    _make_folder(folder)
    with ExitStack() as alone:
        try:
            alone.enter_context(writer_lock(folder))  # among all workers
        except CollectionBusyError as error:
            raise CollectionBusyError("another archive is being written; try later") from error
        return service.catalog.using(collection, write)


def compact(service: Service, collection: str, asked: CompactRequest) -> dict[str, Any]:
    """Bring a collection's search index up to date in a child process, and wait for it.

    Raises:
        CollectionBusyError: If a build or a compaction is at work, or the service stops.
        CollectionNotFoundError: If there is none of that name.
        LaminaError: As `lamina_index.compaction.compact`.
    """

    def run(folder: Path) -> dict[str, Any]:
        done = service.compactor.compact(folder, asked.factory)
        return {**done, "reason": for_clients(done["reason"], folder.parent)}

    return service.catalog.changing(collection, run)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaminaError(f"{folder}: cannot be made ({error.strerror})") from error


def _manifest(service: Service, asked: CollectionRequest) -> CollectionManifest:
    """Describe the collection that is asked for.

    Raises:
        InvalidRequestError: If a field's name or the chunking cannot be.
    """
    for name in asked.fields:
        if fault := name_fault(name):
            raise InvalidRequestError("fields", f"{name[:100]!r} {fault}")
    chunking = None
    if asked.chunking is not None:
        longest = longest_part(service.encoder)
        if asked.chunking.tokens > longest:
            raise InvalidRequestError(
                "chunking.tokens",
                f"{asked.chunking.tokens}, but {service.encoder.name} reads {longest} of a part",
            )
        chunking = Chunking(tokens=asked.chunking.tokens, overlap=asked.chunking.overlap)
    manifest = new_manifest(service.encoder, fields=asked.fields, chunking=chunking)
    for name, kind in asked.fields.items():
        if manifest.fields[name] != kind:
            raise InvalidRequestError("fields", f"{name!r} is kept for parts of texts")
    return manifest


def _check_same(name: str, found: CollectionManifest, wanted: CollectionManifest) -> None:
    """Refuse to take a collection for the one that was asked for, if it is another.

    Fields that it has learned from its documents are no difference.

    Raises:
        CollectionExistsError: Naming a difference.
    """
    differences = [
        f"field {field!r} is {found.fields.get(field, 'not there')}, asked for {kind}"
        for field, kind in wanted.fields.items()
        if found.fields.get(field) != kind
    ]
    if found.chunking != wanted.chunking:
        differences.append(f"its texts are split as {found.chunking}, asked for {wanted.chunking}")
    if differences:
        raise CollectionExistsError(f"{name!r} is there already, and {differences[0]}")
