"""The rows of a view in order: by meaning, by words, or by both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina_index.fusion import competition_ranks, reciprocal_rank_fusion, score_fusion
from lamina_index.hits import LegScore, Ranking
from lamina_index.matching import Matching
from lamina_index.scoring import exact_scores
from lamina_index.search_options import Fusion, Mode, SearchOptions
from lamina_index.store_reading import StoreReading
from lamina_index.view import View
from lamina_index.words import WordSearch

LEG_DEPTH = 100
"""Best rows of each leg that a hybrid search joins, whatever the page, so that pages fit together.
After them the listing goes on by meaning alone."""


def lexical_ranking(
    reading: StoreReading,
    view: View,
    words: WordSearch,
    text: str,
    options: SearchOptions,
    matching: Matching | None = None,
) -> Ranking:
    """Rank the rows that have words of a text, or those of them that pass a filter.

    Raises:
        NoWordIndexError: If the store has no word index.
    """
    wanted = min(options.offset + options.top_k, view.count + 1)  # SQLite takes 64 bits
    allowed = view.keys_of(matching) if matching else None
    found = words.best(reading, words.query(reading, text), wanted, allowed=allowed)
    return Ranking(found.scores, found.keys)


@dataclass(frozen=True, slots=True)
class Fused:
    """The best rows of both legs of a hybrid search, and what it takes to go on by meaning.

    Attributes:
        ranking: All rows of either leg.
        joined: (j,) keys of the rows that are among the best of a leg.
        cosines: (h,) of the best by meaning, descending; all of them are joined.
        fusion: How the legs are joined.
        lexical_weight: The share of words.
    """

    ranking: Ranking
    joined: NDArray[np.int64]
    cosines: NDArray[np.float32]
    fusion: Fusion
    lexical_weight: float

    def by_meaning(
        self, cosines: NDArray[np.floating], ranks: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Fused scores (n,) of rows that are not joined, of which only the meaning counts."""
        none = np.full(len(cosines) + 1, np.nan)
        if self.fusion == "ranks":
            return reciprocal_rank_fusion(ranks, none[1:], lexical_weight=self.lexical_weight)
        with_best = np.append(cosines, self.cosines[:1])  # scores are relative to the best
        return score_fusion(with_best, none, lexical_weight=self.lexical_weight)[: len(cosines)]


def hybrid_ranking(
    reading: StoreReading,
    view: View,
    words: WordSearch,
    text: str,
    embedding: NDArray[np.float32],
    options: SearchOptions,
    matching: Matching | None = None,
) -> Ranking:
    """Rank all rows, or those that pass a filter, by meaning and by words.

    The best `LEG_DEPTH` rows of each leg get a fused score. A row that only one leg found has the
    other leg's score too, but no rank there. The rows after them have what their rank or score by
    meaning gives. So a row's score does not depend on the page that is asked for.

    Raises:
        NoWordIndexError: If the store has no word index.
    """
    wanted = options.offset + options.top_k
    return fuse(reading, view, words, text, embedding, options, matching, wanted).ranking


def fuse(
    reading: StoreReading,
    view: View,
    words: WordSearch,
    text: str,
    embedding: NDArray[np.float32],
    options: SearchOptions,
    matching: Matching | None,
    wanted: int = LEG_DEPTH,
) -> Fused:
    """Fuse both legs; the first `wanted` rows of the ranking are then the best of all.

    Raises:
        NoWordIndexError: If the store has no word index.
    """
    query = words.query(reading, text)
    allowed = view.keys_of(matching) if matching else None
    # the listing goes on by meaning, so it needs no more words where the rarest found some
    lexical = words.best(reading, query, LEG_DEPTH, least=1, allowed=allowed)
    # deeper down a row that words have found may rank lower than by meaning, so more are needed
    wanted = LEG_DEPTH if wanted <= LEG_DEPTH else wanted + len(lexical.keys)
    near, near_keys = view.nearest(reading, embedding, wanted, matching)
    best = np.lexsort((near_keys, -near))
    near, near_keys = near[best], near_keys[best]
    head = len(near)
    if head > LEG_DEPTH:
        head = int(np.searchsorted(-near, -near[LEG_DEPTH - 1], side="right"))

    own = ~np.isin(lexical.keys, near_keys[:head])
    keys = np.concatenate([near_keys[:head], lexical.keys[own], near_keys[head:]])
    keys = keys[np.sort(np.unique(keys, return_index=True)[1])]
    joined = head + int(own.sum())

    dense = _dense_scores(reading, embedding, keys, _table(near_keys, near))
    dense_ranks = _looked_up(keys, _table(near_keys, competition_ranks(near)))
    dense_ranks[head:joined] = np.nan
    known = _table(lexical.keys, lexical.scores)
    others = [key for key in keys[:head].tolist() if key not in known]
    bm25 = _looked_up(keys, words.scores(reading, query, others) | known)
    lexical_ranks = _looked_up(keys, _table(lexical.keys, competition_ranks(lexical.scores)))

    weight = options.lexical_weight
    if options.fusion == "ranks":
        fused = reciprocal_rank_fusion(dense_ranks, lexical_ranks, lexical_weight=weight)
    else:
        fused = score_fusion(dense, bm25, lexical_weight=weight)
    order = np.lexsort((keys, -fused))
    legs: dict[Mode, dict[int, LegScore]] = {
        "dense": told(keys, dense, dense_ranks),
        "lexical": told(keys, bm25, lexical_ranks),
    }
    return Fused(
        Ranking(fused[order], keys[order], legs),
        keys[:joined],
        near[:head],
        options.fusion,
        weight,
    )


def _dense_scores(
    reading: StoreReading,
    embedding: NDArray[np.float32],
    keys: NDArray[np.int64],
    known: Mapping[int, float],
) -> NDArray[np.float64]:
    """Cosine of every key, (n,)."""
    others = [key for key in keys.tolist() if key not in known]
    if others:
        found, rows = reading.vectors(others)
        known = {**known, **_table(found, exact_scores(rows, embedding))}
    return _looked_up(keys, known)


def _table(keys: NDArray[np.int64], values: NDArray[np.floating]) -> dict[int, float]:
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


def _looked_up(keys: NDArray[np.int64], values: Mapping[int, float]) -> NDArray[np.float64]:
    """The value of each key, NaN where there is none, (n,)."""
    return np.array([values.get(key, np.nan) for key in keys.tolist()], np.float64)


def told(
    keys: NDArray[np.int64], scores: NDArray[np.floating], ranks: NDArray[np.float64]
) -> dict[int, LegScore]:
    """What a leg says of each key: its score and its rank, NaN where there is none."""
    return {
        key: LegScore(None if np.isnan(score) else score, None if np.isnan(rank) else int(rank))
        for key, score, rank in zip(keys.tolist(), scores.tolist(), ranks.tolist(), strict=True)
    }
