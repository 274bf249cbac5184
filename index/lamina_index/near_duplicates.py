"""Which rows of a listing say nearly the same as one before them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina_index.scoring import TIE_MARGIN, exact_scores

ROUNDING = np.float32(1e-6)
"""How much less than the threshold a cosine may be: that of a vector with itself may not be 1."""

_CHUNK = 256


class NearDuplicates:
    """Rows that were kept so far, for finding those that are near one of them.

    A matrix product finds the pairs that may be near enough, and only those get the exact cosine
    of `exact_scores`, so what is folded does not depend on how many rows are compared at once.
    """

    def __init__(self, threshold: float, dimension: int) -> None:
        """Begin with no row.

        Args:
            threshold: Cosine from which a row is a near-duplicate of another one.
            dimension: D.
        """
        self._least = np.float32(threshold) - ROUNDING
        self._kept = np.empty((_CHUNK, dimension), np.float32)
        self._count = 0
        self._rows = np.empty((0, dimension), np.float32)
        self._first = 0
        self._before = 0
        self._near_kept = np.empty((0, 0), np.bool_)
        self._near_rows = np.empty((0, 0), np.bool_)
        self._own: list[int] = []

    def take(self, rows: NDArray[np.float32]) -> None:
        """Take the next rows (n, D), of which `near` and `keep` then speak by position."""
        self._rows = rows
        self._chunk(0)

    def near(self, position: int) -> int | None:
        """The first kept row, by the number that `keep` gave it, that a row is near; or None.

        Positions must be asked for in ascending order, each before it is kept.
        """
        if position - self._first >= len(self._near_kept):
            self._chunk(position)
        place = position - self._first
        candidates = np.flatnonzero(self._near_kept[place])
        own = np.flatnonzero(self._near_rows[place, self._own]) + self._before
        for number in (*candidates.tolist(), *own.tolist()):
            cosine = exact_scores(self._kept[number : number + 1], self._rows[position])[0]
            if cosine >= self._least:
                return int(number)
        return None

    def keep(self, position: int) -> int:
        """Keep a row and give its number, from 0."""
        if self._count == len(self._kept):
            self._kept = np.concatenate([self._kept, np.empty_like(self._kept)])
        self._kept[self._count] = self._rows[position]
        self._own.append(position - self._first)
        self._count += 1
        return self._count - 1

    def _chunk(self, first: int) -> None:
        """Compare the rows from `first` on with those kept so far and with each other."""
        rows = self._rows[first : first + _CHUNK]
        least = self._least - TIE_MARGIN
        self._first, self._before, self._own = first, self._count, []
        self._near_kept = rows @ self._kept[: self._count].T >= least
        self._near_rows = rows @ rows.T >= least
