"""Exact search by comparing everything: the reference that approximate indexes are held to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina_index.scoring import TIE_MARGIN, exact_scores


class NearestSoFar:
    """The best rows for many queries while rows stream by in blocks.

    A matrix product finds the rows that can matter, and only those get the exact score of
    `exact_scores`. Rows that tie with the last one wanted are all kept.
    """

    def __init__(self, queries: NDArray[np.float32], wanted: int) -> None:
        self._queries = queries
        self._wanted = wanted
        empty = (np.empty(0, np.float32), np.empty(0, np.int64))
        self._best = [empty] * len(queries)
        self._floor = np.full(len(queries), -np.inf, np.float32)

    def add(self, labels: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Take a block of rows (n, D) with their labels (n,)."""
        if len(self._queries) == 1:  # a search's, beside others: no threads that wait
            rough = exact_scores(rows, self._queries[0])[np.newaxis]
        else:
            rough = self._queries @ rows.T  # (Q, n)
        floor = self._floor
        if len(rows) >= self._wanted:
            kth = np.partition(rough, len(rows) - self._wanted, axis=1)
            floor = np.maximum(floor, kth[:, len(rows) - self._wanted])
        for query in np.flatnonzero((rough >= floor[:, np.newaxis] - TIE_MARGIN).any(axis=1)):
            near = np.flatnonzero(rough[query] >= floor[query] - TIE_MARGIN)
            scores = exact_scores(rows[near], self._queries[query])
            self._merge(int(query), scores, labels[near])

    def result(self, query: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Scores and labels of the best rows, best first; more than wanted only if they tie."""
        scores, labels = self._best[query]
        order = np.argsort(-scores, kind="stable")
        return scores[order], labels[order]

    def _merge(self, query: int, scores: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        kept_scores, kept_labels = self._best[query]
        scores = np.concatenate([kept_scores, scores])
        labels = np.concatenate([kept_labels, labels])
        if len(scores) > self._wanted:
            floor = np.partition(scores, len(scores) - self._wanted)[-self._wanted]
            keep = scores >= floor
            scores, labels = scores[keep], labels[keep]
            self._floor[query] = floor
        self._best[query] = scores, labels
