"""Vectors in any number that lie as the embeddings of real texts do, made from some of those.

Texts come as questions and their paraphrases, so vectors are made in two steps. A centre lies about
a real embedding, its seed: at a Gaussian step with the covariance of the seed's 32 nearest
neighbours (times `SPREAD` squared), and another with the covariance of what neighbours cannot
express (times `RESIDUAL` squared). About each centre lie two rows on average, at steps of the same
two kinds that are shorter by a log-normal factor (median `PARAPHRASE`). All are cut to length 1.

The three numbers were chosen so that vectors made from a tenth, and from a 64th, of the real ones
have neighbours as near and are as hard to find as the real ones are; `difficulty` tells that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from harness import rounded
from numpy.typing import NDArray

from lamina_index.exact import NearestSoFar
from lamina_index.index_choice import list_count
from lamina_index.scoring import exact_scores
from lamina_index.vectors import VectorIndex

BLOCK_ROWS = 8192
PIECE_ROWS = 1024
"""Made together: of each, 32 neighbours are in memory."""

NEIGHBOURS = 32
SPREAD = 0.9
RESIDUAL = 0.5
PARAPHRASE = 0.3
PARAPHRASE_SIGMA = 0.6
ROWS_PER_CENTRE = 2

_GRAPH = "HNSW32"
_GRAPH_EFFORT = 96
_RESIDUAL_ROWS = 4000
_SEED = 7

DIFFICULTY_QUERIES = 400
DEPTHS = (1, 10, 100)
SPARE = 8
"""Candidates beyond the ten, as a search takes them."""

GRAPH_EFFORTS = (32, 64, 128)
LIST_EFFORTS = (8, 32, 128)


@dataclass(frozen=True)
class GrownVectors:
    """Rows 0..R-1 are real, all after them are made, always the same.

    Attributes:
        real: (R, D) unit rows.
        neighbours: (R, K) int32, the nearest others of each, K = 32 or R - 1.
        residual: (D, D), whose product with normal numbers from the left has the covariance of what
            a row's neighbours cannot express.
    """

    real: NDArray[np.float32]
    neighbours: NDArray[np.int32]
    residual: NDArray[np.float32]

    @classmethod
    def of(cls, real: NDArray[np.float32]) -> GrownVectors:
        """Look at real vectors (R, D), R > 1."""
        neighbours = nearest_others(real, min(NEIGHBOURS, len(real) - 1))
        return cls(real, neighbours, residual_factor(real, neighbours))

    def save(self, path: Path) -> None:
        """Write them to a `.npz` file."""
        np.savez(path, real=self.real, neighbours=self.neighbours, residual=self.residual)

    @classmethod
    def load(cls, path: Path) -> GrownVectors:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name] for name in ("real", "neighbours", "residual")})

    def rows(self, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
        """Give rows `start` to `stop` in blocks (n, D), n <= 8192."""
        for first in range(start, min(stop, len(self.real)), BLOCK_ROWS):
            yield self.real[first : min(stop, first + BLOCK_ROWS)]
        first, last = (max(row - len(self.real), 0) for row in (start, stop))
        for number in range(first // BLOCK_ROWS, -(-last // BLOCK_ROWS)):
            begin = number * BLOCK_ROWS
            yield self._block(number)[max(first - begin, 0) : last - begin]

    def _block(self, number: int) -> NDArray[np.float32]:
        """Make the block of a number (8192, D)."""
        random = np.random.default_rng((_SEED, number))
        return np.concatenate([self._piece(random) for _ in range(BLOCK_ROWS // PIECE_ROWS)])

    def _piece(self, random: np.random.Generator) -> NDArray[np.float32]:
        seeds = random.integers(len(self.real), size=PIECE_ROWS // ROWS_PER_CENTRE)
        steps = self.real[self.neighbours[seeds]] - self.real[seeds][:, np.newaxis]  # (C, K, D)
        centres = self.real[seeds] + SPREAD * self._local(random, steps)
        centres = unit(centres + RESIDUAL * self._beyond(random, len(seeds)))
        own = random.integers(len(seeds), size=PIECE_ROWS)
        length = PARAPHRASE * np.exp(PARAPHRASE_SIGMA * random.standard_normal((PIECE_ROWS, 1)))
        away = self._local(random, steps[own])
        away += RESIDUAL / SPREAD * self._beyond(random, PIECE_ROWS)
        return unit(centres[own] + length.astype(np.float32) * away)

    def _local(
        self, random: np.random.Generator, steps: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Draw steps (n, D) with the covariance of given ones (n, K, D)."""
        count, width, _ = steps.shape
        weights = random.standard_normal((count, 1, width), dtype=np.float32) / np.sqrt(width)
        drawn: NDArray[np.float32] = np.matmul(weights.astype(np.float32), steps)[:, 0]
        return drawn

    def _beyond(self, random: np.random.Generator, count: int) -> NDArray[np.float32]:
        """Draw steps (n, D) that neighbours cannot express."""
        normal = random.standard_normal((count, len(self.residual)), dtype=np.float32)
        return normal @ self.residual


def unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut rows (n, D) to length 1."""
    lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / lengths


def nearest_others(rows: NDArray[np.float32], width: int) -> NDArray[np.int32]:
    """(N, K) the nearest others of each row (N, D); a graph finds nearly all of them."""
    index = faiss.index_factory(rows.shape[1], _GRAPH, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = index.hnsw.efSearch = max(_GRAPH_EFFORT, width + 1)
    index.add(rows)
    _, found = index.search(rows, width + 1)
    own = np.arange(len(rows))[:, np.newaxis]
    found[(found == own) | (found < 0)] = -1  # what is missing takes the place of the row itself
    order = np.argsort(found < 0, axis=1, kind="stable")[:, :width]
    kept = np.take_along_axis(found, order, axis=1)
    return np.where(kept < 0, own, kept).astype(np.int32)


def residual_factor(
    rows: NDArray[np.float32], neighbours: NDArray[np.int32]
) -> NDArray[np.float32]:
    """(D, D) factor of the covariance of what is left of rows (N, D) beside their neighbours."""
    random = np.random.default_rng(_SEED)
    chosen = random.choice(len(rows), min(_RESIDUAL_ROWS, len(rows)), replace=False)
    left = []
    for row in chosen:
        basis = rows[neighbours[row]].T
        weights, *_ = np.linalg.lstsq(basis, rows[row], rcond=None)
        left.append(rows[row] - basis @ weights)
    covariance = np.cov(np.array(left, np.float64), rowvar=False, bias=True)
    values, directions = np.linalg.eigh(covariance)
    factor = np.sqrt(np.maximum(values, 0))[:, np.newaxis] * directions.T
    return np.ascontiguousarray(factor, np.float32)


def difficulty(rows: NDArray[np.float32], threads: int) -> dict[str, Any]:
    """Tell how near rows (N, D) lie to each other, and how hard they are to find.

    Rows are their own queries, themselves left out. Recall is that of the ten nearest, with eight
    spare candidates, scored exactly.
    """
    random = np.random.default_rng(_SEED)
    own = np.sort(random.choice(len(rows), min(DIFFICULTY_QUERIES, len(rows)), replace=False))
    nearest = NearestSoFar(rows[own], min(max(DEPTHS) + 1, len(rows)))
    for start in range(0, len(rows), BLOCK_ROWS):
        block = rows[start : start + BLOCK_ROWS]
        nearest.add(np.arange(start, start + len(block)), block)
    exact = []
    for place, row in enumerate(own):
        scores, labels = nearest.result(place)
        exact.append(scores[labels != row][: max(DEPTHS)])
    near = {
        str(depth): rounded(float(np.median([scores[depth - 1] for scores in exact])))
        for depth in DEPTHS
        if depth < len(rows)
    }
    tenth = [float(scores[:10][-1]) for scores in exact]
    lists = f"IVF{list_count(len(rows))}_HNSW32,PQ{rows.shape[1] // 4}x4fs,Refine(SQfp16)"
    found: dict[str, Any] = {"median_cosine": near}
    for name, factory, efforts in (
        ("graph", "HNSW32,SQ8", GRAPH_EFFORTS),
        ("lists", lists, LIST_EFFORTS),
    ):
        index = VectorIndex.build(
            factory,
            dimension=rows.shape[1],
            count=len(rows),
            training=lambda size: random.choice(rows, min(size, len(rows)), replace=False),
            batches=(rows[at : at + BLOCK_ROWS] for at in range(0, len(rows), BLOCK_ROWS)),
            threads=threads,
        )
        found[name] = {str(effort): _recall(index, rows, own, tenth, effort) for effort in efforts}
    return found


def _recall(
    index: VectorIndex,
    rows: NDArray[np.float32],
    own: NDArray[np.int64],
    tenth: list[float],
    effort: int,
) -> float:
    served = expected = 0
    for row, least in zip(own, tenth, strict=True):
        wanted = min(10, len(rows) - 1)
        _, positions = index.search(rows[row], wanted + 1 + SPARE, effort=effort)
        scores = exact_scores(rows[positions[positions != row]], rows[row])
        served += min(int((scores >= least).sum()), wanted)
        expected += wanted
    return rounded(served / expected)
