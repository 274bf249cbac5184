"""Compare encoder folders: search, similarity, speed and size, each beside the first.

python benchmarks/compare_encoders.py default fast=encoders/fast other=encoders/other

- `quora`: MRR@10 on the dev queries of Quora's duplicates, over all questions and 50,000 sentences
  of Wikipedia that no encoder of ours is trained on.
- `qnli`: MRR@10 of the questions of QNLI (GLUE) for the sentence that answers them, over all its
  distinct sentences.
- `stsb`: Spearman's correlation x 100 on STS-B dev.
- `encode`: CPU milliseconds of one thread, tokenising included, for a text alone and in eights.

Differences are paired, query by query or pair by pair, with 95% intervals by bootstrap; these tell
of other questions of the same kind.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from corpora import SHARED_DATA
from harness import RESULTS, alternate, folder_bytes, parser, rounded, write_result
from numpy.typing import NDArray

from lamina_index.encoder import OnnxEncoder
from lamina_training.data_rows import read_rows
from lamina_training.dev_retrieval import RetrievalTask, read_quora, sample_task, score_retrieval
from lamina_training.embedding import Encode
from lamina_training.sts import read_stsb, spearman

DISTRACTORS = 50_000
RESAMPLES = 1_000
ROUNDS = 5
TIMED_TEXTS = 256
EIGHT = 8

Values = NDArray[np.float64]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("encoders", nargs="+", type=named, help="NAME or NAME=FOLDER")
    arguments = options.parse_args()
    contestants: dict[str, str] = dict(arguments.encoders)
    tasks = {
        "quora": read_quora(SHARED_DATA, "dev", distractors=DISTRACTORS),
        "qnli": read_qnli(SHARED_DATA),
    }
    if arguments.small:
        tasks = {n: sample_task(t, queries=50, documents=500, seed=0) for n, t in tasks.items()}
    pairs = read_stsb(SHARED_DATA, "dev")
    measured: dict[str, dict[str, Values]] = {}
    results: dict[str, Any] = {}
    for name, folder in contestants.items():
        print(name, file=sys.stderr)
        with closing(OnnxEncoder.load(folder)) as encoder:
            embed = embedding_of(encoder, "document")
            asked = embedding_of(encoder, "query")
            first, second = embed(pairs.first), embed(pairs.second)
            measured[name] = {
                task: score_retrieval(embed, each, encode_query=asked).reciprocal_ranks
                for task, each in tasks.items()
            } | {"stsb": np.vecdot(first, second).astype(np.float64)}
            results[name] = {
                "precision": encoder.precision,
                "fingerprint": encoder.fingerprint,
                "mb": rounded(folder_bytes(Path(encoder.folder)) / 1e6),
            }
    reference = measured[next(iter(contestants))]
    for name, values in measured.items():
        for task in tasks:
            results[name][task] = compare(values[task], reference[task], mean)
        results[name]["stsb"] = compare(
            values["stsb"], reference["stsb"], lambda cosines, rows: stsb(cosines, pairs.gold[rows])
        )
    texts = list(tasks["quora"].queries.values())[:TIMED_TEXTS]
    for name, times in time_encoders(contestants, texts, 1 if arguments.small else ROUNDS).items():
        results[name]["encode"] = times
    settings = {
        "documents": {name: len(task.documents) for name, task in tasks.items()},
        "queries": {name: len(task.queries) for name, task in tasks.items()},
        "stsb_pairs": len(pairs.gold),
    }
    write_result(arguments.output or RESULTS / "encoders.json", settings, results)
    print(json.dumps(results, indent=1))


def named(text: str) -> tuple[str, str]:
    """Read NAME or NAME=FOLDER."""
    name, _, folder = text.partition("=")
    if not name:
        raise ArgumentTypeError(f"{text!r}: expected NAME or NAME=FOLDER")
    return name, folder or name


def read_qnli(data: Path) -> RetrievalTask:
    """Make a search task of QNLI: its entailed questions, and every sentence that occurs."""
    sentences: dict[str, str] = {}
    queries: dict[str, str] = {}
    relevant: dict[str, frozenset[str]] = {}
    asked: dict[str, str] = {}
    for split in ("train", "dev"):
        path = data / "classification" / "qnli" / f"{split}.tsv"
        for row in read_rows(path, ["label", "question", "sentence"]):
            sentence, question = row.text("sentence"), row.text("question")
            document = sentences.setdefault(sentence, f"s{len(sentences)}")
            if row.name("label") == "entailment":
                query = asked.setdefault(question, f"q{len(asked)}")
                queries[query] = question
                relevant[query] = relevant.get(query, frozenset()) | {document}
    return RetrievalTask(queries, relevant, {name: text for text, name in sentences.items()})


def embedding_of(encoder: OnnxEncoder, role: Any) -> Encode:
    """Encode texts in a role."""
    return lambda texts: encoder.encode(texts, role=role).embeddings


def mean(values: Values, _: NDArray[np.int64]) -> float:
    """Average over the queries of a sample."""
    return float(values.mean())


def stsb(cosines: Values, gold: Values) -> float:
    """Correlate the pairs of a sample."""
    return 100 * spearman(cosines, gold)


def compare(
    values: Values, reference: Values, score: Callable[[Values, NDArray[np.int64]], float]
) -> dict[str, float]:
    """Score one encoder, and its difference to another, on the same resamples of the queries."""
    rng = np.random.default_rng(0)
    everything = np.arange(len(values))
    found, differences = score(values, everything), []
    for _ in range(RESAMPLES):
        rows = rng.integers(0, len(values), len(values))
        differences.append(score(values[rows], rows) - score(reference[rows], rows))
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return {
        "score": round(found, 5),
        "difference": round(found - score(reference, everything), 5),
        "low": round(low, 5),
        "high": round(high, 5),
    }


def time_encoders(
    contestants: dict[str, str], texts: Sequence[str], rounds: int
) -> dict[str, dict[str, float]]:
    """Time each encoder in one thread, in alternation, on the same texts."""
    encoders = {n: OnnxEncoder.load(folder, threads=1) for n, folder in contestants.items()}
    alone: dict[str, list[float]] = {name: [] for name in contestants}
    eights: dict[str, list[float]] = {name: [] for name in contestants}
    for encoder in encoders.values():
        encoder.encode(texts[:EIGHT], role="query")
    for _, name in alternate(list(contestants), rounds):
        for times, size in ((alone, 1), (eights, EIGHT)):
            started = time.thread_time()
            for start in range(0, len(texts), size):
                encoders[name].encode(texts[start : start + size], role="query")
            times[name].append((time.thread_time() - started) * 1000 / len(texts))
    for encoder in encoders.values():
        encoder.close()
    first = next(iter(contestants))
    return {
        name: {
            "alone_cpu_ms": rounded(statistics.median(alone[name])),
            "eights_cpu_ms": rounded(statistics.median(eights[name])),
            "times_as_fast": rounded(ratio(alone, first, name)),
            "times_as_fast_in_eights": rounded(ratio(eights, first, name)),
        }
        for name in contestants
    }


def ratio(times: dict[str, list[float]], first: str, name: str) -> float:
    """How many times as fast as the first, in the median."""
    return statistics.median(times[first]) / statistics.median(times[name])


if __name__ == "__main__":
    main()
