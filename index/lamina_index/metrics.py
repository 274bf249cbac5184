"""How good a ranking is: pure functions on ids.

A ranking is a sequence of distinct document ids, best first. `grades` maps the judged documents of
one query to their grade: above 0 is relevant, everything else and every unjudged document is not.
All values equal those of trec_eval (measures recip_rank, ndcg_cut, recall, map_cut) on the ranking
in the order given; trec_eval itself would order ties of a score by descending id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Grades: TypeAlias = Mapping[str, float]
Run: TypeAlias = Mapping[str, Sequence[str]]


def relevant_ids(grades: Grades) -> frozenset[str]:
    """Give the documents judged relevant: those of a grade above 0."""
    return frozenset(document for document, grade in grades.items() if grade > 0)


def reciprocal_rank(ranking: Sequence[str], relevant: AbstractSet[str], *, k: int) -> float:
    """Give 1 / rank of the first relevant document, 0 if none is among the first k."""
    for rank, document in enumerate(_top(ranking, k), start=1):
        if document in relevant:
            return 1.0 / rank
    return 0.0


def recall(ranking: Sequence[str], relevant: AbstractSet[str], *, k: int) -> float:
    """Give the share of the relevant documents that are among the first k.

    With more than k relevant documents it cannot reach 1.

    Raises:
        ValueError: If nothing is relevant.
    """
    _refuse_empty(relevant)
    return len(relevant & set(_top(ranking, k))) / len(relevant)


def average_precision(ranking: Sequence[str], relevant: AbstractSet[str], *, k: int) -> float:
    """Average, over all relevant documents, the precision at the rank where each is found.

    One that is not among the first k adds 0. Divides by the number of relevant documents even
    where that is above k, as trec_eval does (sentence-transformers divides by the smaller).

    Raises:
        ValueError: If nothing is relevant.
    """
    _refuse_empty(relevant)
    found, total = 0, 0.0
    for rank, document in enumerate(_top(ranking, k), start=1):
        if document in relevant:
            found += 1
            total += found / rank
    return total / len(relevant)


def ndcg(ranking: Sequence[str], grades: Grades, *, k: int) -> float:
    """Give the discounted gain of the first k over the best that the grades allow.

    The gain is the grade itself (not 2^grade - 1), 0 for grades below 0; the discount is
    log2(rank + 1).

    Raises:
        ValueError: If no grade is above 0.

    Source: Jarvelin and Kekalainen 2002, in the form of trec_eval's ndcg_cut.
    """
    gains = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    _refuse_empty(gains)
    served = [max(0.0, grades.get(document, 0.0)) for document in _top(ranking, k)]
    return _discounted(served) / _discounted(gains[:k])


METRICS: Mapping[str, Callable[[Sequence[str], Grades], float]] = {
    "mrr@10": lambda ranking, grades: reciprocal_rank(ranking, relevant_ids(grades), k=10),
    "ndcg@10": lambda ranking, grades: ndcg(ranking, grades, k=10),
    "recall@1": lambda ranking, grades: recall(ranking, relevant_ids(grades), k=1),
    "recall@10": lambda ranking, grades: recall(ranking, relevant_ids(grades), k=10),
    "recall@100": lambda ranking, grades: recall(ranking, relevant_ids(grades), k=100),
    "map@100": lambda ranking, grades: average_precision(ranking, relevant_ids(grades), k=100),
}
"""What a report shows: name to a function of (ranking, grades) of one query."""


def per_query(run: Run, qrels: Mapping[str, Grades]) -> dict[str, NDArray[np.float64]]:
    """Compute every metric of `METRICS` for every judged query.

    Args:
        run: Ranked document ids by query id; a query that is not in it found nothing.
        qrels: Grades by query id; each query needs a relevant document.

    Returns:
        Metric name to (Q,) values in [0, 1], in the order of `qrels`.

    Raises:
        ValueError: If a ranking repeats an id, or a query has no relevant document.
    """
    return {
        name: np.array([metric(run.get(query, ()), grades) for query, grades in qrels.items()])
        for name, metric in METRICS.items()
    }


def mean_reciprocal_rank(run: Run, qrels: Mapping[str, AbstractSet[str]], *, k: int) -> float:
    """Average the reciprocal rank over every judged query; one without a ranking counts as 0.

    Args:
        run: Ranked document ids by query id.
        qrels: Relevant document ids by query id, at least one query.
    """
    _refuse_empty(qrels)
    ranks = (reciprocal_rank(run.get(q, ()), relevant, k=k) for q, relevant in qrels.items())
    return sum(ranks) / len(qrels)


def bootstrap_intervals(
    values: Mapping[str, NDArray[np.float64]],
    *,
    rng: np.random.Generator,
    resamples: int = 2000,
    confidence: float = 0.95,
) -> dict[str, tuple[float, float]]:
    """Bound each mean by the percentile bootstrap over queries.

    All metrics see the same resamples. The interval tells how far the mean would move with other
    queries of the same kind; it says nothing about another corpus or wrong judgements.

    Args:
        values: Metric name to (Q,) per-query values, Q the same for all and at least 1.
        rng: Where the resamples come from; the same state gives the same intervals.

    Source: Efron 1979; Sakai 2006 for retrieval.
    """
    table = np.column_stack(list(values.values()))  # (Q, metrics)
    queries = len(table)
    _refuse_empty(table)
    share = np.full(queries, 1.0 / queries)
    means = np.empty((resamples, table.shape[1]))
    for start in range(0, resamples, 100):  # blocks bound the memory at 100 x Q counts
        counts = rng.multinomial(queries, share, size=min(100, resamples - start))
        means[start : start + len(counts)] = counts @ table / queries
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail], axis=0)
    return {name: (float(low[column]), float(high[column])) for column, name in enumerate(values)}


def _top(ranking: Sequence[str], k: int) -> Sequence[str]:
    """Give the first k ids; ids that repeat anywhere would push a metric over 1."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if len(set(ranking)) < len(ranking):
        repeated = next(d for i, d in enumerate(ranking) if d in ranking[:i])
        raise ValueError(f"document {repeated!r} stands twice in one ranking")
    return ranking[:k]


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def _refuse_empty(judged: Sized) -> None:
    if len(judged) == 0:
        raise ValueError("nothing is judged relevant")
