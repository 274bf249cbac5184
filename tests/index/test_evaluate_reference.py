"""Our numbers beside those of sentence-transformers' evaluator on the same vectors."""

from __future__ import annotations

import csv
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.evaluate import evaluate, judge_queries
from lamina_index.exact_corpus import ExactCorpus


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


class GivenVectors:
    """Stands where sentence-transformers expects its model, and returns our vectors."""

    def __init__(self, encoder: OnnxEncoder, corpus: ExactCorpus) -> None:
        self.encoder = encoder
        self.corpus = corpus

    def encode_query(self, texts: Sequence[str], **_: object) -> Any:
        torch = importlib.import_module("torch")
        return torch.from_numpy(self.encoder.encode(texts, role="query").embeddings)

    def encode_document(self, texts: Sequence[str], **_: object) -> Any:
        raise AssertionError("the corpus embeddings are given")


def compare(folder: Path, encoder: OnnxEncoder, *, split: str, documents: int | None) -> None:
    torch = importlib.import_module("torch")
    evaluation = importlib.import_module("sentence_transformers.sentence_transformer.evaluation")
    similarity = importlib.import_module("sentence_transformers.util").cos_sim
    corpus = {row["qid"]: row["text"] for row in read(folder / "corpus.tsv")[:documents]}
    qrels: dict[str, dict[str, float]] = {}
    for row in read(folder / "qrels.tsv"):
        if row["split"] == split and row["corpus_qid"] in corpus:
            qrels.setdefault(row["query_qid"], {})[row["corpus_qid"]] = 1.0
    texts = {row["qid"]: row["text"] for row in read(folder / "queries.tsv")}
    judged = judge_queries(texts, qrels)
    exact = ExactCorpus(encoder, (Document(*item) for item in corpus.items()))
    assert exact.ids == list(corpus)
    ours = evaluate(judged, exact).means
    reference = evaluation.InformationRetrievalEvaluator(
        queries=judged.texts,
        corpus=corpus,
        relevant_docs={query: set(grades) for query, grades in judged.qrels.items()},
        precision_recall_at_k=[1, 10, 100],
        score_functions={"cosine": similarity},
    ).compute_all_metrics(
        GivenVectors(encoder, exact), corpus_embeddings=torch.tensor(exact.embeddings)
    )["cosine"]
    assert ours == pytest.approx(
        {
            "mrr@10": reference["mrr@k"][10],
            "ndcg@10": reference["ndcg@k"][10],
            "recall@1": reference["recall@k"][1],
            "recall@10": reference["recall@k"][10],
            "recall@100": reference["recall@k"][100],
            "map@100": reference["map@k"][100],
        },
        abs=1e-4,
    )


def test_2000_documents_score_as_in_sentence_transformers(
    shared_data: Path, default_encoder: OnnxEncoder
) -> None:
    pytest.importorskip("sentence_transformers")  # an extra; CI fails where it is missing
    compare(shared_data / "quora" / "ir", default_encoder, split="dev", documents=2000)


@pytest.mark.slow
def test_the_whole_quora_test_split_scores_as_in_sentence_transformers(
    shared_data: Path, default_encoder: OnnxEncoder
) -> None:
    pytest.importorskip("sentence_transformers")  # an extra; CI fails where it is missing
    compare(shared_data / "quora" / "ir", default_encoder, split="test", documents=None)
