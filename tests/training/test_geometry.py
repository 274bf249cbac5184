"""Measures of an embedding space, on vectors whose angles are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given, settings
from hypothesis import strategies as st

from lamina_training.geometry import (
    alignment,
    anisotropy,
    effective_rank,
    measure_geometry,
    singular_values,
    uniformity,
)
from lamina_training.sts import StsPairs

CROSS = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])


# Squared distances 2 (right angle) and 4 (opposite).
def test_alignment_is_the_mean_squared_distance() -> None:
    assert alignment(CROSS[[0, 0]], CROSS[[1, 2]]) == pytest.approx(3.0)
    assert alignment(CROSS, CROSS) == 0.0


# Of the 6 pairs 4 are at a right angle (exp(-4)), 2 opposite (exp(-8)).
def test_uniformity_is_as_computed_by_hand() -> None:
    expected = math.log((4 * math.exp(-4) + 2 * math.exp(-8)) / 6)
    assert uniformity(CROSS) == pytest.approx(expected, abs=1e-12)


def test_uniformity_spans_from_one_point_to_two_opposite_ones() -> None:
    assert uniformity(np.repeat(CROSS[:1], 3, axis=0)) == pytest.approx(0.0)
    assert uniformity(CROSS[[0, 2]]) == pytest.approx(-8.0)


# Of the 6 pairs 4 have cosine 0 and 2 have cosine -1.
def test_anisotropy_is_the_mean_cosine_of_different_rows() -> None:
    assert anisotropy(CROSS) == pytest.approx(-1 / 3)
    assert anisotropy(np.repeat(CROSS[:1], 5, axis=0)) == pytest.approx(1.0)


def random_rows(seed: int, count: int) -> NDArray[np.float64]:
    rows = np.random.default_rng(seed).normal(size=(count, 5)) + 0.5
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000), count=st.integers(2, 12))
def test_closed_forms_equal_a_loop_over_all_pairs(seed: int, count: int) -> None:
    rows = random_rows(seed, count)
    pairs = [(rows[i], rows[j]) for i in range(count) for j in range(count) if i != j]
    near = np.mean([math.exp(-2 * ((x - y) @ (x - y))) for x, y in pairs])
    assert uniformity(rows) == pytest.approx(math.log(near))
    assert anisotropy(rows) == pytest.approx(np.mean([x @ y for x, y in pairs]))


def test_many_rows_are_measured_in_blocks_without_a_seam() -> None:
    rows = random_rows(0, 1500)  # more than one block
    cosines = rows @ rows.T
    others = ~np.eye(len(rows), dtype=bool)
    expected = np.log(np.exp(4 * (cosines - 1))[others].mean())
    assert uniformity(rows) == pytest.approx(expected)


def test_one_row_makes_no_pair() -> None:
    for measure in (uniformity, anisotropy):
        with pytest.raises(ValueError, match="1 rows make no pair"):
            measure(CROSS[:1])


def test_the_spectrum_tells_the_energy_along_each_axis() -> None:
    rows = CROSS[[0, 0, 0, 1]]  # three along one axis, one along the other
    assert singular_values(rows) ** 2 == pytest.approx([0.75, 0.25])


def test_effective_rank_counts_equal_directions_and_ignores_empty_ones() -> None:
    assert effective_rank(np.array([1.0, 1.0, 1.0, 0.0])) == pytest.approx(3.0)
    assert effective_rank(np.array([2.0, 0.0])) == pytest.approx(1.0)
    # Shares 3/4 and 1/4: exp(0.75 log(4/3) + 0.25 log 4) = 1.754765.
    assert effective_rank(np.array([3.0, 1.0])) == pytest.approx(1.754765, abs=1e-6)


POINTS = dict(zip(("east", "north", "west", "south"), CROSS, strict=True))


def compass(texts: Sequence[str]) -> NDArray[np.floating]:
    return 2 * np.array([POINTS[text] for text in texts])


def test_an_encoder_is_measured_on_alike_pairs_and_distinct_sentences() -> None:
    pairs = StsPairs(
        first=("east", "east", "west", "east"),
        second=("north", "west", "south", "east"),
        gold=np.array([4.5, 4.0, 5.0, 3.0]),  # 4.0 is not above 4
        subsets=("",) * 4,
    )
    found = measure_geometry(compass, pairs)
    assert found.alignment == pytest.approx(2.0)
    assert found.uniformity == pytest.approx(uniformity(CROSS))
    assert found.anisotropy == pytest.approx(-1 / 3)
    assert found.effective_rank == pytest.approx(2.0)
    assert found.singular_values == pytest.approx((0.5**0.5, 0.5**0.5))
    with pytest.raises(ValueError, match="above 5"):
        measure_geometry(compass, pairs, alike_above=5.0)
