"""Make the pairs that a reranker is trained on, and a search task to measure it, out of QNLI.

python training/recipes/reranker_qnli.py ../shared/data build/reranker

Writes `train.tsv` and `dev.tsv` (label, question, sentence) and, for `lamina evaluate`,
`corpus.tsv`, `queries.tsv` and `qrels.tsv`: the entailed questions of the dev split, to be found
among all distinct sentences of both splits.

QNLI's own negatives come from the paragraph that a question was asked about. A reranker meets what
a search has found, so each question of the train split also gets some sentences that the bundled
encoder ranks high and that do not answer it. No question of the dev split is in `train.tsv`;
sentences are, since the splits share paragraphs.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lamina_index.encoder import OnnxEncoder
from lamina_training.data_rows import read_rows

Pair = tuple[str, str, str]

ANSWERS, DOES_NOT = "entailment", "not_entailment"
MINED_FROM = slice(0, 30)
"""Ranks that negatives are drawn from: about as deep as a search reranks."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("data", type=Path, help="folder of classification/qnli/")
    options.add_argument("output", type=Path, help="folder to write to")
    options.add_argument("--negatives", type=int, default=2, help="mined for each question")
    arguments = options.parse_args()
    train, dev = (read_pairs(arguments.data, split) for split in ("train", "dev"))
    rng = random.Random(0)  # noqa: S311 - draws texts, no secrets
    mined = list(mine(train, arguments.negatives, rng))
    rows = [*train, *mined]
    rng.shuffle(rows)
    arguments.output.mkdir(parents=True, exist_ok=True)
    names = {text: f"s{place}" for place, text in enumerate(sentences([*train, *dev]))}
    answered = [(question, text) for label, question, text in dev if label == ANSWERS]
    asked = {text: f"q{place}" for place, text in enumerate(dict.fromkeys(q for q, _ in answered))}
    judged = [(asked[question], names[text], "1") for question, text in answered]
    for name, header, lines in (
        ("train", ("label", "question", "sentence"), rows),
        ("dev", ("label", "question", "sentence"), dev),
        ("corpus", ("id", "text"), [(name, text) for text, name in names.items()]),
        ("queries", ("id", "text"), [(name, text) for text, name in asked.items()]),
        ("qrels", ("query", "document", "grade"), judged),
    ):
        write(arguments.output / f"{name}.tsv", header, lines)
        sys.stderr.write(f"{arguments.output / name}.tsv: {len(lines)} rows\n")


def read_pairs(data: Path, split: str) -> list[Pair]:
    """Read label, question and sentence of each row."""
    path = data / "classification" / "qnli" / f"{split}.tsv"
    rows = read_rows(path, ["label", "question", "sentence"])
    return [(row.name("label"), row.text("question"), row.text("sentence")) for row in rows]


def sentences(pairs: Iterable[Pair]) -> list[str]:
    """List the distinct sentences, in their order."""
    return list(dict.fromkeys(text for _, _, text in pairs))


def mine(pairs: Sequence[Pair], count: int, rng: random.Random) -> Iterator[Pair]:
    """Yield for each answered question some sentences that rank high and are not in its rows."""
    documents = sentences(pairs)
    own: dict[str, set[str]] = {}
    for _, question, text in pairs:
        own.setdefault(question, set()).add(text)
    questions = list(dict.fromkeys(question for label, question, _ in pairs if label == ANSWERS))
    encoder = OnnxEncoder.load("default")
    asked = encoder.encode(questions, role="query").embeddings
    found = encoder.encode(documents, role="document").embeddings
    for question, scores in zip(questions, asked @ found.T, strict=True):
        near = [documents[place] for place in np.argsort(-scores)[MINED_FROM].tolist()]
        others = [text for text in near if text not in own[question]]
        for text in rng.sample(others, min(count, len(others))):
            yield DOES_NOT, question, text


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a TSV file; normalised texts hold neither tab nor line break."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in [header, *rows])


if __name__ == "__main__":
    main()
