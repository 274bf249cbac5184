"""Means over seeds and paired differences, with 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t as student

CONFIDENCE = 0.95
FEWEST = 3
"""Values from which an interval may call a difference one. Two can lie together by chance, and the
interval of two is then far too short."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds.

    Attributes:
        mean: Of the values.
        half_width: Half of its 95% interval, by Student's t with n - 1 degrees of freedom; None
            where one seed leaves it unknown.
        n: How many seeds.
    """

    mean: float
    half_width: float | None
    n: int

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out 0, as one of a difference should to be called one.

        Never of less than `FEWEST` values.
        """
        if self.half_width is None or self.n < FEWEST:
            return False
        return abs(self.mean) > self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean that more seeds would have.

    Raises:
        ValueError: If there is no value.
    """
    n = len(values)
    if not n:
        raise ValueError("no value to estimate a mean from")
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None, n)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    reach = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
    return Estimate(mean, reach * math.sqrt(variance / n), n)


def paired_difference(
    values: Mapping[int, float], reference: Mapping[int, float]
) -> Estimate | None:
    """Estimate by how much values exceed the reference's, seed by seed; None without a pair.

    What a seed does to both, such as which rows meet in a batch, cancels out. The interval tells of
    other seeds on the same test set, not of another test set.

    Args:
        values: By seed.
        reference: By seed.
    """
    shared = sorted(values.keys() & reference.keys())
    return estimate([values[s] - reference[s] for s in shared]) if shared else None
