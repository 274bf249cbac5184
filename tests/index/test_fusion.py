from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina_index.fusion import competition_ranks, reciprocal_rank_fusion, score_fusion

NAN = float("nan")


def test_equal_scores_share_a_rank_and_the_next_is_counted_on() -> None:
    ranks = competition_ranks(np.array([0.5, 0.9, 0.5, NAN, 0.1]))
    assert ranks.tolist()[:3] == [2, 1, 2]
    assert np.isnan(ranks[3])
    assert ranks[4] == 4


def test_reciprocal_ranks_are_added_by_weight() -> None:
    fused = reciprocal_rank_fusion(
        np.array([1.0, 2.0, NAN]), np.array([NAN, 1.0, 1.0]), lexical_weight=0.25
    )
    assert fused == pytest.approx([0.75 / 61, 0.75 / 62 + 0.25 / 61, 0.25 / 61])


def test_scores_are_shares_of_the_highest_above_the_least() -> None:
    fused = score_fusion(np.array([1.0, 0.0, -1.0]), np.array([NAN, 8.0, 4.0]), lexical_weight=0.5)
    # cosine 0 lies half-way from -1 to the highest, 1; BM25 4 half-way from 0 to 8
    assert fused == pytest.approx([0.5, 0.25 + 0.5, 0.25])


def test_without_any_word_found_meaning_alone_decides() -> None:
    dense = np.array([0.2, 0.9])
    fused = score_fusion(dense, np.array([NAN, NAN]), lexical_weight=0.3)
    assert fused == pytest.approx([0.7 * 1.2 / 1.9, 0.7])
    assert score_fusion(np.empty(0), np.empty(0), lexical_weight=0.3).tolist() == []


@given(
    rows=st.lists(
        st.tuples(st.floats(-1, 1, width=32), st.floats(0.1, 30)), min_size=1, max_size=20
    ),
    weight=st.floats(0, 0.99),
)
def test_who_is_better_in_both_is_never_worse_in_the_whole(
    rows: list[tuple[float, float]], weight: float
) -> None:
    dense, lexical = np.array(rows).T
    by_scores = score_fusion(dense, lexical, lexical_weight=weight)
    by_ranks = reciprocal_rank_fusion(
        competition_ranks(dense), competition_ranks(lexical), lexical_weight=weight
    )
    for fused in (by_scores, by_ranks):
        assert ((fused >= 0) & (fused <= 1 + 1e-9)).all()
        for a in range(len(rows)):
            for b in range(len(rows)):
                if dense[a] >= dense[b] and lexical[a] >= lexical[b]:
                    assert fused[a] >= fused[b] - 1e-12
