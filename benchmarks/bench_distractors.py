"""MRR@10 on Quora's test queries with 400,000 Wikipedia sentences in the corpus, int8 and fp32.

int8 embeds everything. fp32, which takes five times as long, embeds Quora and those sentences alone
that int8 ranks among its 100 best of any query. `deepest` tells that none is missed: the deepest
place in int8's ranking at which one of fp32's ten best stands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_quality import fp32_encoder
from corpora import QUORA, wiki_corpus
from harness import RESULTS, parser, write_result

from lamina_index.corpus import Document, Rejected
from lamina_index.encoder import OnnxEncoder
from lamina_index.evaluate import Evaluation, evaluate
from lamina_index.evaluation_inputs import (
    DISTRACTOR_PREFIX,
    EvaluationInputs,
    inputs_from_files,
    with_distractors,
)
from lamina_index.exact_corpus import ExactCorpus

DISTRACTORS = 400_000
METRICS = ("mrr@10", "ndcg@10", "recall@1", "recall@10", "recall@100", "map@100")
FEW = 2_000


def main() -> None:
    arguments = parser(__doc__).parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    wiki = wiki_corpus(work, FEW if arguments.small else DISTRACTORS)
    inputs = with_distractors(quora(), [wiki.path])
    int8 = measure("default", inputs)
    ranked = {document for ranking in int8.run.values() for document in ranking}
    near = {document for document in ranked if document.startswith(DISTRACTOR_PREFIX)}
    again = with_distractors(quora(), [wiki.path])
    fp32 = measure(str(fp32_encoder(work)), replace(again, corpus=only(again, near)))
    settings = {"distractors": wiki.documents, "queries": len(int8.run)}
    results = {
        "int8": numbers(int8),
        "fp32": numbers(fp32) | {"documents": int8.facts["documents"]},
        "embedded_in_fp32": fp32.facts["documents"],
        "deepest": deepest(int8.run, fp32.run),
    }
    write_result(arguments.output or RESULTS / "distractors.json", settings, results)


def quora() -> EvaluationInputs:
    """Read the test split."""
    files = [QUORA / name for name in ("queries.tsv", "qrels.tsv", "corpus.tsv")]
    return inputs_from_files(*files, split="test")


def measure(folder: str, inputs: EvaluationInputs) -> Evaluation:
    """Embed a corpus and search it exactly."""
    print(f"{folder}: embedding", file=sys.stderr)
    with closing(OnnxEncoder.load(folder)) as encoder:
        return evaluate(inputs.judged, ExactCorpus(encoder, inputs.corpus or ()))


def only(inputs: EvaluationInputs, near: set[str]) -> Iterator[Document | Rejected]:
    """Leave out the distractors that are not near any query."""
    for record in inputs.corpus or ():
        far = isinstance(record, Document) and record.id.startswith(DISTRACTOR_PREFIX)
        if not far or record.id in near:
            yield record


def numbers(found: Evaluation) -> dict[str, Any]:
    """Give the means, and the interval of the first."""
    low, high = found.intervals["mrr@10"]
    return {
        **{name: round(found.means[name], 7) for name in METRICS},
        "mrr@10_low": round(low, 7),
        "mrr@10_high": round(high, 7),
        "queries": len(found.run),
        "documents": found.facts["documents"],
    }


def deepest(reference: dict[str, list[str]], run: dict[str, list[str]]) -> int:
    """Tell at which place of the reference's rankings one of the ten best of `run` stands at most.

    A document of Quora that the reference has not at all counts nothing: `run` has seen it.
    """
    places = [0]
    for query, ranking in run.items():
        place = {document: n for n, document in enumerate(reference[query], start=1)}
        places += [place[document] for document in ranking[:10] if document in place]
    return max(places)


if __name__ == "__main__":
    main()
