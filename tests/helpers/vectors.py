"""Vectors that tests store and search."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

DIRECTIONS = np.array([d for d in itertools.product((-1, 0, 1), repeat=3) if any(d)], np.float32)
"""(26, 3) unit vectors to the neighbours of a cube's middle; many a pair of them has one cosine."""
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)


def unit(count: int, dimension: int = 32, seed: int = 0) -> NDArray[np.float32]:
    """(count, dimension) random unit vectors, the same for the same seed."""
    rows = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
