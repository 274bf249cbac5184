"""How fast a collection is searched on this machine, with the encoder that built it.

What is compared is measured in turns, query by query, so that a machine that slows down slows down
all of it alike; and with one process and no network, so a service adds its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import EvaluationError
from lamina_index.runtime import available_threads, cpu_model
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore

QUERY_WORDS = 8
"""Of a document's beginning, where no queries are given."""
DOCUMENTS = 256
"""Encoded in bulk, as by `lamina index build`."""
_WARM_UP = 5


@dataclass(frozen=True)
class Spread:
    """Times of one thing, in milliseconds."""

    median: float
    p95: float
    count: int


@dataclass(frozen=True)
class BenchReport:
    """What was measured, of what and where.

    Attributes:
        documents: In the collection.
        index: Its FAISS factory string; None without a snapshot.
        provider: The ONNX Runtime provider that ran the encoder.
        cpu, threads: Of this machine, as far as this process may use them.
        query_source: A file, or how the queries were made.
        milliseconds: By what: `encode` is one query's embedding, `dense`, `lexical` and `hybrid`
            are whole searches one after the other, `dense index` and so on without the encoder.
        documents_per_second: Encoded in bulk over all threads.
        queries_per_second: Whole dense searches, by the number of threads that ask at once.
    """

    collection: str
    documents: int
    index: str | None
    encoder: str
    precision: str
    provider: str
    cpu: str
    threads: int
    top_k: int
    query_source: str
    milliseconds: dict[str, Spread]
    documents_per_second: float
    queries_per_second: dict[int, float]


def bench(
    folder: Path,
    encoder: OnnxEncoder,
    *,
    queries: Sequence[str] | None = None,
    query_source: str = "",
    count: int = 200,
    top_k: int = 10,
) -> BenchReport:
    """Measure a collection.

    Args:
        folder: The collection.
        encoder: That built it, loaded.
        queries: To ask in turn; by default the first words of documents from all over it.
        query_source: Where they are from.
        count: How many searches of each kind; fewer queries than that are asked again.
        top_k: Hits of each search.

    Raises:
        EvaluationError: If the collection is empty, or no query is given.
        LaminaError: As `Searcher.open`.
    """
    texts = _some_texts(folder, max(count, DOCUMENTS))
    if not texts:
        raise EvaluationError(f"{folder}: holds no document, so there is nothing to measure")
    if queries is None:
        queries = [" ".join(text.split()[:QUERY_WORDS]) for text in texts[:count]]
        query_source = f"first {QUERY_WORDS} words of documents"
    if not queries:
        raise EvaluationError(f"{query_source}: has no query; expected one a line")
    with Searcher.open(folder, encoder) as searcher:
        info = searcher.info()
        modes: tuple[Mode, ...] = (
            ("dense", "lexical", "hybrid") if info["word_index"] else ("dense",)
        )
        asked = [queries[place % len(queries)] for place in range(count)]
        milliseconds = _in_turns(searcher, asked, modes, top_k)
        at_once = {
            threads: _per_second(searcher, asked, threads, top_k)
            for threads in dict.fromkeys((1, available_threads()))
        }
    return BenchReport(
        collection=str(folder),
        documents=info["count"],
        index=info["index"]["factory"] if info["index"] else None,
        encoder=encoder.name,
        precision=encoder.precision,
        provider=encoder.provider,
        cpu=cpu_model(),
        threads=available_threads(),
        top_k=top_k,
        query_source=query_source,
        milliseconds=milliseconds,
        documents_per_second=_documents_per_second(encoder, texts[:DOCUMENTS]),
        queries_per_second=at_once,
    )


def _some_texts(folder: Path, most: int) -> list[str]:
    """Texts of documents from all over the collection, in a mixed order that is always the same."""
    with DocumentStore.open(folder, read_only=True) as store, store.reading() as reading:
        last = reading.last_key()
        keys = np.unique(np.linspace(1, max(last, 1), num=most).astype(np.int64))
        texts = [document.text for document in reading.documents(keys.tolist())]
        if not texts and last:  # those keys are gone
            texts = [document.text for document in reading.documents_after(0, limit=most)]
    np.random.default_rng(0).shuffle(texts)
    return texts


def _in_turns(
    searcher: Searcher, queries: Sequence[str], modes: Sequence[Mode], top_k: int
) -> dict[str, Spread]:
    taken: dict[str, list[float]] = {"encode": []}
    for place, query in enumerate((*queries[:_WARM_UP], *queries)):
        for mode in modes:
            started = time.perf_counter()
            result = searcher.search(query, SearchOptions(top_k=top_k, mode=mode))
            whole = time.perf_counter() - started
            if place < _WARM_UP:
                continue
            encode = result.took.get("encode", 0.0)
            taken.setdefault(mode, []).append(whole)
            if mode == "dense":
                taken["encode"].append(encode)
            if mode != "lexical":
                taken.setdefault(f"{mode} index", []).append(whole - encode)
    return {name: _spread(seconds) for name, seconds in taken.items()}


def _spread(seconds: Sequence[float]) -> Spread:
    return Spread(
        median=round(1000 * statistics.median(seconds), 3),
        p95=round(1000 * float(np.percentile(seconds, 95)), 3),
        count=len(seconds),
    )


def _per_second(searcher: Searcher, queries: Sequence[str], threads: int, top_k: int) -> float:
    options = SearchOptions(top_k=top_k)
    with ThreadPoolExecutor(threads, "lamina-bench") as pool:
        started = time.perf_counter()
        for _ in pool.map(lambda query: searcher.search(query, options), queries):
            pass
        return round(len(queries) / (time.perf_counter() - started), 1)


def _documents_per_second(encoder: OnnxEncoder, texts: Sequence[str]) -> float:
    encoder.encode(texts[:_WARM_UP], role="document")
    started = time.perf_counter()
    encoder.encode(texts, role="document")
    return round(len(texts) / (time.perf_counter() - started), 1)


def read_queries(lines: Iterable[str]) -> list[str]:
    """Take the lines that are not blank."""
    return [line.strip() for line in lines if line.strip()]
