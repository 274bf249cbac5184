"""The last stage of a search, if it is asked for: the best candidates in a reranker's order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lamina_index.fusion import competition_ranks
from lamina_index.hits import Hit, LegScore
from lamina_index.scoring import best_first
from lamina_index.search_options import Leg, Mode, SearchOptions
from lamina_index.search_stages import Reranking, SearchResult

if TYPE_CHECKING:
    from lamina_index.reranker import Reranker


def first_stage(options: SearchOptions) -> SearchOptions:
    """Ask for all candidates of a reranker, and for what follows them on the page.

    A page that begins behind the candidates is the first stage's own.
    """
    depth = options.rerank or 0
    if options.offset >= depth:
        return options
    return replace(options, offset=0, top_k=max(depth, options.offset + options.top_k))


def reranked(
    found: SearchResult, query: str, options: SearchOptions, reranker: Reranker
) -> SearchResult:
    """Put the candidates in the order of their scores, equal ones by id, and cut the page.

    What the first stage ranks behind the candidates stays there, in its order. So pages fit
    together: each is cut from the same listing.

    Args:
        found: By the options of `first_stage`.
        query: What the candidates are read together with.
        options: What was asked for.
        reranker: Scores them.

    Raises:
        EncoderOutputError: If a score is not finite.
    """
    started = time.perf_counter()
    depth, offset = options.rerank or 0, options.offset
    cut = depth if offset < depth else 0
    candidates, others = found.hits[:cut], found.hits[cut:]
    texts = list(dict.fromkeys(hit.text for hit in candidates))  # equal texts, equal scores
    scored = reranker.score(query, texts)
    score_of = dict(zip(texts, scored.scores.tolist(), strict=True))
    shortened = {texts[place] for place in np.flatnonzero(scored.truncated).tolist()}
    listing = [
        *_in_order(candidates, [score_of[hit.text] for hit in candidates], options.mode),
        *(_with_leg(hit, options.mode, LegScore(None, None)) for hit in others),
    ]
    return replace(
        found,
        hits=listing[offset : offset + options.top_k] if cut else listing,
        took={**found.took, "rerank": time.perf_counter() - started},
        reranking=Reranking(len(candidates), sum(hit.text in shortened for hit in candidates)),
    )


def _in_order(hits: Sequence[Hit], scores: Sequence[float], mode: Mode) -> list[Hit]:
    """Order hits by their scores, which they get with their new places."""
    ranks = competition_ranks(np.array(scores)).tolist()
    order = best_first(scores, [hit.id for hit in hits])
    return [
        replace(
            _with_leg(hits[n], mode, LegScore(scores[n], int(ranks[n]))), score=scores[n], rank=rank
        )
        for rank, n in enumerate(order, start=1)
    ]


def _with_leg(hit: Hit, mode: Mode, leg: LegScore) -> Hit:
    """Add the reranker's leg to a hit, and of a hybrid search what was fused."""
    added: dict[Leg, LegScore] = {"rerank": leg}
    if mode == "hybrid":
        added = {"hybrid": LegScore(hit.score, hit.rank), **added}
    return replace(
        hit,
        scores={**hit.scores, **{name: each.score for name, each in added.items()}},
        explanation=None if hit.explanation is None else {**hit.explanation, **added},
    )
