"""Gather texts to distil an encoder on that may be bundled: their terms allow it.

python training/recipes/distil_texts.py ../shared/data build/distil/texts.tsv

- sentences of Wikipedia (CC BY-SA), of the even half alone; the odd one is kept for distractors;
- premises and hypotheses of SNLI and MNLI;
- questions made up here: an opening that people begin questions with, and some words in a row of
  such a sentence. They need no sense; the teacher tells where they lie, and the student sees
  questions, of which the other sources have few.

Nothing of Quora, SICK, XNLI, MRPC, Flickr or any dev and test split is read.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from lamina_training.data_rows import read_rows
from lamina_training.duplicates import sha256_half

NLI_SOURCES = ("snli_dev", "snli_test", "mnli_dev")
OPENINGS = (
    *("What is", "What are", "What is the best way to", "What are some", "What does"),
    *("What should I do if", "What would happen if", "What is the difference between"),
    *("How do I", "How can I", "How does", "How do you", "How much", "How long does it take to"),
    *("Why do", "Why is", "Why are", "Why does", "Which is the best", "Where can I find"),
    *("Who is", "When did", "Is it possible to", "Is there a", "Can I", "Should I", "Does"),
    *("I want to know", "Has anyone"),
)
FEWEST_WORDS, MOST_WORDS = 3, 10


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("data", type=Path, help="folder of wiki_sentences/ and nli/")
    options.add_argument("output", type=Path, help="TSV file to write, one column")
    options.add_argument("--sentences", type=int, default=80_000)
    options.add_argument("--questions", type=int, default=100_000)
    arguments = options.parse_args()
    rng = random.Random(0)  # noqa: S311 - draws texts, no secrets
    sentences = list(islice(even_sentences(arguments.data), arguments.sentences))
    inferences = list(inference_texts(arguments.data))
    spans = sentences + inferences
    questions = [question(rng, rng.choice(spans)) for _ in range(arguments.questions)]
    texts = list(dict.fromkeys([*sentences, *inferences, *questions]))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("w", encoding="utf-8") as file:
        file.write("text\n")
        file.writelines(f"{text}\n" for text in texts)
    sys.stderr.write(f"{arguments.output}: {len(texts)} texts\n")


def even_sentences(data: Path) -> Iterator[str]:
    """Yield Wikipedia's sentences of the half that may be trained on."""
    for row in read_rows(data / "wiki_sentences" / "sentences.tsv.gz", ["sentence"]):
        text = row.text("sentence")
        if sha256_half(text) == "even":
            yield text


def inference_texts(data: Path) -> Iterator[str]:
    """Yield premises and hypotheses."""
    for row in read_rows(data / "nli" / "pairs.tsv", ["source", "premise", "hypothesis"]):
        if row.name("source") in NLI_SOURCES:
            yield row.text("premise")
            yield row.text("hypothesis")


def question(rng: random.Random, text: str) -> str:
    """Ask about some words in a row of a text."""
    words = text.rstrip(".?!").split()
    length = rng.randint(FEWEST_WORDS, MOST_WORDS)
    start = rng.randrange(max(1, len(words) - length + 1))
    span = " ".join(words[start : start + length]).strip(" ,;:")
    return f"{rng.choice(OPENINGS)} {span}?"


if __name__ == "__main__":
    main()
