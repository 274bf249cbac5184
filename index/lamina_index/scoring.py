"""The one scoring rule: cosine of unit float32 vectors, best first, ties by id ascending.

Search, evaluation and the recall measurement all go through these functions, so equal rows get
bit-equal scores wherever they are met.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_UNIT_TOLERANCE = 2e-3
"""How far a row's length may be from 1: half-precision vectors are off by up to 1e-3."""

TIE_MARGIN = 1e-5
"""How much nearer a rough score (matrix product, FAISS) may seem than the exact one."""


def unit_rows(
    embeddings: ArrayLike, *, dimension: int | None = None, count: int | None = None
) -> NDArray[np.float32]:
    """Give embeddings as a C-contiguous float32 matrix after checking them.

    Args:
        embeddings: (N, D) unit rows of any float type and memory order.
        dimension: The D to insist on.
        count: The N to insist on.

    Raises:
        ValueError: If the shape is wrong, D is 0, or a row is not finite or not of unit length;
            the message names the first such row.
    """
    given = np.asarray(embeddings)
    if given.dtype.kind != "f":
        raise ValueError(f"embeddings have type {given.dtype}, expected floating point")
    if given.ndim != 2 or given.shape[1] == 0:
        raise ValueError(f"embeddings have shape {given.shape}, expected (N, D) with D > 0")
    if dimension is not None and given.shape[1] != dimension:
        raise ValueError(f"embeddings have dimension {given.shape[1]}, expected {dimension}")
    if count is not None and len(given) != count:
        raise ValueError(f"{len(given)} embeddings for {count} documents")
    rows = np.ascontiguousarray(given, dtype=np.float32)
    bad = np.flatnonzero(~are_unit(rows))
    if len(bad):
        row = int(bad[0])
        length = float(np.linalg.norm(rows[row]))
        what = f"has length {length:.4g}" if np.isfinite(length) else "is not finite"
        raise ValueError(f"embedding {row} {what}, expected a finite vector of length 1")
    return rows


def are_unit(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tell which rows (N, D) are finite and of length 1, up to half-precision rounding."""
    lengths = np.sqrt(np.vecdot(rows, rows))
    result: NDArray[np.bool_] = np.abs(lengths - 1) <= _UNIT_TOLERANCE  # false for NaN
    return result


def exact_scores(rows: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosine of unit rows, in [-1, 1].

    `numpy.vecdot` works row by row, so a row's score does not depend on which other rows are
    scored with it, as it would in a matrix product.

    Args:
        rows: (N, D).
        queries: (D,), one for all rows, or (N, D), one for each.
    """
    scores: NDArray[np.float32] = np.vecdot(rows, queries)
    np.minimum(scores, 1.0, out=scores)
    np.maximum(scores, -1.0, out=scores)
    return scores


def best_first(scores: Sequence[float], ids: Sequence[str]) -> list[int]:
    """Positions ordered by score, descending, and by id, ascending, where scores are equal."""
    return sorted(range(len(ids)), key=lambda position: (-scores[position], ids[position]))
