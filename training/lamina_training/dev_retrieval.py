"""MRR@10 of an encoder that is still in training, by exact search in memory.

The rules are those of `lamina evaluate`, which measures what is exported: every judged query
counts, ties go by id, a hit with the query's own id is no hit. What differs is what runs: the model
in torch rather than the graph, so that a checkpoint need not be exported to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lamina_index.corpus.records import Document
from lamina_index.errors import EvaluationError
from lamina_index.evaluation_inputs import DISTRACTOR_PREFIX, EvaluationInputs, inputs_from_files
from lamina_index.exact import NearestSoFar
from lamina_index.metrics import mean_reciprocal_rank, reciprocal_rank, relevant_ids
from lamina_index.scoring import best_first
from lamina_index.text import normalize_text
from lamina_training.data_rows import read_rows
from lamina_training.duplicates import Half, sha256_half
from lamina_training.embedding import Encode, unit_embeddings

K = 10
_QUERY_BLOCK = 512
_DOCUMENT_BLOCK = 4096


@dataclass(frozen=True)
class RetrievalTask:
    """Queries, what is relevant to each, and the corpus to find it in; texts are normalised.

    Attributes:
        queries: Text by query id, at least one.
        relevant: Relevant document ids by query id, in the order of `queries`.
        documents: Text by document id.
    """

    queries: dict[str, str]
    relevant: dict[str, frozenset[str]]
    documents: dict[str, str]


@dataclass(frozen=True)
class RetrievalScore:
    """How well one encoder does on one task.

    Attributes:
        mrr: Mean reciprocal rank at 10.
        reciprocal_ranks: (Q,) of each query, in the task's order, to compare encoders by pairs.
        run: Up to 10 document ids by query id, best first.
    """

    mrr: float
    reciprocal_ranks: NDArray[np.float64]
    run: dict[str, list[str]]


def read_quora(
    data: Path, split: str, *, distractors: int = 0, half: Half = "odd"
) -> RetrievalTask:
    """Read Quora's duplicate questions from a data folder that holds `quora/`.

    Args:
        data: The folder; with distractors it holds `wiki_sentences/` too.
        split: `dev` or `test`.
        distractors: Wikipedia sentences to add: the first of the half that is not trained on.
        half: That half; see `sha256_half`.

    Raises:
        EvaluationError: If the split is not there, or there are not as many distractors.
        LaminaError: If a file is missing or cannot be read.
    """
    folder = data / "quora" / "ir"
    files = [folder / name for name in ("queries.tsv", "qrels.tsv", "corpus.tsv")]
    task = task_of(inputs_from_files(*files, split=split))
    if not distractors:
        return task
    sentences = data / "wiki_sentences" / "sentences.tsv.gz"
    added = list(islice(_sentences(sentences, half), distractors))
    if len(added) < distractors:
        raise EvaluationError(
            f"{sentences}: has {len(added)} sentences of the {half} half, "
            f"{distractors} distractors were asked for; ask for fewer"
        )
    more = {f"{DISTRACTOR_PREFIX}{place}": text for place, text in enumerate(added)}
    return RetrievalTask(task.queries, task.relevant, {**task.documents, **more})


def task_of(inputs: EvaluationInputs) -> RetrievalTask:
    """Hold the inputs of an evaluation in memory; reads its corpus.

    Raises:
        EvaluationError: If it has no corpus, or a record of it cannot be used.
        LaminaError: If the corpus cannot be read.
    """
    documents: dict[str, str] = {}
    for record in inputs.corpus or ():
        if not isinstance(record, Document):
            raise EvaluationError(f"{record.file}:{record.line}: {record.reason}; mend the record")
        documents[record.id] = normalize_text(record.text)
    if not documents:
        raise EvaluationError(f"{', '.join(inputs.sources)}: no corpus to search")
    return RetrievalTask(
        queries={query: normalize_text(text) for query, text in inputs.judged.texts.items()},
        relevant={query: relevant_ids(grades) for query, grades in inputs.judged.qrels.items()},
        documents=documents,
    )


def sample_task(
    task: RetrievalTask, *, queries: int | None, documents: int | None, seed: int
) -> RetrievalTask:
    """Draw a smaller task, to compare checkpoints while training; it is an easier one.

    Keeps every document that is relevant to a drawn query and fills up with others at random, so
    scores are comparable only between equal samples. The same seed draws the same.

    Args:
        queries: At most so many; None keeps all.
        documents: At most so many, unless more are relevant; None keeps all.

    Raises:
        ValueError: If less than one query is asked for.
    """
    if queries is not None and queries < 1:
        raise ValueError(f"queries must be at least 1, got {queries}")
    rng = np.random.default_rng(seed)
    asked = _draw(rng, list(task.queries), queries)
    relevant = {query: task.relevant[query] for query in asked}
    needed = frozenset().union(*relevant.values())
    others = [name for name in task.documents if name not in needed]
    filling = None if documents is None else max(0, documents - len(needed))
    kept = needed.union(_draw(rng, others, filling))
    return RetrievalTask(
        queries={query: task.queries[query] for query in asked},
        relevant=relevant,
        documents={name: text for name, text in task.documents.items() if name in kept},
    )


def score_retrieval(
    encode: Encode, task: RetrievalTask, *, encode_query: Encode | None = None
) -> RetrievalScore:
    """Search the whole corpus for every query, exactly, and measure the rankings.

    Embeddings of the corpus are held one block at a time, so memory does not grow with it.

    Args:
        encode: Documents to embeddings; queries too, unless the next is given.
        encode_query: For an encoder with different prompts.

    Raises:
        EncoderOutputError: If an embedding is not finite.
    """
    asked = unit_embeddings(encode_query or encode, list(task.queries.values()))
    parts = [
        NearestSoFar(asked[start : start + _QUERY_BLOCK], K + 1)  # one may be the query itself
        for start in range(0, len(asked), _QUERY_BLOCK)
    ]
    ids = list(task.documents)
    for labels, texts in _blocks(task.documents.values()):
        rows = unit_embeddings(encode, texts)
        for part in parts:
            part.add(labels, rows)
    run = {}
    for place, query in enumerate(task.queries):
        block, row = divmod(place, _QUERY_BLOCK)
        scores, found = parts[block].result(row)
        names = [ids[label] for label in found.tolist()]
        ranking = [names[best] for best in best_first(scores.tolist(), names)]
        run[query] = [name for name in ranking if name != query][:K]
    ranks = [reciprocal_rank(run[query], task.relevant[query], k=K) for query in task.queries]
    return RetrievalScore(
        mrr=mean_reciprocal_rank(run, task.relevant, k=K),
        reciprocal_ranks=np.array(ranks, dtype=np.float64),
        run=run,
    )


def _sentences(path: Path, half: Half) -> Iterator[str]:
    texts = (row.text("sentence") for row in read_rows(path, ["sentence"]))
    return (text for text in texts if sha256_half(text) == half)


def _draw(rng: np.random.Generator, names: list[str], count: int | None) -> list[str]:
    """Draw names without repeats; they keep their order."""
    places = rng.permutation(len(names))[:count]
    return [names[place] for place in sorted(places.tolist())]


def _blocks(texts: Iterable[str]) -> Iterator[tuple[NDArray[np.int64], list[str]]]:
    iterator, start = iter(texts), 0
    while block := list(islice(iterator, _DOCUMENT_BLOCK)):
        yield np.arange(start, start + len(block)), block
        start += len(block)
