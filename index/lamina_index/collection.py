"""Where the parts of a collection lie, who may write, and how a new one takes an old one's place.

<name>/collection.json, documents.sqlite, snapshots/, .lock, .write-lock
.<name>.building, .<name>.old      beside it, while a collection is built or replaced
.<name>.creating, .<name>.removed-*, .<name>.restoring     while one is made, removed or restored
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lamina_index.disk import disk_error, shown_path
from lamina_index.errors import (
    CollectionBusyError,
    CollectionNotFoundError,
    DamagedError,
    LaminaError,
)
from lamina_index.manifest import CollectionManifest, sync_folder
from lamina_index.snapshot_files import (
    check_all,
    read_manifest,
    snapshot_folder,
    snapshot_numbers,
)
from lamina_index.store import DocumentStore
from lamina_index.view import is_ahead, older_store

MANIFEST_FILE = "collection.json"
LOCK_FILE = ".lock"
WRITE_LOCK_FILE = ".write-lock"
_SWAP_SECONDS = 5.0
_TURN_SECONDS = 10.0
_SHORTEST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.005


def beside(target: Path, suffix: str) -> Path:
    """Name the hidden path next to `target`, on the same disk, for work of one kind on it."""
    absolute = target.absolute()
    return absolute.parent / f".{absolute.name}.{suffix}"


def building_folder(target: Path) -> Path:
    """Where a collection is made before it takes its place, beside it."""
    return beside(target, "building")


def replaced_folder(target: Path) -> Path:
    """Where a collection lies for the moment in which another takes its place, beside it."""
    return beside(target, "old")


def check_path(folder: Path) -> None:
    """Refuse a place for a collection whose path FAISS cannot open and reports cannot name.

    Raises:
        LaminaError: If the path is not UTF-8.
    """
    if (shown := shown_path(folder)) != str(folder):
        raise LaminaError(
            f"{shown}: a collection's path must be UTF-8, and this is not; take another folder"
        )


def is_collection(folder: Path) -> bool:
    """Whether a collection lies at `folder`."""
    return (folder / MANIFEST_FILE).is_file()


def open_collection(
    folder: Path, *, read_only: bool = True, mapped: bool = False
) -> tuple[CollectionManifest, DocumentStore]:
    """Open a collection's manifest and store, after finishing a replacement that was cut off.

    Raises:
        CollectionNotFoundError: If no collection lies there.
        FormatError: If it is of another format version.
        DamagedError: If its database is missing or damaged.
        LaminaError: If the path is not UTF-8.
    """
    check_path(folder)
    recover_swap(folder)
    if not is_collection(folder):
        raise CollectionNotFoundError(
            f"{folder}: no collection there (it has no {MANIFEST_FILE}); "
            "make one with `lamina index build`"
        )
    manifest = CollectionManifest.read(folder / MANIFEST_FILE)
    return manifest, DocumentStore.open(folder, read_only=read_only, mapped=mapped)


@contextmanager
def writer_lock(
    folder: Path, *, wait_seconds: float = 0, on_wait: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Be the only one that builds, compacts, replaces or removes a collection, in a block.

    Single writes go on meanwhile: those take turns by `write_turn`. Whoever needs both takes this
    one first. The lock goes with the process, however it ends. It lies in the folder and moves
    with it.

    Args:
        folder: The collection's.
        wait_seconds: How long to wait for another who holds it.
        on_wait: Called once if that is needed.

    Raises:
        CollectionBusyError: If another holds it, or has just replaced the folder.
        CollectionNotFoundError: If there is no such folder.
    """
    busy = "another process is writing to this collection; wait until it has ended"
    if wait_seconds:
        busy += f", which it has not in {wait_seconds:.0f} seconds, and run the same command again"
    with _awaited(folder, LOCK_FILE, wait_seconds, busy, on_wait):
        yield


@contextmanager
def write_turn(folder: Path) -> Iterator[int]:
    """Be the only one that commits rows to a collection, for the short length of a block.

    Waits while another does. Inside, `folder` is the same collection from begin to end: it is
    replaced and removed only by who has the turn. The turn goes with the process, however it ends.

    Yields:
        The lock file's descriptor, by which a later turn can be known to be of the same folder.

    Raises:
        CollectionBusyError: If the turn did not come within ten seconds.
        CollectionNotFoundError: If there is no such folder.
    """
    busy = f"others kept writing to this collection for {_TURN_SECONDS:.0f} seconds; try again"
    with _awaited(folder, WRITE_LOCK_FILE, _TURN_SECONDS, busy) as descriptor:
        yield descriptor


@contextmanager
def _awaited(
    folder: Path,
    name: str,
    seconds: float,
    busy: str,
    on_wait: Callable[[], object] = lambda: None,
) -> Iterator[int]:
    """Hold the lock of a file in the folder as soon as nobody else does; gives its descriptor."""
    deadline = time.monotonic() + seconds
    pause = 0.0
    while True:
        # opened again each time: while it waits, another folder may take the place of this one
        with _lock_file(folder, name) as descriptor:
            if _try_lock(folder / name, descriptor):
                yield descriptor
                return
        if time.monotonic() >= deadline:
            raise CollectionBusyError(f"{folder}: {busy}")
        if not pause:
            on_wait()
        pause = min(2 * pause or _SHORTEST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        time.sleep(pause)


@contextmanager
def _lock_file(folder: Path, name: str) -> Iterator[int]:
    path = folder / name
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError as error:
        raise CollectionNotFoundError(f"{folder}: no such collection folder") from error
    except OSError as error:
        raise disk_error(folder, error, when_full="nothing was changed") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(path: Path, descriptor: int) -> bool:
    """Lock an open file, if nobody has it and it still lies at the path."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def publish_collection(
    new: Path,
    target: Path,
    *,
    wait_seconds: float = 0,
    on_wait: Callable[[], object] = lambda: None,
) -> None:
    """Let a finished collection take its place, instead of the one that may be there.

    A kill between the two renames leaves the old collection under another name, from where
    `recover_swap` brings it back.

    Args:
        new: The finished collection, in the same parent folder as the target.
        target: Its place.
        wait_seconds: How long to wait for another process that builds or compacts the collection
            that is there.
        on_wait: Called once if that is needed.

    Raises:
        CollectionBusyError: If that does not end in time, or others keep writing to it.
    """
    if is_collection(target):
        old = replaced_folder(target)
        if old.exists():
            shutil.rmtree(old)
        lock = writer_lock(target, wait_seconds=wait_seconds, on_wait=on_wait)
        with lock, write_turn(target):
            target.rename(old)
            new.rename(target)
            sync_folder(target.absolute().parent)
        drop_replaced(target)
    else:
        new.rename(target)
        sync_folder(target.absolute().parent)


def recover_swap(target: Path) -> None:
    """Bring back a collection whose replacement was killed between its two renames.

    Does nothing where the target exists. Where the replacement is alive, waits for it.

    Raises:
        CollectionBusyError: If it is alive but does not come to its end.
        CollectionNotFoundError: If it was killed and the folder around them cannot be written.
    """
    old = replaced_folder(target)
    deadline = time.monotonic() + _SWAP_SECONDS
    while not target.exists() and old.is_dir():
        try:
            with writer_lock(old):
                if not target.exists():
                    old.rename(target)
        except (CollectionBusyError, CollectionNotFoundError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        except (OSError, LaminaError) as error:
            raise CollectionNotFoundError(
                f"{target}: its replacement was killed half-way; rename {old} to {target}"
            ) from error


def drop_replaced(target: Path) -> None:
    """Remove the old collection that a replacement, killed after its renames, left beside it."""
    if target.exists():
        shutil.rmtree(replaced_folder(target), ignore_errors=True)


def verify_collection(folder: Path) -> list[str]:
    """Read every byte of a collection and list what is damaged, a line each.

    Raises:
        CollectionNotFoundError: If no collection lies there.
        FormatError: If it is of another format version.
    """
    try:
        manifest, store = open_collection(folder)
    except DamagedError as error:
        return [str(error)]
    with store:
        damage = store.verify()
        if store.dimension != manifest.dimension:
            damage.append(
                f"{folder / MANIFEST_FILE}: says dimension {manifest.dimension}, "
                f"the store has {store.dimension}"
            )
        try:
            for number in snapshot_numbers(folder):
                damage += check_all(snapshot_folder(folder, number))
            check_store_age(folder, store)
        except DamagedError as error:
            damage.append(str(error))
    return list(dict.fromkeys(damage))


def check_store_age(folder: Path, store: DocumentStore) -> None:
    """Refuse a store that lacks rows which the newest snapshot was made from.

    Rows written to it would get keys that this snapshot knows as other rows.

    Raises:
        DamagedError: If it does, or the snapshot cannot be read; a new one is the remedy of both.
    """
    for number in snapshot_numbers(folder)[:1]:
        made = read_manifest(snapshot_folder(folder, number))
        with store.reading() as reading:
            if is_ahead(made, reading):
                raise older_store(folder, number)
