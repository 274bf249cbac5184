"""The shape of an embedding space: are alike texts near, and does the rest use the whole sphere.

All measures are of unit rows, and lower is better for alignment, uniformity and anisotropy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina_training.embedding import EmbeddedTexts, Encode
from lamina_training.sts import StsPairs

ALIKE_ABOVE = 4.0
"""Gold score above which an STS pair counts as positive; SimCSE's choice, as far as remembered."""

_BLOCK = 1024

Rows = NDArray[np.float32] | NDArray[np.float64]


@dataclass(frozen=True)
class Geometry:
    """Measures of one encoder on one set of texts.

    Attributes:
        singular_values: Of the (N, D) unit rows, descending, scaled so that their squares sum to
            1: each square is the share of the energy along one axis.
    """

    alignment: float
    uniformity: float
    anisotropy: float
    effective_rank: float
    singular_values: tuple[float, ...]


def measure_geometry(
    encode: Encode, pairs: StsPairs, *, alike_above: float = ALIKE_ABOVE
) -> Geometry:
    """Measure an encoder on scored pairs: positives are the pairs of a high gold score.

    The other measures take all distinct sentences of the set, so that no text meets itself.

    Raises:
        ValueError: If no pair has a gold score above `alike_above`.
        EncoderOutputError: If an embedding is not finite.
    """
    alike = np.flatnonzero(pairs.gold > alike_above).tolist()
    if not alike:
        raise ValueError(f"no pair has a gold score above {alike_above:g}")
    embedded = EmbeddedTexts(encode, (*pairs.first, *pairs.second))
    values = singular_values(embedded.embeddings)
    return Geometry(
        alignment=alignment(
            embedded(pairs.first[place] for place in alike),
            embedded(pairs.second[place] for place in alike),
        ),
        uniformity=uniformity(embedded.embeddings),
        anisotropy=anisotropy(embedded.embeddings),
        effective_rank=effective_rank(values),
        singular_values=tuple(values.tolist()),
    )


def alignment(first: Rows, second: Rows) -> float:
    """Average the squared distance of positive pairs: E ||f(x) - f(x+)||^2, from 0 to 4.

    Args:
        first: (P, D) unit rows.
        second: (P, D) unit rows, row i the positive of row i of `first`.

    Source: Wang and Isola 2020, arXiv 2005.10242, with alpha = 2.
    """
    apart = first.astype(np.float64) - second.astype(np.float64)
    return float(np.vecdot(apart, apart).mean())


def uniformity(rows: Rows) -> float:
    """Tell how evenly texts are spread: log E exp(-2 ||f(x) - f(y)||^2), from -8 to 0.

    Args:
        rows: (N, D) unit rows, N >= 2; the mean is over all pairs of different rows, not a sample.

    Raises:
        ValueError: If there are fewer than two rows.

    Source: Wang and Isola 2020, arXiv 2005.10242, with t = 2.
    """
    units = _several(rows)
    N = len(units)
    total = 0.0
    for start in range(0, N, _BLOCK):
        cosines = units[start : start + _BLOCK] @ units.T
        near = np.exp(4 * (np.minimum(cosines, 1.0) - 1))  # ||x - y||^2 = 2 - 2 cos
        places = np.arange(len(near))
        near[places, start + places] = 0.0  # a row with itself
        total += float(near.sum())
    return float(np.log(total / (N * (N - 1))))


def anisotropy(rows: Rows) -> float:
    """Average the cosine of two random texts: near 1 all lie in one narrow cone, 0 is even.

    Args:
        rows: (N, D) unit rows, N >= 2; the mean is over all pairs of different rows, by
            (||sum of rows||^2 - N) / (N (N - 1)), not a sample.

    Raises:
        ValueError: If there are fewer than two rows.

    Source: Ethayarajh 2019, arXiv 1909.00512, who takes it of words in context; here of sentences.
    """
    units = _several(rows)
    N = len(units)
    together = units.sum(axis=0)
    alone = float(np.vecdot(units, units).sum())  # N, but for rounding
    return float((together @ together - alone) / (N * (N - 1)))


def singular_values(rows: Rows) -> NDArray[np.float64]:
    """Give the spectrum of (N, D) unit rows, descending, its squares scaled to sum to 1.

    The mean is not taken out, so that a common direction shows as a large first value.
    """
    values: NDArray[np.float64] = np.linalg.svd(rows.astype(np.float64), compute_uv=False)
    return values / np.linalg.norm(values)


def effective_rank(values: NDArray[np.float64]) -> float:
    """Count the directions in use: exp of the entropy of the singular values' shares.

    From 1, if one direction holds all, to the number of values, if all are equal.

    Source: Roy and Vetterli 2007, "The effective rank": shares of the values, not of their squares.
    """
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _several(rows: Rows) -> NDArray[np.float64]:
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} rows make no pair; need two or more")
    return rows.astype(np.float64)
