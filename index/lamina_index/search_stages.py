"""The stages of a search inside one transaction: rank, cut the page, fetch its documents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina_index.hits import Hit, Ranking, fetch_hits, page_of
from lamina_index.manifest import FieldType
from lamina_index.matching import Facet, Matching
from lamina_index.ranking import hybrid_ranking, lexical_ranking
from lamina_index.search_options import SearchOptions
from lamina_index.store_reading import StoreReading
from lamina_index.view import View
from lamina_index.words import WordSearch


@dataclass(frozen=True, slots=True)
class Question:
    """What is searched for.

    Attributes:
        text: The query, empty for a search by vector.
        embedding: (D,) its unit vector; None for a search by words alone.
        options: What is wanted of what is found.
    """

    text: str
    embedding: NDArray[np.float32] | None
    options: SearchOptions


@dataclass(frozen=True, slots=True)
class Reranking:
    """What a reranker read.

    Attributes:
        candidates: Documents that it scored.
        truncated: How many of them it read in part, since with the query they were too long.
    """

    candidates: int
    truncated: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Hits, best first, and what it took to find them.

    Attributes:
        hits: Ordered by score, descending, then by id, ascending; those that were reranked first.
        took: Seconds of each stage: "encode" (with tokenising), "search", "fetch", "rerank".
        total: Documents that pass the filter, all where there is none.
        facets: For each field that was asked for, its values over those documents.
        truncated: Whether the query was cut at the encoder's limit.
        token_count: Tokens of the query that the encoder read; 0 for a search by vector.
        reranking: What a reranker read, if it was asked for and has a part in the page.
    """

    hits: list[Hit]
    took: dict[str, float]
    total: int
    facets: dict[str, Facet] = field(default_factory=dict)
    truncated: bool = False
    token_count: int = 0
    reranking: Reranking | None = None


def answer(
    question: Question,
    reading: StoreReading,
    view: View,
    words: WordSearch,
    fields: Mapping[str, FieldType],
) -> SearchResult:
    """Search one generation of a collection.

    Args:
        question: What is searched for.
        reading: A transaction.
        view: That belongs to it.
        words: The collection's.
        fields: Types of the collection's metadata.

    Raises:
        FilterError: If a field that the filter names has changed its type.
        NoWordIndexError: If words are to be searched and the collection has no word index.
    """
    started = time.perf_counter()
    options = question.options
    matching = None
    facets: dict[str, Facet] = {}
    if options.filter is not None or options.facets:
        columns = view.columns.get(reading, fields)
        matching = Matching.of(options.filter, columns, view.dead, view.delta_keys)
        facets = {name: matching.facet(name, columns, view.delta_keys) for name in options.facets}
    among = matching if options.filter is not None else None
    ranking = _ranking(question, reading, view, words, among)
    page = page_of(reading, ranking, options)
    searched = time.perf_counter()
    hits = fetch_hits(reading, page, ranking.legs, question.text, options)
    return SearchResult(
        hits,
        {"search": searched - started, "fetch": time.perf_counter() - searched},
        matching.count if matching else view.count,
        facets,
    )


def _ranking(
    question: Question,
    reading: StoreReading,
    view: View,
    words: WordSearch,
    matching: Matching | None,
) -> Ranking:
    """Rank the rows that pass the filter, as many as the page needs."""
    text, embedding, options = question.text, question.embedding, question.options
    if embedding is None:
        return lexical_ranking(reading, view, words, text, options, matching)
    if options.mode == "hybrid":
        return hybrid_ranking(reading, view, words, text, embedding, options, matching)
    wanted = options.offset + options.top_k
    return Ranking(*view.nearest(reading, embedding, wanted, matching))
