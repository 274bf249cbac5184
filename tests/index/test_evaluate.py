from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from lamina_index.errors import EvaluationError
from lamina_index.evaluate import Evaluation, evaluate, judge_queries
from lamina_index.evaluation_report import (
    first_relevant_ranks,
    markdown,
    picture,
    report_values,
    warnings_of,
    write_report,
)


class Fixed:
    """Gives the rankings it was made with."""

    def __init__(self, rankings: dict[str, list[str]], documents: Collection[str]) -> None:
        self.rankings = rankings
        self.documents = documents

    def retrieve(self, queries: Sequence[str], *, top_k: int) -> list[list[str]]:
        return [self.rankings[query][:top_k] for query in queries]

    def absent(self, ids: Collection[str]) -> set[str]:
        return set(ids) - set(self.documents)

    def facts(self) -> dict[str, Any]:
        return {
            "kind": "fixed",
            "documents": len(self.documents),
            "corpus_fingerprint": "ab" * 32,
            "index": {"name": "a table", "size_bytes": 12},
            "encoder": {
                "name": "none",
                "precision": "fp32",
                "fingerprint": "cd" * 32,
                "size_bytes": None,
            },
        }


def measure(
    rankings: dict[str, list[str]],
    qrels: dict[str, dict[str, float]],
    *,
    documents: Collection[str] = ("d1", "d2", "d3"),
    keep_self: bool = False,
) -> Evaluation:
    judged = judge_queries({q: q for q in rankings}, qrels, keep_self=keep_self)
    return evaluate(judged, Fixed(rankings, documents), keep_self=keep_self)


def values_of(evaluation: Evaluation) -> dict[str, Any]:
    return report_values(evaluation, sources=["queries.tsv"], command="lamina evaluate")


def test_every_judged_query_counts() -> None:
    found = measure({"q1": ["d1"], "q2": ["d3"]}, {"q1": {"d1": 1}, "q2": {"d2": 1}})
    assert found.means["mrr@10"] == 0.5
    assert found.intervals["mrr@10"] == (0.0, 1.0)


def test_a_query_that_nobody_judged_does_not_count() -> None:
    assert measure({"q1": ["d1"], "q2": ["d3"]}, {"q1": {"d1": 1}}).means["mrr@10"] == 1.0


def test_a_query_without_relevant_documents_is_left_out_and_reported() -> None:
    found = measure({"q1": ["d1"], "q2": ["d3"]}, {"q1": {"d1": 1}, "q2": {"d2": 0}})
    values = values_of(found)
    assert (values["mrr@10"], values["queries"], values["queries_without_relevant"]) == (1, 1, 1)


def test_the_query_itself_is_taken_out_before_the_cut() -> None:
    others = [f"x{i:03}" for i in range(99)]
    rankings = {"q1": ["q1", *others, "d1"]}
    found = measure(rankings, {"q1": {"d1": 1, "q1": 1}}, documents=["q1", *others, "d1"])
    assert found.run["q1"] == [*others, "d1"]
    values = values_of(found)
    assert values["recall@100"] == 1.0
    assert (values["self_hits_taken_out"], values["self_judgements_left_out"]) == (1, 1)
    assert any(rule.startswith("self excluded") for rule in values["rules"])


def test_an_exact_copy_of_the_query_stays_in_its_ranking() -> None:
    found = measure({"q1": ["q1", "copy-of-q1", "d1"]}, {"q1": {"d1": 1}})
    assert found.means["mrr@10"] == 0.5


def test_the_query_itself_stays_where_ids_are_different_name_spaces() -> None:
    found = measure({"q1": ["q1", "d1"]}, {"q1": {"q1": 1}}, keep_self=True)
    assert found.means["mrr@10"] == 1.0
    assert any(rule.startswith("self kept") for rule in values_of(found)["rules"])


def test_a_repeated_id_is_refused_with_the_query_named() -> None:
    with pytest.raises(EvaluationError, match="query q1: one document stands twice"):
        measure({"q1": ["d1", "d1"]}, {"q1": {"d1": 1}})


def test_relevant_documents_that_are_not_in_the_corpus_count_as_not_found() -> None:
    found = measure({"q1": ["d1"]}, {"q1": {"d1": 1, "gone": 1}})
    values = values_of(found)
    assert values["recall@100"] == 0.5
    assert values["relevant_not_in_corpus_ids"] == ["gone"]
    assert warnings_of(values) == [
        "relevant documents not in the corpus, counted as not found: 1 (gone)"
    ]


def test_queries_without_text_are_refused_and_listed() -> None:
    qrels = {f"q{i}": {"d1": 1.0} for i in range(7)}
    with pytest.raises(EvaluationError, match=r"7 judged .* \(q0, q1, q2, q3, q4, \.\.\.\)"):
        judge_queries({}, qrels)


def test_judgements_without_anything_relevant_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"none of the 1 judged queries of split 'dev'"):
        judge_queries({"q": "text"}, {"q": {"d": 0}}, split="dev")


def test_the_report_repeats_with_its_seed() -> None:
    rankings = {f"q{i}": ["d1", "d2"] for i in range(40)}
    qrels = {f"q{i}": {f"d{1 + i % 3}": 1.0} for i in range(40)}
    one, other = measure(rankings, qrels), measure(rankings, qrels)
    assert one.intervals == other.intervals
    assert first_relevant_ranks(one) == {
        "1": 14, "2": 13, "3": 0, "4-10": 0, "11-100": 0, "none": 13
    }  # fmt: skip


def test_the_written_files_hold_the_same_numbers(tmp_path: Any) -> None:
    found = measure({"q1": ["d2", "d1"], "q2": []}, {"q1": {"d1": 1}, "q2": {"d<|>": 1}})
    values = values_of(found)
    write_report(tmp_path, found, values)
    report = orjson.loads((tmp_path / "evaluation.json").read_bytes())
    assert report["mrr@10"] == 0.25
    rows = [orjson.loads(line) for line in (tmp_path / "per_query.jsonl").read_bytes().splitlines()]
    assert [(row["query"], row["mrr@10"], row["ranking"]) for row in rows] == [
        ("q1", 0.5, ["d2", "d1"]),
        ("q2", 0.0, []),
    ]
    assert "| mrr@10 | 0.2500 |" in markdown(values, picture="evaluation.svg")
    drawn = "".join(ElementTree.fromstring(picture(values)).itertext())
    assert "0.2500" in drawn
