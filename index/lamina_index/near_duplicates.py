"""Which rows of a listing say nearly the same as one before them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lamina_index.scoring import exact_scores

_ROUNDING = np.float32(1e-6)
"""How much less than the threshold a cosine may be: that of a vector with itself may not be 1."""


class NearDuplicates:
    """The rows kept so far, for finding those that are near one of them.

    Rows are compared one by one and not by a matrix product, whose threads cost more than the few
    rows of a page and whose result depends on how many there are.
    """

    def __init__(self, threshold: float, dimension: int) -> None:
        """Begin with no row.

        Args:
            threshold: Cosine from which a row is a near-duplicate of another one.
            dimension: D.
        """
        self._least = np.float32(threshold) - _ROUNDING
        self._kept = np.empty((64, dimension), np.float32)
        self._count = 0

    def first_near(self, row: NDArray[np.float32]) -> int | None:
        """Number, from 0, of the first kept row that a row (D,) is near; None if there is none."""
        near = exact_scores(self._kept[: self._count], row) >= self._least
        return int(near.argmax()) if near.any() else None

    def keep(self, row: NDArray[np.float32]) -> None:
        """Keep a row (D,); its number is how many were kept before."""
        if self._count == len(self._kept):
            self._kept = np.concatenate([self._kept, np.empty_like(self._kept)])
        self._kept[self._count] = row
        self._count += 1
