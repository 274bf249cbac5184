"""The stages of a search inside one transaction: rank, cut the page, fetch its documents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina_index.group_codes import ALONE, GroupCodes
from lamina_index.grouping import LOOKS, GroupListing
from lamina_index.hits import Hit, Ranking, fetch_hits, page_of
from lamina_index.looks import DenseLooks, HybridLooks, LexicalLooks, Looks
from lamina_index.manifest import PARENT_FIELD, FieldType
from lamina_index.matching import Facet, Matching
from lamina_index.ranking import LEG_DEPTH, hybrid_ranking, lexical_ranking
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
        besides: Key of a row that is not to be found; None to leave none out.
        besides_parts: Whether the other parts of that row's document are not to be found either.
    """

    text: str
    embedding: NDArray[np.float32] | None
    options: SearchOptions
    besides: int | None = None
    besides_parts: bool = False


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
        total_groups: Groups that those documents make, if there was a field to group by.
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
    total_groups: int | None = None


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
        GroupFieldError: If documents cannot be grouped by the field.
        NoWordIndexError: If words are to be searched and the collection has no word index.
    """
    started = time.perf_counter()
    options = question.options
    matching = _matching(question, reading, view, fields)
    facets: dict[str, Facet] = {}
    if options.facets:
        columns = view.columns.get(reading, fields)
        counted = matching or view.every
        facets = {name: counted.facet(name, columns, view.delta_keys) for name in options.facets}
    total_groups = None
    if options.group_by is not None or options.collapse is not None or _is_deep(question, view):
        codes = _codes(options.group_by, reading, view, fields)
        if options.group_by is not None:
            total_groups = codes.total(matching or view.every)
        looks = _looks(question, reading, view, words, matching)
        page = GroupListing(reading, view, looks, codes, matching, options).page()
        legs = looks.legs
    else:
        ranking = _ranking(question, reading, view, words, matching)
        page, legs = page_of(reading, ranking, options), ranking.legs
    searched = time.perf_counter()
    hits = fetch_hits(reading, page, legs, question.text, options)
    return SearchResult(
        hits,
        {"search": searched - started, "fetch": time.perf_counter() - searched},
        matching.count if matching else view.count,
        facets,
        total_groups=total_groups,
    )


def _is_deep(question: Question, view: View) -> bool:
    """Whether the page reaches past the rows that an index gives alike for every page."""
    options = question.options
    if question.embedding is None or view.is_exact:
        return False
    alike = LEG_DEPTH if options.mode == "hybrid" else LOOKS[0]
    return options.offset + options.top_k > alike


def _matching(
    question: Question, reading: StoreReading, view: View, fields: Mapping[str, FieldType]
) -> Matching | None:
    """The rows to search among, None for all."""
    matching = None
    if question.options.filter is not None:
        columns = view.columns.get(reading, fields)
        matching = Matching.of(question.options.filter, columns, view.dead, view.delta_keys)
    if question.besides is None:
        return matching
    apart = view.rows(np.array([question.besides]))
    if question.besides_parts:
        codes = _codes(PARENT_FIELD, reading, view, fields)
        own = np.append(codes.held[apart.held], codes.delta[apart.delta])
        own = own[own != ALONE]
        apart = Matching.rows(
            apart.held | np.isin(codes.held, own), apart.delta | np.isin(codes.delta, own)
        )
    every = matching or view.every
    return Matching.rows(every.held & ~apart.held, every.delta & ~apart.delta)


def _codes(
    name: str | None, reading: StoreReading, view: View, fields: Mapping[str, FieldType]
) -> GroupCodes:
    if name is None:
        held = view.snapshot.index.count if view.snapshot else 0
        return GroupCodes.alone(held, len(view.delta_keys))
    return GroupCodes.of(name, view.columns.get(reading, fields), view.delta_keys)


def _looks(
    question: Question,
    reading: StoreReading,
    view: View,
    words: WordSearch,
    matching: Matching | None,
) -> Looks:
    text, embedding, options = question.text, question.embedding, question.options
    if embedding is None:
        return LexicalLooks(reading, view, words, text, matching)
    if options.mode == "hybrid":
        return HybridLooks(reading, view, words, text, embedding, options, matching)
    return DenseLooks(reading, view, embedding)


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
