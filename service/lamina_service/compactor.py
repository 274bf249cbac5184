"""Compaction in the background: looks at collections, and runs a child process where it is due."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lamina_index.collection import writer_lock
from lamina_index.compaction import needs_compaction
from lamina_index.errors import (
    CollectionBusyError,
    CollectionNotFoundError,
    IndexDamagedError,
    LaminaError,
)
from lamina_service.catalog import Catalog, newest_snapshot
from lamina_service.compaction_child import compact_in_child, tell_failure
from lamina_service.metrics import Metrics
from lamina_service.settings import Settings

LOOK_SECONDS = 1.0
LOCK_FILE = ".compactor.lock"

_FIRST_PAUSE = 10.0
_LONGEST_PAUSE = 600.0
_MOST_MENDS = 5
"""Times that a damaged index is made again without one that is found sound: the database may be
damaged, too, or the disk be bad."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Watched:
    """What is remembered of a collection between two looks.

    Attributes:
        snapshot: The index that its newer rows are not in.
        since: When there were such rows first, of `time.monotonic`.
        failures: Compactions that failed since one went well.
        resume: When the next may be tried.
    """

    snapshot: int | None = None
    since: float = 0.0
    failures: int = 0
    resume: float = 0.0


class Compactor:
    """Keeps search indexes up to date; of all workers on a data folder one does it at a time.

    Whichever worker holds the lock looks at every collection about once a second. If it dies,
    another takes over.
    """

    def __init__(
        self, settings: Settings, catalog: Catalog, metrics: Metrics, closing: threading.Event
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._metrics = metrics
        self._closing = closing
        self._asked = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._mended: dict[str, _Watched] = {}
        self._thread = threading.Thread(target=self._keep, name="compactor", daemon=True)

    def start(self) -> None:
        """Start to keep watch, unless that is switched off."""
        if self._settings.compact:
            self._thread.start()

    def close(self) -> None:
        """Wait for the thread; `closing` is set by then and a child has been ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def compact(self, folder: Path, factory: str | None) -> dict[str, Any]:
        """Compact a collection on request.

        Returns:
            What `Compaction.summary` tells.

        Raises:
            CollectionBusyError: If a build or another compaction is at work, or the service stops.
            LaminaError: As `compact`.
        """
        if not self._asked.acquire(blocking=False):
            raise CollectionBusyError("another collection is being compacted; try again later")
        try:
            return self._run(folder, factory=factory)
        finally:
            self._asked.release()

    def _keep(self) -> None:
        lock = None
        while not self._closing.is_set():
            try:
                lock = lock or _lock(self._settings.data / LOCK_FILE)
                for name in self._catalog.names() if lock else ():
                    self._look(name)
            except Exception:  # the thread's edge: whatever it is, the next look may go well
                _logger.exception("looking after the indexes of %s failed", self._settings.data)
            self._closing.wait(LOOK_SECONDS)
        if lock is not None:
            os.close(lock)

    def _look(self, name: str) -> None:
        """Compact a collection if that is due."""
        try:
            searcher = self._catalog.get(name)
            info = searcher.info()
        except IndexDamagedError as damage:
            self._mend(name, damage)
            return
        except (LaminaError, OSError):  # the catalog tells why it is not served, or it has gone
            self._watched.pop(name, None)
            return
        if info["verified"]:
            self._mended.pop(name, None)
        self._metrics.collection_watched(name, info["delta_count"])
        now = time.monotonic()
        watched = self._watched.setdefault(name, _Watched())
        snapshot = info["index"]["snapshot"] if info["index"] else None
        if not info["delta_count"] or snapshot != watched.snapshot or not watched.since:
            watched.snapshot, watched.since = snapshot, now
        due = needs_compaction(
            info,
            now - watched.since,
            max_delta=self._settings.compact_rows,
            max_age=self._settings.compact_seconds,
        )
        if due is not None and now >= watched.resume and self._try(name, watched, snapshot, due):
            watched.failures, watched.resume = 0, 0.0

    def _mend(self, name: str, damage: IndexDamagedError) -> None:
        """Make an index again that is too damaged to be searched, a few times at most."""
        watched = self._mended.setdefault(name, _Watched())
        if watched.failures >= _MOST_MENDS or time.monotonic() < watched.resume:
            return
        snapshot = newest_snapshot(self._settings.data / name)
        if self._try(name, watched, snapshot, str(damage)):
            self._catalog.follow(name)
            watched.failures += 1  # until it has been verified
            watched.resume = time.monotonic() + _FIRST_PAUSE
        elif watched.failures == _MOST_MENDS:
            _logger.error("the index of %s is left damaged until somebody compacts it", name)

    def _try(self, name: str, watched: _Watched, snapshot: int | None, why: str) -> bool:
        """Compact a collection unless it is busy or gone; note it where that fails.

        Returns:
            Whether there is a new index.
        """
        folder = self._settings.data / name
        try:
            with writer_lock(folder):
                pass  # a look is cheaper than a process
            _logger.info("compacting %s: %s", name, why)
            self._run(folder, full=watched.failures > 0)
        except (CollectionBusyError, CollectionNotFoundError):
            return False  # a build is at work, the service stops, or the collection has gone
        except Exception as error:  # noqa: BLE001 - a collection must not keep others waiting
            self._note_failure(name, folder, watched, snapshot, error)
            return False
        return True

    def _note_failure(
        self, name: str, folder: Path, watched: _Watched, snapshot: int | None, error: Exception
    ) -> None:
        """Log a failure, let some time pass before the next try, and tell all workers."""
        watched.failures += 1
        pause = min(_FIRST_PAUSE * 2 ** (watched.failures - 1), _LONGEST_PAUSE)
        watched.resume = time.monotonic() + pause
        _logger.error("compacting %s failed, again in %.0f s: %s", name, pause, error)
        tell_failure(folder, snapshot, watched.failures, error)

    def _run(self, folder: Path, factory: str | None = None, full: bool = False) -> dict[str, Any]:
        """Run a compaction in a child process and wait for it; it is counted."""
        started = time.monotonic()
        try:
            done = compact_in_child(folder, self._closing, factory=factory, full=full)
        except CollectionBusyError:
            raise
        except Exception:
            self._metrics.compacted("failed", time.monotonic() - started)
            raise
        kind: Literal["rebuilt", "added"] = "rebuilt" if done["added"] is None else "added"
        self._metrics.compacted(kind, time.monotonic() - started)
        _logger.info(
            "compacted %s in %.1f s: %d documents, %s",
            folder.name,
            done["seconds"],
            done["documents"],
            f"built anew ({done['reason']})" if kind == "rebuilt" else f"{done['added']} added",
        )
        return done


def _lock(path: Path) -> int | None:
    """Become the one process that keeps watch; None while another does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
