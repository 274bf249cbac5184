"""The texts that the benchmarks index and search, as TSV files with the columns qid and text."""

from __future__ import annotations

import ast
import csv
import gzip
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from harness import ENCODER, REPOSITORY, shown

SHARED_DATA = Path(os.environ.get("SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
QUORA = SHARED_DATA / "quora" / "ir"
WIKI = SHARED_DATA / "wiki_sentences" / "sentences.tsv.gz"

T = TypeVar("T")


@dataclass(frozen=True)
class Corpus:
    """A TSV file with the columns qid and text, and distinct queries for it."""

    name: str
    path: Path
    documents: int
    queries: tuple[str, ...]

    def is_indexed(self, index: Path) -> bool:
        """Tell whether an index of this corpus lies there, from this or an earlier benchmark."""
        mark = _mark(index)
        return index.is_dir() and mark.is_file() and mark.read_text("utf-8") == self._label()

    def set_indexed(self, index: Path) -> None:
        """Note that an index is complete, so that another benchmark can use it."""
        _mark(index).write_text(self._label(), "utf-8")

    def _label(self) -> str:
        encoder = sha256(ENCODER.joinpath("encoder.json").read_bytes()).hexdigest()
        return f"{self.documents} documents of {self.name}, encoder {encoder}\n"


def quora_corpus(work: Path, documents: int | None = None) -> Corpus:
    """Give the Quora questions, or an even sample of them, with the test split's queries first.

    Raises:
        SystemExit: If the data set is not on this machine.
    """
    if not QUORA.is_dir():
        raise SystemExit(f"no Quora questions at {shown(QUORA)}; set SHARED_DATA or --small")
    with open(QUORA / "queries.tsv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows.sort(key=lambda row: row["split"] != "test")
    queries = tuple(dict.fromkeys(row["text"] for row in rows))
    header, *lines = (QUORA / "corpus.tsv").read_text(encoding="utf-8").splitlines()
    if documents is None or documents >= len(lines):
        return Corpus("Quora questions", QUORA / "corpus.tsv", len(lines), queries)
    lines = even_sample(lines, documents)
    path = work / f"quora-{documents}.tsv"
    _write_lines(path, [header, *lines])
    return Corpus("Quora questions, a sample", path, len(lines), queries)


def wiki_corpus(work: Path, documents: int) -> Corpus:
    """Give the first sentences of the Wikipedia set, numbered."""
    path = work / f"wiki-{documents}.tsv"
    with gzip.open(WIKI, "rt", encoding="utf-8") as file:
        next(file)
        lines = [
            f"w{number}\t{sentence.rstrip()}"
            for number, sentence in zip(range(documents), file, strict=False)
        ]
    _write_lines(path, ["qid\ttext", *lines])
    return Corpus("Wikipedia sentences", path, len(lines), ())


def small_corpus(work: Path, documents: int = 100) -> Corpus:
    """Give first paragraphs of the standard library's documentation, which every machine has."""
    texts: dict[str, None] = {}
    for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(source.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (
                doc := ast.get_docstring(node)
            ):
                texts[" ".join(doc.split("\n\n")[0].split())] = None
        if len(texts) >= documents:
            break
    chosen = [text for text in texts if len(text) > 20][:documents]
    path = work / "small.tsv"
    _write_lines(path, ["qid\ttext", *(f"d{row}\t{text}" for row, text in enumerate(chosen))])
    queries = tuple(dict.fromkeys(" ".join(text.split()[:8]) for text in chosen))
    return Corpus("standard library documentation", path, len(chosen), queries)


def read_texts(corpus: Path) -> tuple[list[str], list[str]]:
    """Read ids and texts of a corpus file."""
    with open(corpus, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["qid"] for row in rows], [row["text"] for row in rows]


def write_queries(path: Path, queries: Sequence[str]) -> None:
    """Write queries as a corpus file."""
    _write_lines(path, ["qid\ttext", *(f"q{row}\t{text}" for row, text in enumerate(queries))])


def even_sample(texts: Sequence[T], size: int) -> list[T]:
    """Take items at even distances, all of them if there are not more."""
    size = min(size, len(texts))
    return [texts[number * len(texts) // size] for number in range(size)]


def base_weights() -> Path:
    """Give the folder of all-MiniLM-L6-v2, which the bundled encoder was made from."""
    from lamina_training.weights import MINILM_L6, fetch_weights

    return fetch_weights(MINILM_L6, REPOSITORY / "weights")


def _mark(index: Path) -> Path:
    return index.with_name(f"{index.name}.corpus")


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
