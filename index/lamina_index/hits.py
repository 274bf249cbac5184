"""From ranked rows to hits: the page that is asked for, its documents, and why they are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lamina_index.manifest import Metadata, MetadataValue
from lamina_index.scoring import best_first
from lamina_index.search_options import Leg, Mode, SearchOptions
from lamina_index.store_reading import StoredDocument, StoreReading
from lamina_index.word_tokens import highlights

DUPLICATE_IDS = 10
"""Most near-duplicates of a hit that are named."""


@dataclass(frozen=True, slots=True)
class LegScore:
    """What one leg of a search says of a hit.

    Attributes:
        score: Cosine, BM25, both fused, or a reranker's; None where no word of the query is in the
            text, or it was not looked at: because the texts before it were long enough, or because
            it is not among a reranker's candidates.
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
class Entry:
    """A row on a page.

    Attributes:
        key: The row's.
        score: What orders the listing.
        rank: Place in the whole listing, from 1; that of its group, if there are groups.
        in_group: Whether it is one of those that have a value of the field grouped by.
        folded: Keys of the near-duplicates that are left out in its favour, best first.
    """

    key: int
    score: float
    rank: int
    in_group: bool = False
    folded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Near-duplicates of a hit that are not listed, of those that were looked at.

    Attributes:
        count: How many.
        ids: Of the first `DUPLICATE_IDS` of them, best first.
    """

    count: int
    ids: list[str]


@dataclass(frozen=True, slots=True)
class Hit:
    """One document found.

    Attributes:
        id: The document's id.
        score: What orders the hits: in a dense search the cosine of query and document, in
            [-1, 1], from the stored vector; in a lexical one BM25; in a hybrid one both, fused.
            Of a hit that was reranked the reranker's score; the hits behind those keep their own.
        rank: Place in the whole listing, from 1; the first hit of a page with offset 10 has 11.
            Hits of one group share that of the group.
        text: The document's text as stored.
        metadata: Its metadata.
        scores: The score of each leg of the search.
        explanation: Score and rank in each leg, if asked for.
        highlights: Where words of the query stand in the text, if asked for: first character and
            the one after the last, in code points.
        group: The value of the field that was grouped by; None where the document has none.
        duplicates: What was left out in its favour, if near-duplicates were.
    """

    id: str
    score: float
    rank: int
    text: str
    metadata: Metadata
    scores: dict[Leg, float | None]
    explanation: dict[Leg, LegScore] | None = None
    highlights: list[tuple[int, int]] | None = None
    group: MetadataValue | None = None
    duplicates: Duplicates | None = None


def page_of(reading: StoreReading, ranking: Ranking, options: SearchOptions) -> list[Entry]:
    """Cut the page that is asked for; rows with equal scores come in the order of their ids."""
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
    keys = in_order(reading, ranking.scores[first:end], ranking.keys[first:end]).tolist()
    return [
        Entry(keys[place - first], values[place], place + 1) for place in range(offset, last + 1)
    ]


def in_order(
    reading: StoreReading, scores: NDArray[np.floating], keys: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Put keys (n,) whose scores are descending in order of their ids where scores are equal."""
    same = scores[1:] == scores[:-1]
    if not same.any():
        return keys
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    id_of = reading.ids(keys[tied].tolist())
    order = best_first(scores[tied].tolist(), [id_of.get(key, "") for key in keys[tied].tolist()])
    ordered = keys.copy()
    ordered[tied] = keys[tied[order]]
    return ordered


def fetch_hits(
    reading: StoreReading,
    page: Sequence[Entry],
    legs: Mapping[Mode, Mapping[int, LegScore]],
    query: str,
    options: SearchOptions,
) -> list[Hit]:
    """Turn a page into hits, reading its documents."""
    found = {
        document.key: document for document in reading.documents([entry.key for entry in page])
    }
    id_of = reading.ids([key for entry in page for key in entry.folded[:DUPLICATE_IDS]])
    return [
        _hit(found[entry.key], entry, legs, id_of, query, options)
        for entry in page
        if entry.key in found
    ]


def _hit(
    document: StoredDocument,
    entry: Entry,
    legs: Mapping[Mode, Mapping[int, LegScore]],
    id_of: Mapping[int, str],
    query: str,
    options: SearchOptions,
) -> Hit:
    duplicates = None
    if options.collapse is not None:
        ids = [id_of[key] for key in entry.folded[:DUPLICATE_IDS] if key in id_of]
        duplicates = Duplicates(len(entry.folded), ids)
    told: dict[Leg, LegScore] = {leg: found[document.key] for leg, found in legs.items()}
    if not told:
        told = {options.mode: LegScore(entry.score, entry.rank)}
    return Hit(
        document.id,
        entry.score,
        entry.rank,
        document.text,
        document.metadata,
        {name: leg.score for name, leg in told.items()},
        told if options.explain else None,
        highlights(document.text, query) if options.highlight else None,
        document.metadata.get(options.group_by or "") if entry.in_group else None,
        duplicates,
    )
