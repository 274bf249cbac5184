"""From a query to ranked hits: the one path that search, service and evaluation share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lamina_index.collection import open_collection
from lamina_index.errors import BlankTextError, DocumentNotFoundError, IndexDamagedError
from lamina_index.filters import Filter
from lamina_index.listing import Page, Place, page_after
from lamina_index.manifest import PARENT_FIELD, CollectionManifest, FieldType
from lamina_index.matching import Matching
from lamina_index.query_encoding import (
    EncodedQuery,
    accepted_cosine,
    check_encoder,
    encode_queries,
)
from lamina_index.reranking import first_stage, reranked
from lamina_index.runtime import available_threads
from lamina_index.scoring import unit_rows
from lamina_index.search_options import DEFAULT_OPTIONS, SearchOptions
from lamina_index.search_stages import Question, SearchResult, answer
from lamina_index.snapshot_files import Snapshot, check_all, snapshot_numbers
from lamina_index.store import DocumentStore, StoredDocument
from lamina_index.store_reading import StoreReading
from lamina_index.text import normalize_text
from lamina_index.view import View, older_store
from lamina_index.words import WordSearch

if TYPE_CHECKING:
    from lamina_index.encoder import Encoder
    from lamina_index.reranker import Reranker


class Searcher:
    """A collection opened for searching; safe to use from many threads.

    Rows that another process commits are found by the next search. Each search sees one committed
    generation of the collection, whole.
    """

    def __init__(
        self,
        folder: Path,
        manifest: CollectionManifest,
        store: DocumentStore,
        encoder: Encoder | None,
        reranker: Reranker | None = None,
    ) -> None:
        """Use `Searcher.open`, which checks that all fit together."""
        self.folder = folder
        self.manifest = manifest
        self.encoder = encoder
        self.reranker = reranker
        self._store = store
        self._refreshing = threading.Lock()
        self._verified: int | None = None
        self._view: View | None = None
        self._words = WordSearch()
        with self._viewing():
            pass  # open the snapshot now rather than at the first search

    @classmethod
    def open(
        cls,
        folder: Path | str,
        encoder: Encoder | None = None,
        reranker: Reranker | None = None,
    ) -> Self:
        """Open a collection, with the encoder that it was built with.

        Args:
            folder: The collection folder; one that cannot be written is fine.
            encoder: Encodes the queries. Without one only search by vector is possible.
            reranker: For searches that ask to be reranked.

        Raises:
            CollectionNotFoundError: If no collection lies there.
            EncoderMismatchError: If another encoder built it, even one of the same dimension, and
                not another precision that the encoder accepts.
            DamagedError: If a file is missing, cut or altered; `IndexDamagedError` where that is
                the index alone.
            FormatError: If it is of a format that this version does not read.
        """
        folder = Path(folder)
        manifest, store = open_collection(folder, mapped=True)
        try:
            if encoder is not None:
                check_encoder(folder, manifest, encoder, searching=True)
            return cls(folder, manifest, store, encoder, reranker)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Let go of the files; searches that are running end first or fail."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def search(self, query: str, options: SearchOptions = DEFAULT_OPTIONS) -> SearchResult:
        """Find the documents nearest in meaning to a text, or with its words, or both.

        Args:
            query: Any text that is not blank.
            options: Which of the documents found are wanted.

        Raises:
            BlankTextError: If the query has no token left after normalisation.
            EncoderOutputError: If the encoder gave no finite vector.
            FilterError: If a field that the filter names has changed its type.
            GroupFieldError: If the documents cannot be grouped by the field.
            NoWordIndexError: If words are to be searched and the collection has no word index.
            ValueError: If there is no encoder, which a lexical search does not need, or no
                reranker where one is asked for.
        """
        if options.mode == "lexical":
            return self._search_words(query, options)
        return self.search_encoded(self._encode([query])[0], options)

    def search_many(
        self, queries: Sequence[str], options: SearchOptions = DEFAULT_OPTIONS
    ) -> list[SearchResult]:
        """Search for each query as `search` would, over all CPUs, for less than one by one.

        Raises:
            BlankTextError: If any query is blank, and so on as `search`.
        """

        def search(query: EncodedQuery) -> SearchResult:
            return self.search_encoded(query, options)

        with ThreadPoolExecutor(available_threads(), "lamina-search") as pool:
            if options.mode == "lexical":
                return list(pool.map(lambda query: self._search_words(query, options), queries))
            return list(pool.map(search, self._encode(queries)))

    def search_encoded(
        self, query: EncodedQuery, options: SearchOptions = DEFAULT_OPTIONS
    ) -> SearchResult:
        """Search with a query that this collection's encoder has encoded.

        Raises:
            BlankTextError, FilterError, GroupFieldError, NoWordIndexError: As `search`.
        """
        if options.mode == "lexical":
            return self._search_words(query.text, options)
        if query.blank:
            raise BlankTextError("the query is blank: no token is left of it after normalisation")
        found = self._search(options, query.text, query.embedding)
        return replace(
            found,
            took={"encode": query.seconds, **found.took},
            truncated=query.truncated,
            token_count=query.token_count,
        )

    def search_embedding(
        self, embedding: ArrayLike, options: SearchOptions = DEFAULT_OPTIONS
    ) -> SearchResult:
        """Find the documents nearest to a vector of any length but zero.

        Args:
            embedding: (D,) finite; only its direction counts.
            options: As for `search`.

        Raises:
            ValueError: If the vector is of another dimension, zero or not finite, or something is
                asked for that needs the words of a query.
        """
        _check_wordless(options)
        vector = np.asarray(embedding, dtype=np.float64)
        if vector.ndim != 1:
            raise ValueError(f"the vector has shape {vector.shape}, expected one dimension")
        length = float(np.linalg.norm(vector))
        if not 0 < length < np.inf:
            raise ValueError("the vector is zero or not finite, so it has no direction")
        unit = unit_rows(vector[np.newaxis] / length, dimension=self.manifest.dimension)
        return self._search(options, "", unit[0])

    def similar(
        self,
        document_id: str,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        own_parts: bool = False,
    ) -> SearchResult:
        """Find the documents nearest to a stored one, which is itself left out; no encoder runs.

        Args:
            document_id: Its id.
            options: As for `search`; totals and facets do not count what is left out either.
            own_parts: Whether parts of the same document may be found, where texts are split.

        Raises:
            DocumentNotFoundError: If no document has the id.
            FilterError, GroupFieldError: As `search`.
            ValueError: If something is asked for that needs the words of a query.
        """
        _check_wordless(options)
        with self._viewing() as (reading, view):
            document = reading.get(document_id)
            if document is None:
                raise DocumentNotFoundError(f"{self.folder} has no document {document_id!r}")
            _, rows = reading.vectors([document.key])
            split = self.manifest.chunking is not None and PARENT_FIELD in self.fields
            question = Question(
                "", rows[0], options, document.key, besides_parts=split and not own_parts
            )
            return answer(question, reading, view, self._words, self.fields)

    @property
    def dimension(self) -> int:
        """D of the embeddings."""
        return self.manifest.dimension

    @property
    def fields(self) -> dict[str, FieldType]:
        """Names and types of the documents' metadata."""
        return self.manifest.fields

    def get(self, document_id: str) -> StoredDocument | None:
        """Find a document by its id."""
        return self._store.get(document_id)

    def get_embedded(self, document_id: str) -> tuple[StoredDocument, NDArray[np.float32]] | None:
        """Find a document by its id, with its unit vector (D,)."""
        with self._store.reading() as reading:
            found = reading.get(document_id)
            return None if found is None else (found, reading.vectors([found.key])[1][0])

    def page(self, place: Place | None, *, limit: int, filter: Filter | None = None) -> Page:
        """Give documents in the order in which they were stored, from a place on.

        Args:
            place: From the page before; None begins with the oldest document.
            limit: Most documents to give.
            filter: Gives only the documents that pass.

        Raises:
            CursorError: If the place is one in another collection.
            FilterError: If a field that the filter names has changed its type.
        """
        if filter is None:
            with self._store.reading() as reading:
                return page_after(reading, place, limit=limit)
        with self._viewing() as (reading, view):
            columns = view.columns.get(reading, self.fields)
            matching = Matching.of(filter, columns, view.dead, view.delta_keys)
            return page_after(reading, place, limit=limit, among=view.keys_of(matching))

    @property
    def count(self) -> int:
        """Number of documents, as of the last committed write."""
        with self._viewing() as (_, view):
            return view.count

    @property
    def verified(self) -> bool:
        """Whether every byte of the snapshot in use has been compared with its digests."""
        snapshot = self._snapshot
        return snapshot is None or self._verified == snapshot.number

    def verify(self) -> None:
        """Compare every byte of the snapshot in use with its digests.

        Reads all of it, so a service runs it in a thread after opening.

        Raises:
            IndexDamagedError: If a file is not as it was written.
        """
        snapshot = self._snapshot
        if snapshot is None:
            return
        found = check_all(snapshot.folder)
        if snapshot_numbers(self.folder)[:1] != [snapshot.number]:
            return  # a newer one is there, and a missing file of this one is no damage
        if found:
            raise IndexDamagedError(found[0])
        self._verified = snapshot.number

    def doubt(self) -> None:
        """Let the snapshot in use count as not verified: damage was met in its files."""
        self._verified = None

    def info(self) -> dict[str, Any]:
        """Describe the collection and the index in use, as JSON values."""
        with self._viewing() as (reading, view):
            snapshot = view.snapshot
            has_words = reading.has_words
        return {
            "count": view.count,
            "dimension": self.manifest.dimension,
            "metric": self.manifest.metric,
            "encoder": self.manifest.encoder.model_dump(),
            "accepted_cosine": self._accepted_cosine(),
            "fields": dict(self.manifest.fields),
            "chunking": self.manifest.chunking.model_dump() if self.manifest.chunking else None,
            "created": self.manifest.created,
            "generation": view.generation,
            "delta_count": len(view.delta_keys),
            "deleted_count": len(view.dead),
            "tombstone_count": view.tombstone_count,
            "word_index": has_words,
            "store_bytes": self._store.path.stat().st_size,
            "verified": self.verified,
            "damage": [str(error) for error in view.damage],
            "index": snapshot.summary() if snapshot else None,
        }

    def _accepted_cosine(self) -> float | None:
        """How near queries by another precision are at least; None where the same one made all."""
        made_by = self.manifest.encoder.fingerprint
        return accepted_cosine(self.encoder, made_by) if self.encoder is not None else None

    def _encode(self, queries: Sequence[str]) -> list[EncodedQuery]:
        if self.encoder is None:
            raise ValueError(f"{self.folder} was opened without an encoder; search by vector")
        return encode_queries(self.encoder, queries)

    def _search_words(self, text: str, options: SearchOptions) -> SearchResult:
        """Search by words alone, without the encoder."""
        if not normalize_text(text):
            raise BlankTextError("the query is blank: no character is left of it but white space")
        return self._search(options, text)

    def _search(
        self, options: SearchOptions, text: str, embedding: NDArray[np.float32] | None = None
    ) -> SearchResult:
        """Search inside one read transaction; the unit vector may lack for a lexical search.

        The transaction ends before a reranker runs, which can take as long as many searches.
        """
        if options.rerank and self.reranker is None:
            raise ValueError(f"{self.folder} was opened without a reranker; leave rerank out")
        question = Question(text, embedding, first_stage(options))
        with self._viewing() as (reading, view):
            found = answer(question, reading, view, self._words, self.fields)
        if not options.rerank or self.reranker is None:
            return found
        return reranked(found, text, options, self.reranker)

    @property
    def _snapshot(self) -> Snapshot | None:
        return self._view.snapshot if self._view else None

    @contextmanager
    def _viewing(self) -> Iterator[tuple[StoreReading, View]]:
        """A read transaction and the view that belongs to it.

        Raises:
            DamagedError: If the store is an older copy than the snapshot. What a snapshot or a
                view was made from was committed before, so a transaction that began after it was
                seen can be behind another one only.
        """
        behind: tuple[int, list[int]] | None = None
        while True:
            with self._store.reading() as reading:
                view = self._current(reading)
                if view is not None:
                    yield reading, view
                    return
                found = (reading.generation(), snapshot_numbers(self.folder)[:1])
            if found == behind:
                if self._view is None:
                    raise older_store(self.folder, found[1][0])
                self._view = None  # an older copy was put in place: begin anew with it
            behind = found

    def _current(self, reading: StoreReading) -> View | None:
        """The view of a transaction; None if it began before what is at hand by now."""
        generation = reading.generation()
        view = self._view
        if view is not None and view.generation == generation:
            return view
        with self._refreshing:
            view = self._view
            if view is None:
                view = self._view = View.open(self.folder, self.manifest.dimension, reading)
                return view
            if view.generation == generation:
                return view
            newer = view.at(self.folder, reading) if view.generation < generation else None
            if newer is not None:
                self._view = newer
            return newer


def _check_wordless(options: SearchOptions) -> None:
    if options.mode != "dense" or options.highlight or options.rerank:
        raise ValueError("a vector has no words; search, highlight and rerank by a text")
