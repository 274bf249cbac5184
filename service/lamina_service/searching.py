"""From a search request to the bytes of its reply: checked on the event loop, done on a thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson
from fastapi import Response
from numpy.typing import NDArray

from lamina_index.errors import (
    BlankTextError,
    DocumentNotFoundError,
    EncoderOutputError,
    GroupFieldError,
)
from lamina_index.filters import parse_filter
from lamina_index.group_codes import check_group_field
from lamina_index.manifest import FieldType
from lamina_index.query_encoding import EncodedQuery, encode_queries
from lamina_index.search_options import SearchOptions
from lamina_index.search_reply import reply_values, took_milliseconds
from lamina_index.search_stages import SearchResult
from lamina_index.searcher import Searcher
from lamina_service.errors import InvalidRequestError
from lamina_service.search_schemas import SearchRequest, SimilarRequest
from lamina_service.service import Service

JOBS_TOGETHER = 8
"""More queries at once save little more, and the first of them waits for all."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A written reply and its milliseconds by stage."""

    body: bytes
    took: dict[str, float]

    def response(self) -> Response:
        """Make the response, with the stages as a Server-Timing header too."""
        timing = ", ".join(f"{stage};dur={value}" for stage, value in self.took.items())
        return Response(self.body, headers={"Server-Timing": timing}, media_type="application/json")


@dataclass(frozen=True, slots=True)
class SearchJob:
    """A checked search, and when it was queued.

    Attributes:
        collection: Its name or an alias.
        vector: (D,) of any length but zero, where the request has one.
        document_id: Of the stored document that similar ones are wanted of.
        options: What is asked for beside query or vector.
        part: Which part of a batch this is, such as `searches[3].`; empty for a search alone.
    """

    service: Service
    collection: str
    request: SearchRequest | SimilarRequest
    vector: NDArray[np.float64] | None
    options: SearchOptions
    part: str
    queued_at: float
    document_id: str | None = None

    @classmethod
    def checked(
        cls,
        service: Service,
        collection: str,
        request: SearchRequest | SimilarRequest,
        part: str = "",
        *,
        document_id: str | None = None,
    ) -> SearchJob:
        """Check what can be told without searching.

        Raises:
            CollectionNotFoundError: If there is no such collection.
            InvalidRequestError: If text, vector or fields do not fit it.
            FilterError: If the filter does not.
        """
        searcher = service.catalog.get(collection)
        _check_names(f"{part}fields", request.fields, searcher.fields)
        _check_names(f"{part}facets", request.facets, searcher.fields)
        if request.group_by is not None:
            _check_group(f"{part}group_by", request.group_by, searcher.fields)
        vector = None
        if isinstance(request, SearchRequest):
            service.check_text(f"{part}query", request.query)
            service.check_rerank(f"{part}rerank", request.rerank)
            if request.vector is not None:
                vector = _direction(f"{part}vector", request.vector, searcher.dimension)
        options = _options(request, searcher.fields, part)
        queued_at = time.perf_counter()
        return cls(service, collection, request, vector, options, part, queued_at, document_id)

    @property
    def text(self) -> str | None:
        """The query, where there is one."""
        return self.request.query if isinstance(self.request, SearchRequest) else None

    @property
    def needs_encoder(self) -> bool:
        """Whether the query is to be encoded before the search."""
        return self.text is not None and self.options.mode != "lexical"

    @property
    def texts(self) -> int:
        """Texts that this is the work of: the query, and what a reranker may read."""
        return 1 + (self.options.rerank or 0)

    def answer(self, query: EncodedQuery | None) -> Answer:
        """Search by the encoded query, or by what needs none, and write the reply."""
        began = time.perf_counter()
        encoding = query.seconds if query else 0.0
        try:
            collection, result = self.service.catalog.using(
                self.collection,
                lambda searcher: (searcher.folder.name, self._search(query, searcher)),
            )
        except BlankTextError as error:
            raise BlankTextError(f"{self.part}query: {error}") from error
        seconds = {"queue": began - self.queued_at - encoding, **result.took}
        self.service.metrics.searched(seconds)
        took = took_milliseconds(
            seconds, self.options, total_seconds=time.perf_counter() - self.queued_at
        )
        reply = reply_values(
            result,
            self.options,
            collection=collection,
            took=took,
            fields=self.request.fields,
        )
        return Answer(orjson.dumps(reply), took)

    def _search(self, query: EncodedQuery | None, searcher: Searcher) -> SearchResult:
        if query is not None:
            return searcher.search_encoded(query, self.options)
        if self.vector is not None:
            return searcher.search_embedding(self.vector, self.options)
        if isinstance(self.request, SearchRequest):  # by words alone
            return searcher.search(self.request.query or "", self.options)
        own_parts = self.request.own_parts
        try:
            return searcher.similar(self.document_id or "", self.options, own_parts=own_parts)
        except DocumentNotFoundError as error:  # which names the folder
            raise document_not_found(searcher, self.collection, self.document_id or "") from error


async def answers_of(jobs: Sequence[SearchJob]) -> list[Answer]:
    """Queue searches of one request, and wait for their answers.

    Those with a reranker in them go one by one: a search that was taken up together with one would
    wait for all that it reads.

    Raises:
        QueueFullError: If the queue is full.
        Exception: The first that a search raised.
    """
    alone = any(job.options.rerank for job in jobs)
    return await jobs[0].service.searches.map_together(
        answer_alone if alone else answer_together,
        jobs,
        together=1 if alone else JOBS_TOGETHER,
        weights=[job.texts for job in jobs],
    )


def answer_alone(jobs: Sequence[SearchJob]) -> Iterator[Answer | Exception]:
    """As `answer_together`, for searches that the queue is not to join with others."""
    return answer_together(jobs)


def answer_together(jobs: Sequence[SearchJob]) -> Iterator[Answer | Exception]:
    """Encode the queries of some jobs at once, then search for each; answers come as they are."""
    for job, query in zip(jobs, _encoded(jobs), strict=True):
        try:
            yield query if isinstance(query, Exception) else job.answer(query)
        except Exception as error:  # noqa: BLE001 - one job's error is not the others'
            yield error


def _encoded(jobs: Sequence[SearchJob]) -> list[EncodedQuery | Exception | None]:
    """For each job its query, None where it needs none, or why its query has no embedding."""
    found: list[EncodedQuery | Exception | None] = [None] * len(jobs)
    waiting = [n for n, job in enumerate(jobs) if job.needs_encoder]
    texts = [jobs[n].text or "" for n in waiting]
    try:
        queries = encode_queries(jobs[0].service.encoder, texts) if texts else []
    except Exception as error:  # noqa: BLE001 - given to the job whose it is
        if len(jobs) > 1:
            return [_encoded([job])[0] for job in jobs]
        if isinstance(error, EncoderOutputError):
            error = EncoderOutputError(f"{jobs[0].part}query: {error}", error.items)
        return [error]
    for n, query in zip(waiting, queries, strict=True):
        found[n] = query
    return found


def document_not_found(
    searcher: Searcher, collection: str, document_id: str
) -> DocumentNotFoundError:
    """The error for an id that nothing in a collection has; where texts are split, what has one."""
    found = f"collection {collection!r} has no document {document_id!r}"
    if searcher.manifest.chunking is not None:
        found += (
            "; texts are split here: parts are read by their ids, such as 'faq-17#1', and "
            "documents are written and deleted by their own, such as 'faq-17'"
        )
    return DocumentNotFoundError(found)


def _options(
    request: SearchRequest | SimilarRequest, fields: Mapping[str, FieldType], part: str
) -> SearchOptions:
    """Take from a request what is asked for beside query or vector."""
    wanted = request.filter
    options = SearchOptions(
        top_k=request.top_k,
        offset=request.offset,
        min_score=request.min_score,
        filter=None if wanted is None else parse_filter(wanted, fields, path=f"{part}filter"),
        facets=tuple(request.facets or ()),
        group_by=request.group_by,
        group_size=request.group_size,
        collapse=request.collapse,
        explain=request.explain,
    )
    if isinstance(request, SimilarRequest):
        return options
    return replace(
        options,
        mode=request.mode,
        fusion=request.fusion,
        lexical_weight=request.lexical_weight,
        highlight=request.highlight,
        rerank=request.rerank,
    )


def _check_names(field: str, names: Sequence[str] | None, fields: Mapping[str, FieldType]) -> None:
    """Refuse names of metadata that the collection does not have.

    Raises:
        InvalidRequestError: Naming the first of them.
    """
    if unknown := set(names or ()).difference(fields):
        known = ", ".join(sorted(fields)) or "none"
        raise InvalidRequestError(field, f"no such metadata: {min(unknown)!r}; there is: {known}")


def _check_group(field: str, name: str, fields: Mapping[str, FieldType]) -> None:
    """Refuse a field that cannot be grouped by.

    Raises:
        InvalidRequestError: Saying why.
    """
    try:
        check_group_field(name, fields)
    except GroupFieldError as error:
        raise InvalidRequestError(field, str(error)) from error


def _direction(field: str, values: list[float], dimension: int) -> NDArray[np.float64]:
    """Take a vector to a size whose squares neither vanish nor overflow; (D,).

    Raises:
        InvalidRequestError: If it has another dimension or is zero.
    """
    if len(values) != dimension:
        raise InvalidRequestError(field, f"{len(values)} numbers, expected {dimension}")
    vector = np.array(values)
    largest = np.abs(vector).max()
    if largest == 0:
        raise InvalidRequestError(field, "all zero, so it has no direction")
    scaled: NDArray[np.float64] = vector / largest
    return scaled
