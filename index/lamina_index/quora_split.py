"""Retrieval of duplicate questions, built from Quora's public release of question pairs.

The release (January 2017, Quora's terms of service, non-commercial use) labels 404,290 pairs. Here
the duplicate pairs join questions into clusters; of each cluster one question, drawn by seed, is a
query, its relevant documents are the rest of the cluster, and the corpus is every other question.
"""

from __future__ import annotations

import csv
import hashlib
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.error import URLError

import numpy as np
import orjson

from lamina_index.errors import EvaluationError
from lamina_index.text import normalize_text, repair_text

RELEASE_FILE = "quora_duplicate_questions.tsv"
RELEASE_URL = f"https://qim.fs.quoracdn.net/{RELEASE_FILE}"
RELEASE_SIZE_BYTES = 58_176_133
RELEASE_SHA256 = "b3350dbb1d98db1f5abca85d736ba514bf4da253fae53939303d79fe921ec7c8"
"""As recorded by Hugging Face's `datasets` (datasets/quora/dataset_infos.json, 404,290 rows)."""

COLUMNS = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
QUERY_SPLIT = "test"


@dataclass(frozen=True)
class QuoraSplit:
    """Queries, judgements and corpus made from the release; every question stands in one place.

    Attributes:
        corpus: Text by question id, in the order of the release.
        queries: Text by question id, one for each cluster of two or more questions.
        qrels: Relevant ids by query id, each of grade 1.
        skipped_rows: Pairs left out because a side has no text.
        merged_questions: Ids left out because their text already stands under another id.
        crossed_pairs: Pairs labelled "not duplicate" whose questions share a cluster all the same.
    """

    corpus: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, float]]
    skipped_rows: int
    merged_questions: int
    crossed_pairs: int

    def write(self, folder: Path) -> None:
        """Write the split in BEIR's layout, which `lamina evaluate --beir` reads."""
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        for name, texts in (("corpus", self.corpus), ("queries", self.queries)):
            with (folder / f"{name}.jsonl").open("wb") as stream:
                for question, text in texts.items():
                    stream.write(orjson.dumps({"_id": question, "text": text}) + b"\n")
        with (folder / "qrels" / f"{QUERY_SPLIT}.tsv").open("w", encoding="utf-8") as table:
            table.write("query-id\tcorpus-id\tscore\n")
            for query, grades in self.qrels.items():
                table.writelines(f"{query}\t{document}\t1\n" for document in grades)


@dataclass
class _Questions:
    """Union-find over question ids; the root of a cluster is its first question."""

    texts: dict[str, str] = field(default_factory=dict)
    known_as: dict[str, str] = field(default_factory=dict)
    first_of_text: dict[str, str] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)

    def add(self, question: str, text: str) -> str:
        """Register a question; give the id that its text is known by."""
        if question not in self.known_as:
            first = self.first_of_text.setdefault(normalize_text(text), question)
            self.known_as[question] = first
            if first == question:
                self.texts[question] = repair_text(text)
                self.parents[question] = question
        return self.known_as[question]

    def root(self, question: str) -> str:
        while (parent := self.parents[question]) != question:
            self.parents[question] = self.parents[parent]  # halve the path
            question = parent
        return question

    def join(self, one: str, other: str) -> None:
        self.parents[self.root(other)] = self.root(one)


def build_split(release: Path, *, seed: int) -> QuoraSplit:
    """Read the release and split it.

    Duplicates are taken as transitive. Ids whose text is equal after normalisation are one
    question, known by the first id, so that no query has its own copy in the corpus.

    Args:
        release: `quora_duplicate_questions.tsv`; a comma-separated file with the same columns
            (Kaggle's `train.csv`) is read as well.
        seed: Decides which question of a cluster is the query.

    Raises:
        EvaluationError: If the file cannot be read, has other columns or holds no duplicates.
    """
    questions = _Questions()
    apart: list[tuple[str, str]] = []
    skipped = 0
    for _, qid1, qid2, text1, text2, label in _read_rows(release):
        if not normalize_text(text1) or not normalize_text(text2):
            skipped += 1
            continue
        one, other = questions.add(qid1, text1), questions.add(qid2, text2)
        if label == "1":
            questions.join(one, other)
        else:
            apart.append((one, other))
    clusters: dict[str, list[str]] = {}
    for question in questions.texts:
        clusters.setdefault(questions.root(question), []).append(question)
    rng = np.random.default_rng(seed)
    qrels: dict[str, dict[str, float]] = {}
    for members in clusters.values():
        if len(members) > 1:
            query = members.pop(int(rng.integers(len(members))))
            qrels[query] = dict.fromkeys(members, 1.0)
    if not qrels:
        raise EvaluationError(f"{release}: no pair of different questions is labelled 1")
    return QuoraSplit(
        corpus={
            question: text for question, text in questions.texts.items() if question not in qrels
        },
        queries={query: questions.texts[query] for query in qrels},
        qrels=qrels,
        skipped_rows=skipped,
        merged_questions=len(questions.known_as) - len(questions.texts),
        crossed_pairs=sum(questions.root(one) == questions.root(other) for one, other in apart),
    )


def find_release(path: Path) -> Path:
    """Give the release file, downloading it to `path` if nothing is there yet.

    Raises:
        EvaluationError: If it cannot be downloaded or is not the file that was published.
    """
    if path.exists():
        return path
    partial = path.with_name(path.name + ".part")
    try:
        with urllib.request.urlopen(RELEASE_URL, timeout=30) as reply, partial.open("wb") as stream:
            shutil.copyfileobj(reply, stream, 1 << 20)
        with partial.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != RELEASE_SHA256:
            raise EvaluationError(
                f"{RELEASE_URL}: got {partial.stat().st_size:,} bytes of sha256 {found[:12]}, "
                f"expected {RELEASE_SIZE_BYTES:,} of {RELEASE_SHA256[:12]}; get the file elsewhere "
                "and give its path to --quora"
            )
        partial.replace(path)
    except (OSError, URLError) as error:
        raise EvaluationError(
            f"{path}: no such file, and downloading {RELEASE_URL} failed ({error}); copy the "
            f"release here from a machine with a network, or give Kaggle's train.csv"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return path


def _read_rows(release: Path) -> Iterator[list[str]]:
    """Yield the six fields of each pair; RFC 4180 quoting, tabs or commas by the header."""
    try:
        with release.open(encoding="utf-8-sig", newline="") as stream:
            yield from _checked_rows(release, stream)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EvaluationError(f"{release}: cannot be read ({error})") from error


def _checked_rows(release: Path, stream: TextIO) -> Iterator[list[str]]:
    header = stream.readline()
    delimiter = "\t" if "\t" in header else ","
    columns = tuple(next(csv.reader([header], delimiter=delimiter), []))
    if columns != COLUMNS:
        raise EvaluationError(
            f"{release}: columns {', '.join(columns)}; expected {', '.join(COLUMNS)}: give the "
            "public release of question pairs"
        )
    rows = csv.reader(stream, delimiter=delimiter, strict=True)
    for row in rows:
        if len(row) != len(COLUMNS) or row[-1] not in {"0", "1"}:
            raise EvaluationError(
                f"{release}:{rows.line_num + 1}: {len(row)} fields ending in {row[-1:]}, expected "
                f"{len(COLUMNS)} with is_duplicate 0 or 1; the file is cut or its quoting altered"
            )
        yield row
