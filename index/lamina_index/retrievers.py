"""Evaluation of what is built and served: a collection on disk, or one behind HTTP."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lamina_index.encoder import Encoder
from lamina_index.errors import BlankTextError, EvaluationError
from lamina_index.exact_corpus import corpus_fingerprint, document_digest, encoder_facts
from lamina_index.parts import part_id
from lamina_index.reranker import OnnxReranker
from lamina_index.runtime import available_threads
from lamina_index.search_options import DEFAULT_OPTIONS, SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.service_client import MAX_TOP_K, ServiceClient, path_of
from lamina_index.store import DocumentStore

_CONNECTIONS = 4


class CollectionRetriever:
    """Ranks with the `Searcher` that also serves the collection; a `Retriever`."""

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        options: SearchOptions = DEFAULT_OPTIONS,
        reranker: OnnxReranker | None = None,
    ) -> None:
        """Open the collection.

        Args:
            folder: Where it lies.
            encoder: The one that built it.
            options: How to search; `top_k` and `offset` do not count.
            reranker: For options that ask to be reranked.

        Raises:
            EncoderMismatchError: If another encoder built it.
            LaminaError: If it is missing or damaged.
        """
        self._folder = folder
        self._encoder = encoder
        self._options = options
        self._reranker = reranker
        self._searcher = Searcher.open(folder, encoder, reranker)
        self._chunked = self._searcher.manifest.chunking is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._searcher.close()

    def retrieve(self, queries: Sequence[str], *, top_k: int) -> list[list[str]]:
        """Rank documents for each query; none for a query without tokens."""
        return _spread(lambda query: self._rank(query, top_k), queries, available_threads())

    def absent(self, ids: Collection[str]) -> set[str]:
        """Tell which ids are not in the collection."""
        return {each for each in ids if self._searcher.get(_stored_id(each, self._chunked)) is None}

    def facts(self) -> dict[str, Any]:
        """Describe the collection and its encoder."""
        with DocumentStore.open(self._folder, read_only=True) as store:
            digests = (document_digest(row.id, row.text) for row in store.documents())
            fingerprint = corpus_fingerprint(digests)
        return {
            "kind": f"collection {self._folder}{_how(self._options)}",
            "corpus_fingerprint": fingerprint,
            **_collection_facts(self._searcher.info()),
            "encoder": encoder_facts(self._encoder),
            **_reranker_facts(self._reranker),
        }

    def _rank(self, query: str, top_k: int) -> list[str]:
        try:
            wanted = replace(self._options, top_k=_depth(top_k, self._chunked), offset=0)
            hits = self._searcher.search(query, wanted).hits
        except BlankTextError:
            return []
        return _documents(((hit.id, hit.metadata) for hit in hits), self._chunked)[:top_k]


class ServiceRetriever:
    """Ranks by asking a running service, over a few connections at once; a `Retriever`."""

    def __init__(
        self, client: ServiceClient, collection: str, options: SearchOptions = DEFAULT_OPTIONS
    ) -> None:
        """Ask what the service knows of the collection.

        Args:
            client: Of the service.
            collection: Its name there.
            options: How to search; `top_k` and `offset` do not count.

        Raises:
            EvaluationError: If the service does not answer or does not have the collection.
        """
        self._client = client
        self._options = options
        self._path = path_of("v1", "collections", collection)
        self._info: dict[str, Any] = client.get(self._path).result()
        if problem := self._info.get("problem"):
            raise EvaluationError(f"{client.url}{self._path}: not served: {problem['detail']}")
        self._chunked = self._info.get("chunking") is not None

    def retrieve(self, queries: Sequence[str], *, top_k: int) -> list[list[str]]:
        """Rank documents for each query; none for a query without tokens.

        Raises:
            EvaluationError: If the service refuses a search.
        """
        return _spread(lambda query: self._rank(query, top_k), queries, _CONNECTIONS)

    def absent(self, ids: Collection[str]) -> set[str]:
        """Tell which ids are not in the collection.

        Raises:
            EvaluationError: If the service refuses to tell.
        """
        return {each for each in ids if not self._has(_stored_id(each, self._chunked))}

    def facts(self) -> dict[str, Any]:
        """Pass on what the service tells of the collection and its encoder."""
        return {
            "kind": f"service {self._client.url}{self._path}{_how(self._options)}",
            "corpus_fingerprint": None,
            **_collection_facts(self._info),
            "encoder": {**self._client.get("/info").result()["encoder"], "size_bytes": None},
        }

    def _rank(self, query: str, top_k: int) -> list[str]:
        body = {
            "query": query,
            "top_k": _depth(top_k, self._chunked),
            "fields": ["parent"] if self._chunked else [],
            "mode": self._options.mode,
            "fusion": self._options.fusion,
            "lexical_weight": self._options.lexical_weight,
            "rerank": self._options.rerank,
        }
        reply = self._client.post(f"{self._path}/search", body)
        if reply.problem == "blank-text":
            return []
        hits = reply.result()["hits"]
        return _documents(((hit["id"], hit["metadata"]) for hit in hits), self._chunked)[:top_k]

    def _has(self, document_id: str) -> bool:
        reply = self._client.get(f"{self._path}/documents{path_of(document_id)}")
        if reply.problem == "document-not-found":
            return False
        reply.result()
        return True


def _documents(hits: Iterable[tuple[str, Mapping[str, Any]]], chunked: bool) -> list[str]:
    """Give the hits' ids; of a collection of chunks their documents', each at its best chunk."""
    if not chunked:
        return [document_id for document_id, _ in hits]
    return list(dict.fromkeys(metadata["parent"] for _, metadata in hits))


def _how(options: SearchOptions) -> str:
    how = "" if options.mode == "dense" else f", {options.mode}"
    if options.mode == "hybrid":
        how += f" by {options.fusion}, lexical weight {options.lexical_weight}"
    return how if options.rerank is None else f"{how}, best {options.rerank} reranked"


def _reranker_facts(reranker: OnnxReranker | None) -> dict[str, Any]:
    if reranker is None:
        return {}
    return {
        "reranker": {
            "name": reranker.name,
            "precision": reranker.precision,
            "fingerprint": reranker.fingerprint,
            "size_bytes": reranker.size_bytes,
        }
    }


def _depth(top_k: int, chunked: bool) -> int:
    """Chunks take many hits for one document, so all that one search gives are asked for."""
    return MAX_TOP_K if chunked else top_k


def _stored_id(document_id: str, chunked: bool) -> str:
    return part_id(document_id, 1) if chunked else document_id


def _collection_facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Sort what `Searcher.info` tells into the report's keys."""
    index = info["index"] or {}
    return {
        "documents": info["count"],
        "chunked": info["chunking"] is not None,
        "index": {
            "name": index.get("factory", "exact, no snapshot yet"),
            "size_bytes": index.get("size_bytes", 0),
        },
        "collection": dict(info),
    }


def _spread(
    rank: Callable[[str], list[str]], queries: Sequence[str], threads: int
) -> list[list[str]]:
    """Rank one query in this thread, many over several."""
    if len(queries) == 1:
        return [rank(queries[0])]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(rank, queries))
