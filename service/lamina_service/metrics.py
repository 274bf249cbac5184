"""Prometheus metrics, kept cheap: every label set is bound once.

Where `PROMETHEUS_MULTIPROC_DIR` is set (several workers), values lie in files of that folder and
any worker reports the sum of all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


_LONG_SECONDS = (0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)


class Metrics:
    """The service's metrics, all named `lamina_*`."""

    def __init__(self) -> None:
        if MULTIPROCESS_FOLDER in os.environ:
            forget_dead_workers(Path(os.environ[MULTIPROCESS_FOLDER]))
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "lamina_requests",
            "Requests answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._request_seconds = Histogram(
            "lamina_request_seconds",
            "Seconds from a request's head to the end of its reply.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._stage_seconds = Histogram(
            "lamina_stage_seconds",
            "Seconds of a search by stage: queue, encode, search, fetch, rerank.",
            ("stage",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._rejected = Counter(
            "lamina_rejected",
            "Requests answered with a problem document, by the end of its type.",
            ("reason",),
            registry=self._registry,
        )
        self._queue_depth = Gauge(
            "lamina_queue_depth",
            "Texts waiting for the encoder or reranker or in it.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._write_queue_depth = Gauge(
            "lamina_write_queue_depth",
            "Writes waiting for a thread or on one.",
            registry=self._registry,
            multiprocess_mode="livesum",
        )
        self._written = Counter(
            "lamina_documents_written",
            "Documents inserted, replaced or deleted, and those refused.",
            ("outcome",),
            registry=self._registry,
        )
        self._documents = Gauge(
            "lamina_collection_documents",
            "Documents in a collection.",
            ("collection",),
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._bytes = Gauge(
            "lamina_collection_bytes",
            "Bytes of a collection's index and database.",
            ("collection",),
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._delta = Gauge(
            "lamina_collection_delta",
            "Documents of a collection that are not in its search index yet.",
            ("collection",),
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self._compactions = Counter(
            "lamina_compactions",
            "Compactions: rows added to the index, index rebuilt, or failed.",
            ("outcome",),
            registry=self._registry,
        )
        self._compaction_seconds = Histogram(
            "lamina_compaction_seconds",
            "Seconds of a compaction.",
            buckets=_LONG_SECONDS,
            registry=self._registry,
        )
        self._encoder = Gauge(
            "lamina_encoder",
            "1 for the encoder in use and the provider that runs it.",
            ("encoder", "precision", "provider"),
            registry=self._registry,
            multiprocess_mode="livemax",
        )
        self.set_queue_depth = self._queue_depth.set
        self.set_write_queue_depth = self._write_queue_depth.set
        self._bound_written = {
            outcome: self._written.labels(outcome)
            for outcome in ("inserted", "replaced", "deleted", "refused")
        }
        self._bound_requests: dict[tuple[str, str, int], Counter] = {}
        self._bound_routes: dict[str, Histogram] = {}
        self._bound_stages = {
            stage: self._stage_seconds.labels(stage)
            for stage in ("queue", "encode", "search", "fetch", "rerank")
        }

    def requested(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        key = (method, route, status)
        counter = self._bound_requests.get(key)
        if counter is None:
            counter = self._bound_requests[key] = self._requests.labels(method, route, status)
        counter.inc()
        histogram = self._bound_routes.get(route)
        if histogram is None:
            histogram = self._bound_routes[route] = self._request_seconds.labels(route)
        histogram.observe(seconds)

    def searched(self, stage_seconds: Mapping[str, float]) -> None:
        """Count a search's time by stage."""
        for stage, seconds in stage_seconds.items():
            self._bound_stages[stage].observe(seconds)

    def wrote(
        self, *, inserted: int = 0, replaced: int = 0, deleted: int = 0, refused: int = 0
    ) -> None:
        """Count what a write did."""
        self._bound_written["inserted"].inc(inserted)
        self._bound_written["replaced"].inc(replaced)
        self._bound_written["deleted"].inc(deleted)
        self._bound_written["refused"].inc(refused)

    def rejected(self, reason: str) -> None:
        """Count a problem document."""
        self._rejected.labels(reason).inc()

    def collection_opened(self, name: str, *, documents: int, size_bytes: int) -> None:
        """Tell a collection's size, also when it has changed."""
        self._documents.labels(name).set(documents)
        self._bytes.labels(name).set(size_bytes)

    def collection_gone(self, name: str) -> None:
        """Tell that a collection was deleted; over several workers a label cannot be taken back."""
        self.collection_opened(name, documents=0, size_bytes=0)
        self.collection_watched(name, 0)

    def collection_watched(self, name: str, delta: int) -> None:
        """Tell how many documents of a collection are newer than its index."""
        self._delta.labels(name).set(delta)

    def compacted(self, outcome: Literal["added", "rebuilt", "failed"], seconds: float) -> None:
        """Count a compaction."""
        self._compactions.labels(outcome).inc()
        self._compaction_seconds.observe(seconds)

    def encoder_loaded(self, name: str, precision: str, provider: str) -> None:
        """Tell which encoder runs where."""
        self._encoder.labels(name, precision, provider).set(1)

    def render(self) -> bytes:
        """Write all metrics, of all workers, in Prometheus' text format."""
        if MULTIPROCESS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call] # untyped there
        return generate_latest(together)


def forget_dead_workers(folder: Path) -> None:
    """Remove the gauges of workers that were killed: what they had waiting waits no more."""
    for path in folder.glob("gauge_live*.db"):
        if not Path("/proc", path.stem.rpartition("_")[2]).exists():
            path.unlink(missing_ok=True)
