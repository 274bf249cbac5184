"""Judged queries, run against something that retrieves, to a report with intervals."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import EvaluationError
from lamina_index.metrics import bootstrap_intervals, per_query, relevant_ids

DEPTH = 100
"""Documents of a ranking that count: the deepest cut of any metric."""

RESAMPLES = 2000
TIMED_QUERIES = 200
TIMED_TOP_K = 10

RULES = (
    "order as served: score descending, ties by document id ascending",
    "a document is relevant if its grade is above 0; an unjudged document counts as not relevant",
    "every query with a relevant document counts, one that found nothing as 0",
    "queries without any relevant document are left out",
    "a relevant document that is not in the corpus counts as not found",
    "nDCG: gain = grade, discount = log2(rank + 1), as trec_eval's ndcg_cut",
    "MAP and recall divide by all relevant documents, as trec_eval's map_cut and recall",
)
SELF_EXCLUDED = (
    "self excluded: a hit whose id is the query's own id is taken out of the ranking before the "
    "cut, and out of the judgements; an exact copy of the query's text under another id stays"
)
SELF_KEPT = "self kept: query ids and document ids are taken as different name spaces"
CHUNKS = "documents are ranked by their best chunk, as far as the first 1,000 chunks reach"


@dataclass(frozen=True)
class JudgedQueries:
    """Queries with at least one relevant document, and what was left out.

    Attributes:
        texts: Query text by query id.
        qrels: Grades by document id by query id, for the queries of `texts`, in the same order.
        split: Which part of the judgements this is; None for all of them.
        without_relevant: Judged queries left out because nothing is relevant to them.
        self_judgements: Judgements left out because they name the query itself.
    """

    texts: dict[str, str]
    qrels: dict[str, dict[str, float]]
    split: str | None = None
    without_relevant: int = 0
    self_judgements: int = 0


class Retriever(Protocol):
    """Something that ranks the documents of one corpus: in memory, on disk or behind HTTP."""

    def retrieve(self, queries: Sequence[str], *, top_k: int) -> list[list[str]]:
        """Rank document ids for each query, best first; none for a query without tokens."""
        ...

    def absent(self, ids: Collection[str]) -> set[str]:
        """Tell which of the ids name no document of the corpus."""
        ...

    def facts(self) -> dict[str, Any]:
        """Describe what was searched, for the report.

        Keys: `kind`, `documents`, `corpus_fingerprint` (None if it cannot be told), `index` and
        `encoder` (each a mapping with `size_bytes`, None if it cannot be told).
        """
        ...


@dataclass(frozen=True)
class Evaluation:
    """What one run found.

    Attributes:
        values: Metric name to (Q,) per-query values, in the order of `judged.qrels`.
        means: Metric name to its mean over all queries.
        intervals: Metric name to the bounds of its 95% bootstrap interval.
        run: Up to `DEPTH` document ids by query id, best first.
        absent: Relevant documents that the corpus does not have.
        unanswered: Queries for which nothing was found, such as blank ones.
        self_hits: Hits taken out because they were the query itself.
        milliseconds: Of each timed query: from text to ranked ids, alone, top_k 10.
    """

    judged: JudgedQueries
    run: dict[str, list[str]]
    values: dict[str, NDArray[np.float64]]
    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    absent: list[str]
    unanswered: list[str]
    self_hits: int
    milliseconds: list[float]
    seed: int
    keep_self: bool
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def milliseconds_per_query(self) -> float:
        """Median over the timed queries."""
        return median(self.milliseconds)


def judge_queries(
    texts: Mapping[str, str],
    qrels: Mapping[str, Mapping[str, float]],
    *,
    split: str | None = None,
    keep_self: bool = False,
) -> JudgedQueries:
    """Join query texts with judgements, by the rules of the report.

    Args:
        texts: Text by query id; may hold queries that nobody judged, which are left out.
        qrels: Grades by document id by query id.
        split: Named in the report.
        keep_self: Whether a document with the query's id is a document like any other.

    Raises:
        EvaluationError: If a judged query has no text, or no query has a relevant document.
    """
    without_text = [query for query in qrels if query not in texts]
    if without_text:
        raise EvaluationError(
            f"{len(without_text)} judged queries have no text ({_some(without_text)}); give the "
            "queries file that belongs to these judgements"
        )
    kept: dict[str, dict[str, float]] = {}
    without_relevant = self_judgements = 0
    for query, grades in qrels.items():
        others = dict(grades)
        if not keep_self and others.pop(query, None) is not None:
            self_judgements += 1
        if relevant_ids(others):
            kept[query] = others
        else:
            without_relevant += 1
    if not kept:
        of_split = f" of split {split!r}" if split else ""
        raise EvaluationError(
            f"none of the {len(qrels)} judged queries{of_split} has a relevant document"
        )
    return JudgedQueries(
        {query: texts[query] for query in kept}, kept, split, without_relevant, self_judgements
    )


def evaluate(
    judged: JudgedQueries, retriever: Retriever, *, seed: int = 0, keep_self: bool = False
) -> Evaluation:
    """Run every judged query and measure the rankings.

    Args:
        judged: From `judge_queries`, with the same `keep_self`.
        retriever: What is measured.
        seed: Of the bootstrap and of the choice of timed queries.
        keep_self: Whether a hit with the query's id is a hit like any other.

    Raises:
        EvaluationError: If a ranking names a document twice.
    """
    rng = np.random.default_rng(seed)
    run: dict[str, list[str]] = {}
    self_hits = 0
    answers = retriever.retrieve(list(judged.texts.values()), top_k=DEPTH + 1)
    for query, ranking in zip(judged.texts, answers, strict=True):
        if len(set(ranking)) < len(ranking):
            raise EvaluationError(
                f"query {query}: one document stands twice among its hits; the index is damaged "
                "or not a Lamina collection, check it with `lamina index verify`"
            )
        others = ranking if keep_self else [document for document in ranking if document != query]
        self_hits += len(ranking) - len(others)
        run[query] = others[:DEPTH]
    values = per_query(run, judged.qrels)
    unfound = {
        document
        for query, grades in judged.qrels.items()
        for document in relevant_ids(grades).difference(run[query])
    }
    return Evaluation(
        judged=judged,
        run=run,
        values=values,
        means={name: float(column.mean()) for name, column in values.items()},
        intervals=bootstrap_intervals(values, rng=rng, resamples=RESAMPLES),
        absent=sorted(retriever.absent(unfound)),
        unanswered=[query for query, ranking in run.items() if not ranking],
        self_hits=self_hits,
        milliseconds=_time_queries(judged, retriever, rng),
        seed=seed,
        keep_self=keep_self,
        facts=retriever.facts(),
    )


def _time_queries(
    judged: JudgedQueries, retriever: Retriever, rng: np.random.Generator
) -> list[float]:
    """Time a sample of the queries one after the other, once the run has warmed everything."""
    texts = list(judged.texts.values())
    chosen = rng.permutation(len(texts))[:TIMED_QUERIES]
    milliseconds = []
    for row in chosen.tolist():
        start = time.perf_counter()
        retriever.retrieve([texts[row]], top_k=TIMED_TOP_K)
        milliseconds.append((time.perf_counter() - start) * 1000)
    return milliseconds


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
