"""Making an empty collection, and taking one away: each becomes visible in one rename."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from lamina_index.collection import (
    LOCK_FILE,
    MANIFEST_FILE,
    beside,
    check_path,
    is_collection,
    recover_swap,
    replaced_folder,
    write_turn,
    writer_lock,
)
from lamina_index.disk import disk_errors_told
from lamina_index.encoder import Encoder
from lamina_index.errors import CollectionExistsError, CollectionNotFoundError
from lamina_index.manifest import (
    Chunking,
    CollectionManifest,
    EncoderReference,
    FieldType,
    sync_folder,
)
from lamina_index.parts import PART_FIELDS
from lamina_index.store import DocumentStore
from lamina_index.text import TEXT_VERSION

_REMOVED = "removed"


def new_manifest(
    encoder: Encoder,
    *,
    fields: Mapping[str, FieldType] | None = None,
    chunking: Chunking | None = None,
) -> CollectionManifest:
    """Describe a collection that is to be made now.

    Args:
        encoder: Whose vectors it will hold.
        fields: Metadata types that are fixed before the first document.
        chunking: How its texts will be split; the parts' own fields are added.
    """
    return CollectionManifest(
        encoder=EncoderReference(
            name=encoder.name, precision=encoder.precision, fingerprint=encoder.fingerprint
        ),
        dimension=encoder.dimension,
        text_version=TEXT_VERSION,
        fields={**(fields or {}), **(PART_FIELDS if chunking else {})},
        chunking=chunking,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def create_collection(folder: Path, manifest: CollectionManifest) -> None:
    """Make an empty collection; what a kill leaves beside it is used up by the next attempt.

    Args:
        folder: Its folder, in a folder that exists.
        manifest: From `new_manifest`.

    Raises:
        CollectionExistsError: If there is something at `folder`.
        CollectionBusyError: If another process makes it at this moment.
        StorageFullError: If the disk is full; nothing is left behind then.
        LaminaError: If the path is not UTF-8.
    """
    check_path(folder)
    recover_swap(folder)
    working = beside(folder, "creating")
    with disk_errors_told(folder, when_full="the collection was not made"):
        working.mkdir(exist_ok=True)
        with writer_lock(working):
            try:
                for entry in working.iterdir():
                    if entry.name != LOCK_FILE:
                        entry.unlink()
                DocumentStore.create(working, dimension=manifest.dimension).close()
                manifest.write(working / MANIFEST_FILE)
                _publish(working, folder)
            finally:
                shutil.rmtree(working, ignore_errors=True)


def remove_collection(folder: Path) -> None:
    """Take a collection away; whoever has it open may end what was begun.

    Its files are only renamed, `drop_removed` frees their space. Where the folder is a link, the
    link is removed and what it leads to stays.

    Raises:
        CollectionNotFoundError: If there is no collection.
        CollectionBusyError: If a build or a compaction is writing to it, or others keep writing.
    """
    recover_swap(folder)
    if not is_collection(folder):
        raise CollectionNotFoundError(f"{folder}: no collection there")
    parent = folder.absolute().parent
    if folder.is_symlink():
        folder.unlink()
        sync_folder(parent)
        return
    with writer_lock(folder), write_turn(folder):
        # first the one that was replaced: left alone in its place it would be brought back
        for path in (replaced_folder(folder), folder):
            if path.exists():
                path.rename(beside(folder, f"{_REMOVED}-{secrets.token_hex(8)}"))
        sync_folder(parent)


def drop_removed(data: Path) -> None:
    """Delete the files of all collections that were taken away from a data folder."""
    for removed in data.glob(f".*.{_REMOVED}-*"):
        shutil.rmtree(removed, ignore_errors=True)


def _publish(working: Path, folder: Path) -> None:
    sync_folder(working)
    try:
        working.rename(folder)
    except OSError as error:
        if not folder.exists():
            raise
        raise CollectionExistsError(f"{folder}: there is something already") from error
    sync_folder(folder.absolute().parent)
