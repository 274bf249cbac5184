"""From ranked rows to hits: the page that is asked for, its documents, and why they are there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina_index.manifest import Metadata
from lamina_index.scoring import best_first
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.store_reading import StoredDocument, StoreReading
from lamina_index.word_tokens import highlights


@dataclass(frozen=True, slots=True)
class LegScore:
    """What one leg of a search says of a hit.

    Attributes:
        score: Cosine or BM25; None where no word of the query is in the text, or it was not looked
            at because the texts before it were long enough.
        rank: From 1, equal scores sharing one; None where the row is not among the leg's best.
    """

    score: float | None
    rank: int | None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Rows of a view, best first.

    Attributes:
        scores: (n,) what orders them, descending.
        keys: (n,) of the rows; those that tie with the last one wanted are all there.
        legs: What each leg says of each key; empty where there is one leg only.
    """

    scores: NDArray[np.floating]
    keys: NDArray[np.int64]
    legs: dict[Mode, dict[int, LegScore]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found.

    Attributes:
        id: The document's id.
        score: What orders the hits: in a dense search the cosine of query and document, in
            [-1, 1], from the stored vector; in a lexical one BM25; in a hybrid one both, fused.
        rank: Place in the whole listing, from 1; the first hit of a page with offset 10 has 11.
        text: The document's text as stored.
        metadata: Its metadata.
        scores: The score of each leg of the search.
        explanation: Score and rank in each leg, if asked for.
        highlights: Where words of the query stand in the text, if asked for: first character and
            the one after the last, in code points.
    """

    id: str
    score: float
    rank: int
    text: str
    metadata: Metadata
    scores: dict[Mode, float | None]
    explanation: dict[Mode, LegScore] | None = None
    highlights: list[tuple[int, int]] | None = None


def fetch_hits(
    reading: StoreReading, ranking: Ranking, query: str, options: SearchOptions
) -> list[Hit]:
    """Turn ranked keys into hits, reading only the page's documents.

    Where rows tie with the page's ends, their ids tell which of them are on it.
    """
    values = ranking.scores.tolist()
    offset = options.offset
    if options.min_score is not None:
        values = [value for value in values if value >= options.min_score]
    if offset >= len(values):
        return []
    last = min(offset + options.top_k, len(values)) - 1
    first = values.index(values[offset])
    end = last + 1
    while end < len(values) and values[end] == values[last]:
        end += 1
    score_of = dict(zip(ranking.keys[first:end].tolist(), values[first:end], strict=True))
    if len(score_of) > last + 1 - offset:
        id_of = reading.ids(list(score_of))
        tied = list(id_of)
        order = best_first([score_of[key] for key in tied], [id_of[key] for key in tied])
        page = order[offset - first : last + 1 - first]
        score_of = {tied[i]: score_of[tied[i]] for i in page}
    documents = reading.documents(list(score_of))
    scores_found = [score_of[document.key] for document in documents]
    order = best_first(scores_found, [document.id for document in documents])
    return [
        _hit(documents[i], scores_found[i], rank, ranking, query, options)
        for rank, i in enumerate(order, start=offset + 1)
    ]


def _hit(
    document: StoredDocument,
    score: float,
    rank: int,
    ranking: Ranking,
    query: str,
    options: SearchOptions,
) -> Hit:
    legs = {leg: found[document.key] for leg, found in ranking.legs.items()}
    if not legs:
        legs = {options.mode: LegScore(score, rank)}
    return Hit(
        document.id,
        score,
        rank,
        document.text,
        document.metadata,
        {name: leg.score for name, leg in legs.items()},
        legs if options.explain else None,
        highlights(document.text, query) if options.highlight else None,
    )
