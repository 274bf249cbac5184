"""The collections of a data folder: each is open, or is known by the reason why it is not."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lamina_index.collection import MANIFEST_FILE
from lamina_index.encoder import Encoder
from lamina_index.errors import CollectionNotFoundError, LaminaError
from lamina_index.searcher import Searcher
from lamina_index.snapshot_files import SNAPSHOTS
from lamina_index.store import STORE_FILE
from lamina_service.errors import PROBLEM_URI, problem_of
from lamina_service.metrics import Metrics

REFRESH_SECONDS = 1.0
_RETIREMENT_SECONDS = 60.0
"""How long a replaced collection stays open for searches that began before."""

T = TypeVar("T")
_Stamp = tuple[int, int]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A collection as last opened; it is worth opening again when one of the `stamps` changes.

    An open collection follows its own database and snapshots, so the stamp of its manifest is
    enough; one that failed is worth another try when any of its parts has changed.
    """

    stamps: tuple[_Stamp, ...]
    searcher: Searcher | None = None
    failure: LaminaError | None = None


class Catalog:
    """Finds collections by name.

    One that is damaged or was built by another encoder does not keep the others from being
    served, nor does one that fails in a way nobody foresaw: asking for it raises the error that
    opening it gave. A background thread verifies
    every file of what was opened, and takes up collections that are built, replaced, repaired or
    removed while the service runs, within about a second.
    """

    def __init__(self, data: Path, encoder: Encoder, metrics: Metrics) -> None:
        self._data = data
        self._encoder = encoder
        self._metrics = metrics
        self._entries: dict[str, _Entry] = {}
        self._retired: list[tuple[float, Searcher]] = []
        self._refreshing = threading.Lock()
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
        for _, searcher in self._retired:
            searcher.close()

    def names(self) -> list[str]:
        """All collections, also those that could not be opened, in order."""
        return sorted(self._entries)

    def failed(self) -> int:
        """How many are not served."""
        return sum(entry.failure is not None for entry in self._entries.values())

    def get(self, name: str) -> Searcher:
        """Give an open collection.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: Why it could not be opened, or what is damaged in it.
        """
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(self.names()) or "none"
            raise CollectionNotFoundError(f"no collection {name!r}; there is: {known}")
        if entry.searcher is None:
            assert entry.failure is not None  # an entry has one or the other
            raise entry.failure.with_traceback(None)
        return entry.searcher

    def using(self, name: str, work: Callable[[Searcher], T]) -> T:
        """Work with a collection, or with the one that takes its place meanwhile.

        Raises:
            CollectionNotFoundError: If there is none of that name.
            LaminaError: As `get`, and what `work` raises.
        """
        searcher = self.get(name)
        try:
            return work(searcher)
        except CollectionNotFoundError:  # replaced or removed, and not yet taken note of
            self.refresh()
            return work(self.get(name))

    def describe(self, name: str) -> dict[str, Any]:
        """Tell a collection's state and size, or why it is not served.

        Raises:
            CollectionNotFoundError: If there is none of that name.
        """
        try:
            return {"name": name, "status": "open", **self.using(name, Searcher.info)}
        except CollectionNotFoundError:
            raise
        except LaminaError as error:
            problem = {"type": PROBLEM_URI + problem_of(error).slug, "detail": str(error)}
            return {"name": name, "status": "failed", "problem": problem}

    def refresh(self) -> None:
        """Open what is new or changed, let go of what is gone."""
        with self._refreshing:
            folders = {
                manifest.parent.name: manifest.parent
                for manifest in self._data.glob(f"*/{MANIFEST_FILE}")
                if not manifest.parent.name.startswith(".")  # those are builds under way
            }
            for name in self._entries.keys() - folders.keys():
                self._put(name, None)
            for name, folder in folders.items():
                known = self._entries.get(name)
                if known is None or known.stamps != _stamps(folder)[: len(known.stamps)]:
                    self._put(name, self._open(folder))

    def _open(self, folder: Path) -> _Entry:
        stamps = _stamps(folder)  # as before, so that a change meanwhile is noticed
        try:
            with ExitStack() as undo:
                searcher = undo.enter_context(Searcher.open(folder, self._encoder))
                info = searcher.info()
                undo.pop_all()
        except Exception as error:  # noqa: BLE001 - must not keep the others from being served
            return _failed(folder, stamps, error)
        index_bytes = info["index"]["size_bytes"] if info["index"] else 0
        self._metrics.collection_opened(
            folder.name, documents=info["count"], size_bytes=info["store_bytes"] + index_bytes
        )
        _logger.info("collection %s is open: %d documents", folder.name, info["count"])
        return _Entry(stamps[:1], searcher=searcher)

    def _put(self, name: str, entry: _Entry | None) -> None:
        before = self._entries.get(name)
        if before is not None and before.searcher is not None:
            self._retired.append((time.monotonic(), before.searcher))
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry

    def _keep(self) -> None:
        while not self._closing.is_set():
            try:
                self._close_retired()
                self.refresh()
                for name in self.names():
                    self._verify(name)
            except Exception:  # the thread's edge: whatever it is, the next round may go well
                _logger.exception("keeping watch over %s failed", self._data)
            self._closing.wait(REFRESH_SECONDS)

    def _verify(self, name: str) -> None:
        """Compare the files of a collection with their digests, once."""
        entry = self._entries.get(name)
        if entry is None or entry.searcher is None or entry.searcher.verified:
            return
        stamps = _stamps(self._data / name)
        try:
            entry.searcher.verify()
        except Exception as error:  # noqa: BLE001 - must not keep the others from being verified
            with self._refreshing:
                if self._entries.get(name) is entry:
                    self._put(name, _failed(self._data / name, stamps, error))

    def _close_retired(self) -> None:
        while self._retired and time.monotonic() - self._retired[0][0] > _RETIREMENT_SECONDS:
            self._retired.pop(0)[1].close()


def _failed(folder: Path, stamps: tuple[_Stamp, ...], error: Exception) -> _Entry:
    """Log why a collection is not served; of what nobody foresaw only the log tells."""
    if isinstance(error, LaminaError):
        _logger.error("collection %s is not served: %s", folder.name, error)
        failure = error
    else:
        _logger.error("collection %s is not served", folder.name, exc_info=error)
        failure = LaminaError(f"collection {folder.name!r} failed; the server's log tells why")
    return _Entry(stamps, failure=failure)


def _stamps(folder: Path) -> tuple[_Stamp, ...]:
    """Stamp manifest, database and snapshots, in this order."""
    return tuple(_stamp(folder / part) for part in (MANIFEST_FILE, STORE_FILE, SNAPSHOTS))


def _stamp(path: Path) -> _Stamp:
    """Inode and time of the last change, also of its rights."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_ctime_ns)
