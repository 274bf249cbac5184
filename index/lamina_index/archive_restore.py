"""An archive back to a collection: unpacked beside its place, verified, then renamed into it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from lamina_index.archive_format import check_end, opened_archive, read_member
from lamina_index.collection import (
    LOCK_FILE,
    beside,
    check_path,
    recover_swap,
    verify_collection,
    writer_lock,
)
from lamina_index.disk import disk_errors_told
from lamina_index.errors import CollectionExistsError, DamagedError
from lamina_index.manifest import ArchiveManifest, sync_folder
from lamina_index.store import DocumentStore


def restore_archive(
    file: Path, folder: Path, *, still_wanted: Callable[[], object] = lambda: None
) -> ArchiveManifest:
    """Make the collection that an archive holds.

    Every file is compared with its digest and the whole collection verified before it appears.
    A kill or an error at any moment leaves nothing at `folder`; what a killed run leaves beside it
    is overwritten by the next. The restored collection counts as another one than the archived,
    so whoever has that open cannot take this for it.

    Args:
        file: What `write_archive` made.
        folder: The collection's folder, which must not be there yet.
        still_wanted: Called for each megabyte; what it raises ends the work.

    Raises:
        CollectionExistsError: If there is something at `folder`.
        CollectionBusyError: If another process restores to it.
        DamagedError: If the archive is not as it was written.
        FormatError: If it is no archive, or one of a format that this version does not read.
        StorageFullError: If the disk is full.
        LaminaError: If the path of the folder is not UTF-8.
    """
    target = folder.absolute()
    check_path(target)
    recover_swap(target)
    _check_free(target)
    working = beside(target, "restoring")
    with disk_errors_told(target, when_full="nothing was restored, the archive is as it was"):
        working.mkdir(parents=True, exist_ok=True)
        with writer_lock(working):
            try:
                _empty(working)
                manifest = _unpack(file, working, still_wanted)
                if damage := verify_collection(working):
                    raise DamagedError(f"{file}: holds a damaged collection: {damage[0]}")
                with DocumentStore.open(working) as store:
                    store.set_meta("identity", secrets.token_hex(16))
                _check_free(target)
                working.rename(target)
                sync_folder(target.parent)
            finally:
                shutil.rmtree(working, ignore_errors=True)
    return manifest


def _unpack(file: Path, working: Path, still_wanted: Callable[[], object]) -> ArchiveManifest:
    """Write all members into a folder, durably, each compared with its digest."""
    with opened_archive(file) as (manifest, stream):
        for member in manifest.members:
            path = working / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as output:
                for piece in read_member(file, stream, member):
                    still_wanted()
                    output.write(piece)
                output.flush()
                os.fsync(output.fileno())
        check_end(file, stream)
    for folder in {working, *(path.parent for path in working.rglob("*"))}:
        sync_folder(folder)
    return manifest


def _check_free(target: Path) -> None:
    if os.path.lexists(target):
        raise CollectionExistsError(
            f"{target}: is there already; restore to another folder, or remove this one first"
        )


def _empty(working: Path) -> None:
    for entry in working.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()
