from __future__ import annotations

import math

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina_index.metrics import (
    METRICS,
    average_precision,
    bootstrap_intervals,
    mean_reciprocal_rank,
    ndcg,
    per_query,
    recall,
    reciprocal_rank,
)


def test_mrr_averages_over_every_judged_query() -> None:
    run = {"q1": ["d9", "d1"]}  # first relevant at rank 2; q2 found nothing
    assert mean_reciprocal_rank(run, {"q1": {"d1"}, "q2": {"d2"}}, k=10) == 0.25


def test_reciprocal_rank_stops_at_the_cut() -> None:
    ranking = [f"d{i}" for i in range(1, 12)]
    assert reciprocal_rank(ranking, {"d10"}, k=10) == 0.1
    assert reciprocal_rank(ranking, {"d11"}, k=10) == 0.0


def test_recall_counts_all_relevant_documents() -> None:
    assert recall(["a", "x", "b"], {"a", "b", "c", "d"}, k=1) == 0.25
    assert recall(["a", "x", "b"], {"a", "b", "c", "d"}, k=10) == 0.5


def test_average_precision_by_hand() -> None:
    # found at ranks 1 and 3 of three relevant: (1/1 + 2/3 + 0) / 3
    assert average_precision(["a", "x", "b"], {"a", "b", "c"}, k=100) == pytest.approx(5 / 9)


def test_average_precision_divides_by_all_relevant_documents_even_beyond_the_cut() -> None:
    assert average_precision(["a", "b"], {"a", "b", "c"}, k=1) == pytest.approx(1 / 3)


def test_ndcg_gain_is_the_grade_and_discount_is_log2_of_rank_plus_one() -> None:
    ideal = 3 / math.log2(2) + 1 / math.log2(3)
    assert ndcg(["b", "a"], {"a": 3, "b": 1, "c": 0}, k=10) == pytest.approx(
        (1 / math.log2(2) + 3 / math.log2(3)) / ideal
    )


def test_the_best_ranking_scores_one_on_every_metric() -> None:
    values = per_query({"q": ["a"]}, {"q": {"a": 2, "b": 0}})
    assert {name: value.tolist() for name, value in values.items()} == {n: [1.0] for n in METRICS}


def test_a_repeated_id_is_refused_by_every_metric() -> None:
    for metric in METRICS.values():
        with pytest.raises(ValueError, match="'d1' stands twice"):
            metric(["d1", "d1"], {"d1": 1})


def test_a_query_without_a_relevant_document_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is judged relevant"):
        per_query({"q": ["a"]}, {"q": {"a": 0}})


GRADES = st.dictionaries(st.sampled_from([f"d{i}" for i in range(130)]), st.integers(-1, 3))
RANKING = st.lists(st.sampled_from([f"d{i}" for i in range(130)]), unique=True, max_size=130)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(GRADES.filter(lambda g: any(v > 0 for v in g.values())), RANKING),
        min_size=1,
        max_size=5,
    )
)
def test_every_value_equals_trec_eval(judged: list[tuple[dict[str, int], list[str]]]) -> None:
    qrels = {f"q{i}": grades for i, (grades, _) in enumerate(judged)}
    run = {f"q{i}": ranking for i, (_, ranking) in enumerate(judged)}
    # trec_eval orders by score itself, ties by descending id: strictly falling scores keep ours
    scored = {q: {d: float(-rank) for rank, d in enumerate(r)} for q, r in run.items()}
    first_ten = {q: dict(list(scores.items())[:10]) for q, scores in scored.items()}
    cut = pytrec_eval.RelevanceEvaluator(
        qrels, {"ndcg_cut.10", "recall.1,10,100", "map_cut.100"}
    ).evaluate(scored)
    uncut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_ten)
    ours = per_query(run, qrels)
    for row, query in enumerate(qrels):
        theirs = {
            "mrr@10": uncut.get(query, {}).get("recip_rank", 0.0),
            "ndcg@10": cut.get(query, {}).get("ndcg_cut_10", 0.0),
            "recall@1": cut.get(query, {}).get("recall_1", 0.0),
            "recall@10": cut.get(query, {}).get("recall_10", 0.0),
            "recall@100": cut.get(query, {}).get("recall_100", 0.0),
            "map@100": cut.get(query, {}).get("map_cut_100", 0.0),
        }
        assert {name: ours[name][row] for name in ours} == pytest.approx(theirs, abs=1e-6)


def test_intervals_repeat_with_the_seed_and_hold_the_mean() -> None:
    values = {"mrr@10": np.random.default_rng(1).random(300), "recall@1": np.ones(300)}
    first = bootstrap_intervals(values, rng=np.random.default_rng(7))
    assert first == bootstrap_intervals(values, rng=np.random.default_rng(7))
    low, high = first["mrr@10"]
    assert low < values["mrr@10"].mean() < high
    assert first["recall@1"] == (1.0, 1.0)


def test_interval_width_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(3).random(1000)
    low, high = bootstrap_intervals({"m": values}, rng=np.random.default_rng(5))["m"]
    expected = 2 * 1.96 * values.std() / math.sqrt(len(values))
    assert high - low == pytest.approx(expected, rel=0.1)
