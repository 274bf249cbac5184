"""Retrieval while training: the ranking by hand, and the same score as other tools give."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

from lamina_index.errors import EvaluationError
from lamina_index.evaluation_inputs import inputs_from_files
from lamina_training.dev_retrieval import (
    RetrievalTask,
    read_quora,
    sample_task,
    score_retrieval,
    task_of,
)
from lamina_training.duplicates import sha256_half
from lamina_training.embedding import encode_with
from lamina_training.known_items import KnownItems


def degrees(texts: Sequence[str]) -> NDArray[np.floating]:
    """Encode a number as the direction of that many degrees."""
    angles = np.radians([float(text) for text in texts])
    return np.column_stack([np.cos(angles), np.sin(angles)])


def around(queries: dict[str, str], relevant: dict[str, str], documents: int = 15) -> RetrievalTask:
    """Documents d00, d01, ... at 0, 1, ... degrees."""
    texts = {f"d{place:02}": str(place) for place in range(documents)}
    return RetrievalTask(queries, {q: frozenset([d]) for q, d in relevant.items()}, texts)


# Acceptance check 12 of the method card: hits at ranks 1, 3, 11 and none.
def test_mrr_is_as_computed_by_hand() -> None:
    queries = dict.fromkeys(("a", "b", "c", "d"), "0")
    task = around(queries, {"a": "d00", "b": "d02", "c": "d10", "d": "absent"})
    score = score_retrieval(degrees, task)
    assert score.mrr == pytest.approx((1 + 1 / 3) / 4)
    assert score.reciprocal_ranks == pytest.approx([1, 1 / 3, 0, 0])
    assert score.run["a"] == [f"d{place:02}" for place in range(10)]


def test_equal_scores_are_ordered_by_id() -> None:
    task = RetrievalTask({"q": "0"}, {"q": frozenset("a")}, {"c": "5", "b": "5", "a": "5"})
    assert score_retrieval(degrees, task).run["q"] == ["a", "b", "c"]


def test_a_document_with_the_querys_id_is_no_hit() -> None:
    task = around({"d00": "0"}, {"d00": "d01"})
    score = score_retrieval(degrees, task)
    assert score.run["d00"] == [f"d{place:02}" for place in range(1, 11)]
    assert score.mrr == 1.0


def test_queries_may_be_encoded_in_another_way() -> None:
    task = around({"q": "0"}, {"q": "d03"})
    score = score_retrieval(degrees, task, encode_query=lambda texts: degrees(["3"] * len(texts)))
    assert score.run["q"][0] == "d03"


def test_a_corpus_of_several_blocks_is_searched_whole() -> None:
    directions = np.random.default_rng(0).normal(size=(9000, 8))
    documents = {f"d{place}": str(place) for place in range(9000)}
    queries = {f"q{place}": str(15 * place) for place in range(600)}
    relevant = {query: frozenset([f"d{text}"]) for query, text in queries.items()}
    task = RetrievalTask(queries, relevant, documents)
    score = score_retrieval(lambda texts: directions[[int(text) for text in texts]], task)
    assert score.mrr == 1.0


def test_the_librarys_evaluator_gives_the_same_score(tiny_source: Path, items: KnownItems) -> None:
    model = SentenceTransformer(str(tiny_source), device="cpu")
    queries = {f"q{place}": text for place, text in enumerate(items.queries)}
    documents = {f"d{place:02}": text for place, text in enumerate(items.documents)}
    relevant = {query: {f"d{place:02}"} for place, query in enumerate(queries)}
    evaluator = InformationRetrievalEvaluator(queries, documents, relevant, mrr_at_k=[10])
    task = RetrievalTask(queries, {q: frozenset(d) for q, d in relevant.items()}, documents)
    score = score_retrieval(
        encode_with(model, role="document"), task, encode_query=encode_with(model, role="query")
    )
    assert 0 < score.mrr < 1
    assert score.mrr == pytest.approx(evaluator(model)["cosine_mrr@10"], abs=1e-6)


def quora(folder: Path) -> Path:
    """One dev and one test query over one corpus, and ten sentences."""
    files = {
        "queries.tsv": "qid\ttext\tsplit\nq1\t1\tdev\nq2\t2\ttest\n",
        "qrels.tsv": "query_qid\tcorpus_qid\tsplit\nq1\td1\tdev\nq2\td2\ttest\n",
        "corpus.tsv": "qid\ttext\nd1\t1\nd2\t 2 \n",
    }
    (folder / "quora" / "ir").mkdir(parents=True)
    for name, content in files.items():
        (folder / "quora" / "ir" / name).write_text(content, encoding="utf-8")
    (folder / "wiki_sentences").mkdir()
    sentences = "".join(f"{number}\n" for number in range(10, 20))
    (folder / "wiki_sentences" / "sentences.tsv.gz").write_bytes(
        gzip.compress(f"sentence\n{sentences}".encode())
    )
    return folder


def test_a_split_has_its_own_queries_over_the_one_corpus(tmp_path: Path) -> None:
    task = read_quora(quora(tmp_path), "dev")
    assert task.queries == {"q1": "1"}
    assert task.relevant == {"q1": frozenset(["d1"])}
    assert task.documents == {"d1": "1", "d2": "2"}


def test_distractors_come_from_the_half_that_is_not_trained_on(tmp_path: Path) -> None:
    task = read_quora(quora(tmp_path), "dev", distractors=3)
    added = [text for name, text in task.documents.items() if name.startswith("distractor:")]
    assert added == [text for text in map(str, range(10, 20)) if sha256_half(text) == "odd"][:3]
    with pytest.raises(EvaluationError, match="11 distractors were asked for; ask for fewer"):
        read_quora(tmp_path, "dev", distractors=11)


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no judgement of split 'train'; it has dev, test"):
        read_quora(quora(tmp_path), "train")


def test_a_corpus_with_a_bad_record_is_named(tmp_path: Path) -> None:
    folder = quora(tmp_path) / "quora" / "ir"
    with (folder / "corpus.tsv").open("a", encoding="utf-8") as stream:
        stream.write("d3\t\n")
    files = [folder / name for name in ("queries.tsv", "qrels.tsv")]
    with pytest.raises(EvaluationError, match=r"corpus\.tsv:4: "):
        task_of(inputs_from_files(*files, folder / "corpus.tsv", split="dev"))
    with pytest.raises(EvaluationError, match="no corpus to search"):
        task_of(inputs_from_files(*files, None, split="dev"))


def test_a_sample_keeps_what_is_relevant_and_is_fixed_by_its_seed() -> None:
    queries = {f"q{place}": str(place) for place in range(10)}
    task = around(queries, {f"q{place}": f"d{place:02}" for place in range(10)}, documents=50)
    sample, same, other = (
        sample_task(task, queries=4, documents=12, seed=seed) for seed in (1, 1, 2)
    )
    assert (len(sample.queries), len(sample.documents)) == (4, 12)
    assert list(sample.relevant) == list(sample.queries)
    assert frozenset().union(*sample.relevant.values()) <= set(sample.documents)
    assert sample == same
    assert sample != other
    assert sample_task(task, queries=99, documents=99, seed=1) == task
    assert sample_task(task, queries=None, documents=None, seed=1) == task
    assert len(sample_task(task, queries=4, documents=1, seed=1).documents) == 4
    with pytest.raises(ValueError, match="queries must be at least 1"):
        sample_task(task, queries=0, documents=1, seed=1)


def test_quora_dev_has_its_published_size(shared_data: Path) -> None:
    task = read_quora(shared_data, "dev", distractors=100)
    assert (len(task.queries), len(task.documents)) == (3284, 94_642 + 100)
    assert sum(map(len, task.relevant.values())) == 5279
