"""The scoring rule: a row's score is the same bits wherever and with whatever it is scored."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina_index.scoring import best_first, exact_scores


@settings(max_examples=60, deadline=None)
@given(
    dimension=st.sampled_from([1, 3, 32, 63, 384, 768]),
    count=st.integers(1, 50),
    first=st.integers(0, 49),
    seed=st.integers(0, 99),
)
def test_a_score_does_not_depend_on_the_other_rows(
    dimension: int, count: int, first: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    rows = random.standard_normal((50, dimension)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    query = rows[0]
    together = exact_scores(rows, query)
    some = rows[first : first + count]
    assert np.array_equal(exact_scores(some, query), together[first : first + count])
    copied = np.ascontiguousarray(some[::-1])
    assert np.array_equal(exact_scores(copied, query)[::-1], together[first : first + count])
    repeated = np.broadcast_to(query, some.shape)
    assert np.array_equal(exact_scores(some, repeated), together[first : first + count])


def test_scores_stay_within_one() -> None:
    row = np.full((1, 3), np.sqrt(np.float32(1 / 3)) * np.float32(1.001), np.float32)
    assert exact_scores(row, row[0]).tolist() == [1.0]
    assert exact_scores(row, -row[0]).tolist() == [-1.0]


def test_equal_scores_go_by_id() -> None:
    assert best_first([0.5, 0.9, 0.5, 0.5], ["b", "z", "a", "B"]) == [1, 3, 2, 0]
