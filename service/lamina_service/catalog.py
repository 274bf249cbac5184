"""The collections of a data folder: each is open, or is known by the reason why it is not."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lamina_index.collection import MANIFEST_FILE, recover_swap, replaced_folder
from lamina_index.collection_changes import drop_removed
from lamina_index.encoder import Encoder
from lamina_index.errors import CollectionNotFoundError, DamagedError, LaminaError
from lamina_index.reranker import Reranker
from lamina_index.searcher import Searcher
from lamina_index.snapshot_files import SNAPSHOTS, snapshot_folder, snapshot_numbers
from lamina_index.store import STORE_FILE
from lamina_index.writer import CollectionWriter
from lamina_service.aliases import Aliases, is_plain
from lamina_service.compaction_child import failure_of
from lamina_service.errors import PROBLEM_URI, NameTakenError, for_clients, problem_of
from lamina_service.metrics import Metrics

REFRESH_SECONDS = 1.0
_RETIREMENT_SECONDS = 60.0
"""How long a replaced collection stays open for searches that began before."""

_SERVED_PARTS = (MANIFEST_FILE,)
"""A collection that is served follows its own database and snapshots."""
_UNSOUND_PARTS = (MANIFEST_FILE, SNAPSHOTS)
"""One whose index opened but is not as it was written waits for another; writes are no cure."""
_FAILED_PARTS = (MANIFEST_FILE, STORE_FILE, SNAPSHOTS)

T = TypeVar("T")
_Stamp = tuple[int, int]
_ABSENT = (0, 0)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A collection as last opened; worth opening again when the stamp of a part changes."""

    parts: tuple[str, ...]
    stamps: tuple[_Stamp, ...]
    searcher: Searcher | None = None
    failure: LaminaError | None = None

    def holds(self, folder: Path) -> bool:
        """Whether the folder is as it was."""
        return self.stamps == _stamps(folder, self.parts)


class Catalog:
    """Finds collections by name or alias.

    One that is damaged or was built by another encoder does not keep the others from being
    served, nor does one that fails in a way nobody foresaw: asking for it raises the error that
    opening it gave.

    What another process does to a collection or an alias holds from the next request on: `follow`
    compares what a request names with the disk, in microseconds where nothing has changed. A
    background thread does so for all collections about every second, verifies every file of what
    was opened, and frees the space of what was deleted.
    """

    def __init__(
        self,
        data: Path,
        encoder: Encoder,
        metrics: Metrics,
        aliases: Aliases,
        *,
        write_encoder: Encoder,
        reranker: Reranker | None = None,
    ) -> None:
        self._data = data
        self._encoder = encoder
        self._write_encoder = write_encoder
        self._reranker = reranker
        self._metrics = metrics
        self._aliases = aliases
        self._entries: dict[str, _Entry] = {}  # replaced, never changed: others iterate over it
        self._writers: dict[str, tuple[Searcher, CollectionWriter]] = {}
        self._retired: list[tuple[float, Searcher | CollectionWriter]] = []
        self._refreshing = threading.Lock()
        self._opening_writer = threading.Lock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="catalog", daemon=True)

    def open(self) -> None:
        """Open every collection and start to keep watch."""
        self.refresh()
        self._keeper.start()

    def close(self) -> None:
        """Close every collection."""
        self._closing.set()
        self._keeper.join()
        for entry in self._entries.values():
            if entry.searcher is not None:
                entry.searcher.close()
        for _, writer in self._writers.values():
            writer.close()
        for _, retired in self._retired:
            retired.close()

    @property
    def aliases(self) -> dict[str, str]:
        """The collection that each alias leads to, as known since the last `follow`."""
        return {name: found.collection for name, found in sorted(self._aliases.known.items())}

    def names(self) -> list[str]:
        """All collections, also those that could not be opened, in order."""
        return sorted(self._entries)

    def failed(self) -> int:
        """How many are not served."""
        return sum(entry.failure is not None for entry in self._entries.values())

    def get(self, name: str) -> Searcher:
        """Give an open collection, by its name or an alias, as of the last `follow` or later.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: Why it could not be opened, or what is damaged in it.
        """
        _, entry = self._find(name)
        if entry.searcher is None:
            assert entry.failure is not None  # an entry has one or the other
            raise entry.failure.with_traceback(None)
        return entry.searcher

    def _find(self, name: str) -> tuple[str, _Entry]:
        """What is known of a collection, and its own name where an alias was given.

        Raises:
            CollectionNotFoundError: If there is none of that name.
        """
        if self._aliases.resolve(name) not in self._entries:
            self.follow(name)  # perhaps an alias was switched since, which another request has seen
        collection = self._aliases.resolve(name)
        entry = self._entries.get(collection)
        if entry is None:
            known = ", ".join(self.names()) or "none"
            led = f" (alias {name!r} leads to it)" if collection != name else ""
            raise CollectionNotFoundError(f"no collection {collection!r}{led}; there is: {known}")
        return collection, entry

    def using(self, name: str, work: Callable[[Searcher], T]) -> T:
        """Work with a collection, or with the one that takes its place meanwhile.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: As `get`, and what `work` raises.
        """
        return self._retried(name, lambda: work(self.get(name)))

    def changing(self, name: str, work: Callable[[Path], T]) -> T:
        """Work with a collection's folder, whether or not it can be served; take up the outcome.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: What `work` raises.
        """
        done = self._retried(name, lambda: work(self._data / self._find(name)[0]))
        self.follow(name)
        return done

    def writing(self, name: str, work: Callable[[CollectionWriter], T]) -> T:
        """Write to a collection, or to the one that takes its place meanwhile.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: As `get`, and what `work` raises.
        """
        return self._retried(name, lambda: work(self._writer(name)))

    def _retried(self, name: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except CollectionNotFoundError:  # replaced, removed or switched, and not yet taken note of
            self.follow(name)
            return work()

    def _writer(self, name: str) -> CollectionWriter:
        """Give the one writer of an open collection; the first call makes it."""
        searcher = self.get(name)
        with self._opening_writer:
            known = self._writers.get(searcher.folder.name)
            if known is not None and known[0] is searcher:
                return known[1]
            writer = CollectionWriter.open(searcher.folder, self._write_encoder)
            self._writers[searcher.folder.name] = (searcher, writer)
            if known is not None:
                self._retired.append((time.monotonic(), known[1]))
            return writer

    def is_current(self, name: str) -> bool:
        """Whether what is known of a name still holds; takes note of aliases that were changed.

        Never waits for a collection to be opened, so the event loop may ask.
        """
        self._aliases.refresh()
        name = self._aliases.resolve(name)
        known = self._entries.get(name)
        if known is not None:
            return known.holds(self._data / name)
        places = (self._data / name, replaced_folder(self._data / name)) if is_plain(name) else ()
        return not any(map(_is_there, places))

    def follow(self, name: str) -> None:
        """Take up what has become of a collection or alias since it was last looked at."""
        if not self.is_current(name):
            with self._refreshing:
                self._take_up(self._aliases.resolve(name))

    def describe(self, name: str) -> dict[str, Any]:
        """Tell a collection's state and size, or why it is not served.

        Raises:
            CollectionNotFoundError: If there is none of that name.
        """
        try:
            described = self.using(name, _describe)
        except CollectionNotFoundError:
            raise
        except LaminaError as error:
            described = _describe_failed(self._data / self._aliases.resolve(name), error)
        return {**described, "aliases": self._aliases.leading_to(described["name"])}

    def describe_all(self) -> list[dict[str, Any]]:
        """Tell the state of all collections, as they are now on the disk."""
        self.refresh()
        found = []
        for name in self.names():
            if name in self._aliases.known:  # made on the disk, where nobody knows of aliases
                taken = NameTakenError(f"alias {name!r} hides this collection; rename one of them")
                found.append({**_describe_failed(self._data / name, taken), "aliases": []})
                continue
            with suppress(CollectionNotFoundError):  # gone meanwhile
                found.append(self.describe(name))
        return found

    def refresh(self) -> None:
        """Open what is new or changed, let go of what is gone, take note of all aliases."""
        self._aliases.refresh()
        found = {
            manifest.parent.name
            for manifest in self._data.glob(f"*/{MANIFEST_FILE}")
            if not manifest.parent.name.startswith(".")  # those are builds under way
        }
        with self._refreshing:
            for name in self._entries.keys() | found:
                self._take_up(name)

    def _take_up(self, name: str) -> None:
        folder = self._data / name
        known = self._entries.get(name)
        if known is not None and known.holds(folder):
            return
        with suppress(LaminaError, OSError):  # then there is nothing to open
            recover_swap(folder)
        if _is_there(folder):
            self._put(name, self._open(folder))
        elif known is not None:
            self._put(name, None)
            self._metrics.collection_gone(name)
            _logger.info("collection %s is gone", name)

    def _open(self, folder: Path) -> _Entry:
        # as before, so that a change meanwhile is noticed
        failed, served = _stamps(folder, _FAILED_PARTS), _stamps(folder, _SERVED_PARTS)
        try:
            with ExitStack() as undo:
                searcher = undo.enter_context(Searcher.open(folder, self._encoder, self._reranker))
                info = self._measured(searcher)
                undo.pop_all()
        except Exception as error:  # noqa: BLE001 - must not keep the others from being served
            return _failed(folder, _FAILED_PARTS, failed, error)
        _logger.info("collection %s is open: %d documents", folder.name, info["count"])
        return _Entry(_SERVED_PARTS, served, searcher=searcher)

    def _measured(self, searcher: Searcher) -> dict[str, Any]:
        """Describe a collection, and tell the metrics its size."""
        info = searcher.info()
        index_bytes = info["index"]["size_bytes"] if info["index"] else 0
        self._metrics.collection_opened(
            searcher.folder.name,
            documents=info["count"],
            size_bytes=info["store_bytes"] + index_bytes,
        )
        return info

    def _put(self, name: str, entry: _Entry | None) -> None:
        before = self._entries.get(name)
        if before is not None and before.searcher is not None:
            self._retired.append((time.monotonic(), before.searcher))
        entries = {known: kept for known, kept in self._entries.items() if known != name}
        self._entries = entries if entry is None else {**entries, name: entry}

    def _keep(self) -> None:
        while not self._closing.is_set():
            try:
                self._close_retired()
                self.refresh()
                drop_removed(self._data)
                self._retire_writers()
                for name in self.names():
                    self._verify(name)
                    self._measure(name)
            except Exception:  # the thread's edge: whatever it is, the next round may go well
                _logger.exception("keeping watch over %s failed", self._data)
            self._closing.wait(REFRESH_SECONDS)

    def _verify(self, name: str) -> None:
        """Compare the files of a collection with their digests, once."""
        entry = self._entries.get(name)
        if entry is None or entry.searcher is None or entry.searcher.verified:
            return
        folder = self._data / name
        stamps = _stamps(folder, _UNSOUND_PARTS)
        try:
            entry.searcher.verify()
        except Exception as error:  # noqa: BLE001 - must not keep the others from being verified
            with self._refreshing:
                if self._entries.get(name) is entry:
                    self._put(name, _failed(folder, _UNSOUND_PARTS, stamps, error))

    def _measure(self, name: str) -> None:
        """Tell the metrics how a collection has grown; what is damaged, requests tell."""
        entry = self._entries.get(name)
        if entry is not None and entry.searcher is not None:
            with suppress(LaminaError):
                self._measured(entry.searcher)

    def _retire_writers(self) -> None:
        """Let go of the writers of collections that were replaced or are gone."""
        with self._opening_writer:
            for name, (searcher, writer) in list(self._writers.items()):
                entry = self._entries.get(name)
                if entry is None or entry.searcher is not searcher:
                    del self._writers[name]
                    self._retired.append((time.monotonic(), writer))

    def _close_retired(self) -> None:
        while self._retired and time.monotonic() - self._retired[0][0] > _RETIREMENT_SECONDS:
            self._retired.pop(0)[1].close()


def newest_snapshot(folder: Path) -> int | None:
    """Number of a collection's newest snapshot, sound or not, if there is one that can be seen."""
    with suppress(DamagedError):  # those that cannot be listed are as good as none
        return next(iter(snapshot_numbers(folder)), None)
    return None


def _describe(searcher: Searcher) -> dict[str, Any]:
    info = searcher.info()
    snapshot = info["index"]["snapshot"] if info["index"] else None
    failure = failure_of(searcher.folder, snapshot)
    info["damage"] = [for_clients(damage, searcher.folder.parent) for damage in info["damage"]]
    return {"name": searcher.folder.name, "status": "open", **info, "compaction_failure": failure}


def _describe_failed(folder: Path, error: LaminaError) -> dict[str, Any]:
    detail = for_clients(str(error), folder.parent)
    problem = {"type": PROBLEM_URI + problem_of(error).slug, "detail": detail}
    failure = failure_of(folder, newest_snapshot(folder))
    described = {"name": folder.name, "status": "failed", "problem": problem}
    return {**described, "compaction_failure": failure} if failure else described


def _failed(
    folder: Path, parts: tuple[str, ...], stamps: tuple[_Stamp, ...], error: Exception
) -> _Entry:
    """Log why a collection is not served; of what nobody foresaw only the log tells."""
    if isinstance(error, LaminaError):
        _logger.error("collection %s is not served: %s", folder.name, error)
        failure = error
    else:
        _logger.error("collection %s is not served", folder.name, exc_info=error)
        failure = LaminaError(f"collection {folder.name!r} failed; the server's log tells why")
    return _Entry(parts, stamps, failure=failure)


def _stamps(folder: Path, parts: tuple[str, ...]) -> tuple[_Stamp, ...]:
    """What shows that a collection should be opened again: of snapshots, that of the newest."""
    return tuple(
        _newest_stamp(folder) if part == SNAPSHOTS else _stamp(f"{folder}/{part}") for part in parts
    )


def _newest_stamp(folder: Path) -> _Stamp:
    """Of a snapshot that is there; one that is being made changes the folder above it alone."""
    number = newest_snapshot(folder)
    return _ABSENT if number is None else _stamp(str(snapshot_folder(folder, number)))


def _is_there(folder: Path) -> bool:
    return _stamp(f"{folder}/{MANIFEST_FILE}") != _ABSENT


def _stamp(path: str) -> _Stamp:
    """Inode and time of the last change, also of its rights."""
    try:
        found = os.stat(path)
    except OSError:
        return _ABSENT
    return (found.st_ino, found.st_ctime_ns)
