"""Which FAISS index to build for how many vectors. The measurements are in docs/storage.md."""

from __future__ import annotations

import math
from dataclasses import dataclass

EXACT_LIMIT = 10_000
"""Up to here every vector is compared: less work than encoding the query, and nothing to tune."""

GRAPH_LIMIT = 20_000_000
"""Up to here an HNSW graph with 8-bit vectors: about 660 bytes for each 384-wide row, 13 GB."""


@dataclass(frozen=True, slots=True)
class IndexChoice:
    """A factory string and why it was chosen."""

    factory: str
    reason: str


def choose_index(count: int, dimension: int) -> IndexChoice:
    """Choose the index that `auto` stands for.

    It depends on nothing but its arguments, so a build that was resumed, or done again elsewhere,
    ends with the same kind of index.

    Args:
        count: Number of vectors.
        dimension: D of the vectors.
    """
    if count <= EXACT_LIMIT:
        return IndexChoice(
            "Flat", f"{count} vectors: exact search is affordable up to {EXACT_LIMIT}"
        )
    if count <= GRAPH_LIMIT:
        return IndexChoice(
            "HNSW32,SQ8", f"{count} vectors: a graph up to {GRAPH_LIMIT}, 8 bits a component"
        )
    piece = next(size for size in (4, 2, 1) if dimension % size == 0)
    return IndexChoice(
        f"IVF{list_count(count)}_HNSW32,PQ{dimension // piece}x4fs,Refine(SQ8)",
        f"{count} vectors: past {GRAPH_LIMIT}, inverted lists of compressed vectors, refined",
    )


def list_count(count: int) -> int:
    """Choose how many inverted lists a number of vectors, at least 1, is divided into."""
    return 1 << round(math.log2(4 * math.sqrt(count)))
