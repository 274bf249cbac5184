"""What the routes stand on: encoder, collections, queue, keys and metrics, opened together."""

from __future__ import annotations

import contextlib
import functools
import platform
import sqlite3
import threading
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

from lamina_index.encoder import OnnxEncoder
from lamina_index.reranker import OnnxReranker
from lamina_index.runtime import available_threads
from lamina_service.access import check_origins
from lamina_service.aliases import Aliases
from lamina_service.background_encoder import BackgroundEncoder
from lamina_service.catalog import Catalog
from lamina_service.compactor import Compactor
from lamina_service.errors import InvalidRequestError
from lamina_service.keys import KeyStore, opened
from lamina_service.metrics import Metrics
from lamina_service.settings import Settings
from lamina_service.work_queue import WorkQueue

_READ_THREADS = 2
_WRITE_THREADS = 4
"""They wait for the encoder or the disk; those that wait for the disk together share its sync."""
_CHANGE_THREADS = 3
"""One may be busy with an archive and one with a compaction, of which there is one at a time each;
the third is not held up."""
_CHANGES_WAITING = 16
_PACKAGES = (
    "lamina-search",
    "onnxruntime",
    "onnxruntime-gpu",
    "tokenizers",
    "faiss-cpu",
    "numpy",
    "fastapi",
    "uvicorn",
)


@dataclass(frozen=True, slots=True)
class Service:
    """One worker's state.

    Attributes:
        searches: Runs whatever needs the encoder or scans vectors.
        reads: Runs short reads of the database, which a full queue of searches does not hold up.
        writes: Stores and deletes documents; encodes them on threads of `write_encoder`.
        changes: Makes, deletes, archives and compacts collections and switches aliases.
        compactor: Keeps their search indexes up to date.
        closing: Set when the service stops; long work ends then.
    """

    settings: Settings
    metrics: Metrics
    keys: KeyStore
    encoder: OnnxEncoder
    write_encoder: BackgroundEncoder
    reranker: OnnxReranker | None
    aliases: Aliases
    catalog: Catalog
    searches: WorkQueue
    reads: WorkQueue
    writes: WorkQueue
    changes: WorkQueue
    compactor: Compactor
    closing: threading.Event

    @classmethod
    def open(cls, settings: Settings, metrics: Metrics) -> Self:
        """Load the encoder and open every collection of the data folder.

        Raises:
            LaminaError: If the keys or the encoder cannot be had, or pages of other origins may
                ask and there is no key. A collection that cannot be
                opened is no such error; see `Catalog`.
        """
        with opened(settings.data) as keys:
            check_origins(settings.allowed_origins, keys)
        keys = KeyStore.open(settings.data)
        threads = settings.threads or max(1, available_threads() // settings.workers)
        encoder = OnnxEncoder.load(
            settings.encoder,
            precision=settings.precision,
            device=settings.device,
            threads=1,  # each of the queue's threads runs one text at a time
            accept=settings.accept_compatible,
        )
        reranker = None
        if settings.reranker is not None:
            reranker = OnnxReranker.load(settings.reranker, device=settings.device, threads=1)
        metrics.encoder_loaded(encoder.name, encoder.precision, encoder.provider)
        aliases = Aliases(settings.data)
        write_encoder = BackgroundEncoder(encoder, threads=settings.threads or available_threads())
        catalog = Catalog(
            settings.data,
            encoder,
            metrics,
            aliases,
            write_encoder=write_encoder,
            reranker=reranker,
        )
        catalog.open()
        searches = WorkQueue(
            "search",
            threads=threads,
            capacity=settings.queue_size,
            on_depth=metrics.set_queue_depth,
        )
        reads = WorkQueue("read", threads=_READ_THREADS, capacity=settings.queue_size)
        writes = WorkQueue(
            "write",
            threads=_WRITE_THREADS,
            capacity=settings.write_queue_size,
            on_depth=metrics.set_write_queue_depth,
        )
        changes = WorkQueue("change", threads=_CHANGE_THREADS, capacity=_CHANGES_WAITING)
        closing = threading.Event()
        compactor = Compactor(settings, catalog, metrics, closing)
        compactor.start()
        return cls(
            settings=settings,
            metrics=metrics,
            keys=keys,
            encoder=encoder,
            write_encoder=write_encoder,
            reranker=reranker,
            aliases=aliases,
            catalog=catalog,
            searches=searches,
            reads=reads,
            writes=writes,
            changes=changes,
            compactor=compactor,
            closing=closing,
        )

    def close(self) -> None:
        """Finish what is queued, give up archives and compactions, and close everything."""
        self.closing.set()
        self.searches.close()
        self.reads.close()
        self.writes.close()
        self.changes.close()
        self.compactor.close()
        self.catalog.close()
        self.aliases.close()
        self.write_encoder.close()
        self.encoder.close()
        if self.reranker is not None:
            self.reranker.close()
        self.keys.close()

    def check_text(self, field: str, text: str | None) -> None:
        """Refuse a text longer than the limit.

        Raises:
            InvalidRequestError: If so.
        """
        limit = self.settings.max_text_chars
        if text is not None and len(text) > limit:
            raise InvalidRequestError(field, f"{len(text)} characters, expected at most {limit}")

    def check_batch(self, field: str, count: int) -> None:
        """Refuse more items in one request than the limit.

        Raises:
            InvalidRequestError: If so.
        """
        limit = self.settings.max_batch
        if count > limit:
            raise InvalidRequestError(field, f"{count} items, expected at most {limit}")

    def check_rerank(self, field: str, depth: int | None) -> None:
        """Refuse to rerank more than the limit, or without a reranker.

        Raises:
            InvalidRequestError: If so.
        """
        if depth is None:
            return
        if self.reranker is None:
            raise InvalidRequestError(
                field,
                "this service has no reranker; leave it out, or start the service with "
                "--reranker FOLDER (made by `lamina export --reranker`)",
            )
        limit = self.settings.max_rerank
        if depth > limit:
            raise InvalidRequestError(field, f"{depth} candidates, expected at most {limit}")

    def describe(self) -> dict[str, Any]:
        """Tell what runs here, for `/info`."""
        collections = self.catalog.describe_all()
        return {
            "encoder": {
                "name": self.encoder.name,
                "precision": self.encoder.precision,
                "fingerprint": self.encoder.fingerprint,
                "dimension": self.encoder.dimension,
                "max_tokens": self.encoder.max_tokens,
                "provider": self.encoder.provider,
            },
            "reranker": self._describe_reranker(),
            "threads": self.searches.threads,
            "workers": self.settings.workers,
            "queue": {"depth": self.searches.depth, "capacity": self.searches.capacity},
            "versions": _versions(),
            "aliases": self.catalog.aliases,
            "collections": collections,
        }

    def _describe_reranker(self) -> dict[str, Any] | None:
        if self.reranker is None:
            return None
        return {
            "name": self.reranker.name,
            "precision": self.reranker.precision,
            "fingerprint": self.reranker.fingerprint,
            "max_tokens": self.reranker.max_tokens,
            "max_rerank": self.settings.max_rerank,
            "provider": self.reranker.provider,
        }


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
