"""Where a build works: a hidden sibling that is renamed into place, or the live collection.

A new or replacing build of `data/quora` works in `data/.quora.building`, so whatever happens to it
the collection is as it was. The same command run again continues what it finds there, since that
ends with the same collection as starting over. A build of a pipe, which cannot be read again,
leaves nothing when it fails. What a build of other inputs or options left there is dropped, unless
`resume` asks to continue it, which is then refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from lamina_index.build_plan import BuildPlan, Mode, Progress
from lamina_index.collection import (
    LOCK_FILE,
    MANIFEST_FILE,
    building_folder,
    check_store_age,
    drop_replaced,
    is_collection,
    publish_collection,
    writer_lock,
)
from lamina_index.errors import (
    CollectionExistsError,
    CollectionNotFoundError,
    LaminaError,
    ResumeError,
)
from lamina_index.manifest import CollectionManifest
from lamina_index.row_log import REJECTS_FILE, TRUNCATED_FILE
from lamina_index.store import DocumentStore

PROGRESS = "progress"
_COMPACTION_SECONDS = 600.0
"""How long a finished build waits for one; a service compacts by itself, at any moment."""
RESERVE_FILE = ".reserve"
RESERVE_BYTES = 128 << 10
"""Enough for SQLite to open a database that no process has open: its log and shared memory."""


@dataclass
class BuildSite:
    """A folder claimed for one build.

    Attributes:
        target: Where the collection is to be.
        folder: Where to write until then; the target itself when appending.
        mode: What may lie at the target.
        store: Open for writing.
        manifest: The `collection.json` in `folder`.
        progress: As last committed.
    """

    target: Path
    folder: Path
    mode: Mode
    store: DocumentStore
    manifest: CollectionManifest
    progress: Progress

    def publish(self, on_wait: Callable[[], object] = lambda: None) -> None:
        """Close the store and put the folder in its place, in one step.

        Args:
            on_wait: Called if a compaction of the collection there has to end first.

        Raises:
            CollectionBusyError: If it does not end within ten minutes, or others keep writing.
            CollectionExistsError: If something that the mode does not allow for has come to lie
                there since the build began.
        """
        self.store.close()
        if self.folder != self.target:
            check_target(self.target, self.mode)
        (self.folder / RESERVE_FILE).unlink(missing_ok=True)
        if self.folder != self.target:
            publish_collection(
                self.folder, self.target, wait_seconds=_COMPACTION_SECONDS, on_wait=on_wait
            )

    def abandon(self) -> None:
        """Close the store and remove the folder of a build that must not take its place."""
        self.store.close()
        if self.folder != self.target:
            shutil.rmtree(self.folder)


@contextmanager
def claim_site(
    target: Path, mode: Mode, plan: BuildPlan, manifest: CollectionManifest, *, resume: bool
) -> Iterator[BuildSite]:
    """Claim the folder to build in, as an equal build left it or fresh.

    Args:
        target: Where the collection is to be.
        mode: `new` refuses an existing collection, `append` and `replace` say what to do with it.
        plan: What is to be built.
        manifest: What the new collection's `collection.json` starts with.
        resume: Refuse where an unfinished build of something else would have to be dropped.

    Raises:
        CollectionExistsError: If something lies at the target that the mode does not allow for.
        CollectionNotFoundError: If there is nothing to append to.
        CollectionBusyError: If another process builds or writes there.
        DamagedError: If the collection to append to is damaged.
        ResumeError: If `resume` is given and the unfinished build is of something else.
    """
    folder = target if mode == "append" else building_folder(target)
    if mode != "append":
        folder.mkdir(parents=True, exist_ok=True)
    with writer_lock(folder):
        drop_replaced(target)
        site = _continue(target, folder, mode, plan, resume=resume)
        with _removed_on_failure(folder, wanted=folder != target and not plan.repeatable):
            if site is None and mode == "append":
                site = _start_append(target, plan)
            elif site is None:
                site = _start(target, folder, mode, plan, manifest)
            for stray in folder.glob(".*.json.*"):  # of an atomic write that was killed
                stray.unlink()
            with _space_kept_back(folder), site.store:
                yield site


@contextmanager
def _removed_on_failure(folder: Path, *, wanted: bool) -> Iterator[None]:
    """Leave nothing of a build that cannot be gone on with."""
    try:
        yield
    except BaseException:
        if wanted:
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _space_kept_back(folder: Path) -> Iterator[None]:
    """Hold a little space that is given back at the end, whatever it is.

    On a disk that a build has filled to the last byte SQLite opens nothing, and so neither the
    collections beside the build nor what the build has stored could be used before someone frees
    some.
    """
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # wherever it will have been moved to
    try:
        with (folder / RESERVE_FILE).open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, RESERVE_BYTES)
        yield
    finally:
        with suppress(FileNotFoundError):
            os.unlink(RESERVE_FILE, dir_fd=place)
        os.close(place)


def check_target(target: Path, mode: Mode) -> None:
    """Refuse what a mode does not allow to lie at the target."""
    exists = target.exists() and not (target.is_dir() and not any(target.iterdir()))
    if mode == "append" and not is_collection(target):
        raise CollectionNotFoundError(
            f"{target}: no collection to append to; build it without --append"
        )
    if mode == "replace" and exists and not is_collection(target):
        raise CollectionExistsError(
            f"{target}: not a collection, so it will not be replaced; name another folder"
        )
    if mode == "new" and exists:
        what = "a collection" if is_collection(target) else "something that is no collection"
        raise CollectionExistsError(
            f"{target}: there is {what} already; --append adds to a collection, --replace builds "
            "it anew"
        )


def is_finished(target: Path, plan: BuildPlan) -> bool:
    """Tell whether the collection at the target is the complete outcome of this very plan."""
    interrupted = (building_folder(target) / MANIFEST_FILE).exists()
    if interrupted or not is_collection(target) or not plan.repeatable:
        return False
    try:
        with DocumentStore.open(target, read_only=True) as store:
            progress = _progress_of(store)
    except LaminaError:
        return False  # damaged, so there is a reason to build it again
    return progress is not None and progress.finished and not progress.plan.differences(plan)


def _start(
    target: Path, folder: Path, mode: Mode, plan: BuildPlan, manifest: CollectionManifest
) -> BuildSite:
    """Empty the folder and begin; `collection.json` comes last and marks that all is there."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()
    store = DocumentStore.create(folder, dimension=manifest.dimension)
    progress = Progress(plan=plan, fields_before=manifest.fields)
    store.set_meta(PROGRESS, progress.model_dump(mode="json"))
    manifest.write(folder / MANIFEST_FILE)
    return BuildSite(target, folder, mode, store, manifest, progress)


def _start_append(target: Path, plan: BuildPlan) -> BuildSite:
    manifest = CollectionManifest.read(target / MANIFEST_FILE)
    store = DocumentStore.open(target)
    try:
        check_store_age(target, store)
    except BaseException:
        store.close()
        raise
    progress = Progress(
        plan=plan,
        fields_before=manifest.fields,
        rejects_bytes=_size(target / REJECTS_FILE),
        truncated_bytes=_size(target / TRUNCATED_FILE),
    )
    store.set_meta(PROGRESS, progress.model_dump(mode="json"))
    return BuildSite(target, target, "append", store, manifest, progress)


def _continue(
    target: Path, folder: Path, mode: Mode, plan: BuildPlan, *, resume: bool
) -> BuildSite | None:
    """Open what an earlier run of the same plan left; None if there is nothing to continue.

    Raises:
        ResumeError: If `resume` is given and what is there is unfinished, but of another plan or
            of a Lamina that keeps its progress otherwise.
    """
    if not (folder / MANIFEST_FILE).exists():
        return None
    try:
        store = DocumentStore.open(folder)
    except LaminaError:
        if resume or folder == target:
            raise
        return None  # damaged or on a full disk: of no use, and not to be in the way
    progress = _progress_of(store)
    left_over = progress is not None and (folder != target or not progress.finished)
    different = progress.plan.differences(plan) if progress else []
    if not plan.repeatable:
        different.append("a pipe cannot be read again")
    if progress and not different and (left_over or resume):
        manifest = CollectionManifest.read(folder / MANIFEST_FILE)
        return BuildSite(target, folder, mode, store, manifest, progress)
    unknown = progress is None and store.get_meta(PROGRESS) is not None
    store.close()
    if resume and unknown:
        raise ResumeError(
            f"{folder}: the build there was written by another Lamina; let that one finish it, or "
            "leave out --resume to start over"
        )
    if resume and left_over:
        raise ResumeError(
            f"{folder}: the interrupted build there is another one: {'; '.join(different)}. Call "
            "it as it was begun, or leave out --resume to start over"
        )
    return None


def _progress_of(store: DocumentStore) -> Progress | None:
    """Read how far a build got; None if there was none, or one of another Lamina's form."""
    try:
        return Progress.model_validate(store.get_meta(PROGRESS))
    except ValidationError:
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
