"""Two rankings made one: by their ranks, or by their scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RANK_CONSTANT = 60
"""How little the first ranks stand out; the value of the source, which found it uncritical."""


def competition_ranks(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rank scores from 1, the highest first; equal ones share a rank, and NaN has none (NaN).

    Args:
        scores: (n,) in any order.
    """
    there = np.sort(-scores[~np.isnan(scores)])
    ranks = np.searchsorted(there, -scores, side="left").astype(np.float64) + 1
    ranks[np.isnan(scores)] = np.nan
    return ranks


def reciprocal_rank_fusion(
    dense: NDArray[np.floating], lexical: NDArray[np.floating], *, lexical_weight: float
) -> NDArray[np.float64]:
    """Add the reciprocals of two ranks, each moved by `RANK_CONSTANT`; one that is NaN adds 0.

    Args:
        dense: (n,) ranks from 1.
        lexical: (n,) ranks from 1, of the same rows.
        lexical_weight: Share of the lexical ranks, from 0 to 1; the dense ones have the rest.

    Returns:
        (n,) in [0, 1/61].

    Source: Cormack, Clarke & Buettcher 2009, "Reciprocal Rank Fusion outperforms Condorcet and
    individual Rank Learning Methods" (SIGIR). Departs from it: the two are weighted.
    """
    return (1 - lexical_weight) * np.nan_to_num(1 / (RANK_CONSTANT + dense)) + (
        lexical_weight * np.nan_to_num(1 / (RANK_CONSTANT + lexical))
    )


def score_fusion(
    dense: NDArray[np.floating], lexical: NDArray[np.floating], *, lexical_weight: float
) -> NDArray[np.float64]:
    """Add two scores, each as its share of the highest one of its kind above the least possible.

    Args:
        dense: (n,) cosines, at least -1; all known.
        lexical: (n,) BM25 of the same rows, positive; NaN counts as 0.
        lexical_weight: Share of the lexical scores, from 0 to 1; the dense ones have the rest.

    Returns:
        (n,) in [0, 1].

    Source: Bruch, Gai & Ingber 2023, "An Analysis of Fusion Functions for Hybrid Retrieval"
    (arXiv 2210.11934), convex combination with theoretical minimum-maximum scaling (TM2C2).
    """
    return (1 - lexical_weight) * _share(dense, -1.0) + lexical_weight * _share(lexical, 0.0)


def _share(scores: NDArray[np.floating], least: float) -> NDArray[np.float64]:
    above = np.nan_to_num(scores.astype(np.float64) - least)
    highest = above.max(initial=0.0)
    return above / highest if highest > 0 else above
