"""Gather texts to distil an encoder on that may be bundled: their terms allow it.

python training/recipes/distil_texts.py ../shared/data build/distil/groups.tsv

- sentences of Wikipedia (CC BY-SA), of the even half alone; the odd one is kept for distractors;
- premises and hypotheses of SNLI's dev and test parts and of a dev part of MNLI, which are training
  material here: no NLI score is taken on them;
- what is made up of each: questions, that is an opening that people begin questions with and some
  words in a row; the same with another opening, a word less, a word changed; a part of the text.

A row has a text and what is made up of it, eight in all: near each other, as the questions are
that a search must tell apart. None needs sense; the teacher tells where they lie. Words that come
into a text are drawn from all distinct words, so that rare ones are seen.

Nothing of Quora, SICK, XNLI, MRPC, Flickr's captions as such, or any set that is measured is read.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from lamina_training.data_rows import read_rows
from lamina_training.duplicates import sha256_half

NLI_SOURCES = ("snli_dev", "snli_test", "mnli_dev")
OPENINGS = (
    *("What is", "What are", "What is the best way to", "What are some", "What does", "What"),
    *("What are the best", "What is it like to", "What are the benefits of", "What is your"),
    *("What should I do if", "What would happen if", "What is the difference between"),
    *("How do I", "How can I", "How does", "How do you", "How much", "How long does it take to"),
    *("How should I", "How many", "How is", "How would", "How"),
    *("Why do", "Why is", "Why are", "Why does", "Why don't", "Which is the best", "Which"),
    *("Where can I find", "Where is", "Who is", "Who", "When did", "When will"),
    *("Is it possible to", "Is there a", "Is", "Are there any", "Are", "Can I", "Can you"),
    *("Should I", "Does", "Do", "Did", "Will", "I want to know", "Has anyone"),
)
COLUMNS = (
    *("text", "question", "reworded", "changed", "shorter", "other_question", "part", "mixed"),
)
FEWEST_WORDS, MOST_WORDS = 3, 10


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("data", type=Path, help="folder of wiki_sentences/ and nli/")
    options.add_argument("output", type=Path, help="TSV file to write")
    options.add_argument("--sentences", type=int, help="at most so many of Wikipedia's")
    options.add_argument("--rows", type=int, help="write only so many, drawn at random")
    arguments = options.parse_args()
    rng = random.Random(0)  # noqa: S311 - draws texts, no secrets
    sentences = islice(even_sentences(arguments.data), arguments.sentences)
    texts = list(dict.fromkeys([*sentences, *inference_texts(arguments.data)]))
    words = sorted({word for text in texts for word in words_of(text)})
    if arguments.rows is not None:
        texts = random.Random(1).sample(texts, min(arguments.rows, len(texts)))  # noqa: S311 - as above
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with arguments.output.open("w", encoding="utf-8") as file:
        file.write("\t".join(COLUMNS) + "\n")
        for text in texts:
            file.write("\t".join(group(rng, text, words)) + "\n")
    sys.stderr.write(f"{arguments.output}: {len(texts)} rows of {len(COLUMNS)} texts\n")


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


def group(rng: random.Random, text: str, words: Sequence[str]) -> list[str]:
    """Make the texts of a row: see `COLUMNS`."""
    own = words_of(text)
    span, other = span_of(rng, own), span_of(rng, own)
    opening, another = rng.sample(OPENINGS, 2)
    less = without_one(rng, span)
    mixed = changed(rng, changed(rng, changed(rng, span, words), words), words)
    return [
        text,
        ask(opening, span),
        ask(another, span),
        ask(opening, changed(rng, span, words)),
        ask(rng.choice((opening, another)), less),
        ask(rng.choice(OPENINGS), other),
        " ".join(span_of(rng, own, most=2 * MOST_WORDS)),
        ask(rng.choice(OPENINGS), mixed),
    ]


def words_of(text: str) -> list[str]:
    """Split a text at spaces, without the marks around its words."""
    return [word for part in text.split() if (word := part.strip('.,;:?!"()'))] or [text]


def span_of(rng: random.Random, words: Sequence[str], most: int = MOST_WORDS) -> list[str]:
    """Draw some words in a row."""
    length = rng.randint(FEWEST_WORDS, most)
    start = rng.randrange(max(1, len(words) - length + 1))
    return list(words[start : start + length])


def changed(rng: random.Random, span: Sequence[str], words: Sequence[str]) -> list[str]:
    """Put a random word in the place of one."""
    place = rng.randrange(len(span))
    return [*span[:place], rng.choice(words), *span[place + 1 :]]


def without_one(rng: random.Random, span: Sequence[str]) -> list[str]:
    """Leave one word out, unless it is the only one."""
    place = rng.randrange(len(span))
    return [*span[:place], *span[place + 1 :]] or list(span)


def ask(opening: str, span: Sequence[str]) -> str:
    """Make a question."""
    return f"{opening} {' '.join(span)}?"


if __name__ == "__main__":
    main()
