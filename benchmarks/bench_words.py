"""Search by words beside search by meaning and both together, with the int8 encoder.

Two tasks, each with queries that choices were made on (dev) and queries that were not (test):

- Quora duplicates, dev and test split, in 94,642 questions.
- QNLI: the questions that a sentence answers, in all distinct sentences of the set. The questions
  of its dev file count as dev here, those of its train file as test; nothing was trained on either.

What is in the result:

- `modes`: MRR@10 of dense, lexical and hybrid search as served by default, and the difference of
  hybrid to dense with its 95% interval by the paired bootstrap over queries.
- `fusions`: on dev, the same difference for both ways to join the two and several weights. The
  default was chosen from these.
- `budgets`: on a sample of Quora dev, lexical MRR@10 and CPU milliseconds a query against the rows
  that the leading words may match; the last line lets every word lead, which is plain BM25.
- `store`: bytes and CPU seconds of writing the questions with their vectors, with the word index
  and without it.
"""

from __future__ import annotations

import csv
import shutil
import sqlite3
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from corpora import QUORA, SHARED_DATA, Corpus, even_sample, quora_corpus
from harness import LAMINA, RESULTS, parser, rounded, run_measured, write_result
from numpy.typing import NDArray

from lamina_index import words
from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.fusion import reciprocal_rank_fusion, score_fusion
from lamina_index.metrics import reciprocal_rank
from lamina_index.query_encoding import EncodedQuery, encode_queries
from lamina_index.ranking import LEG_DEPTH
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import STORE_FILE, DocumentStore
from lamina_index.store_words import drop_words

QNLI = SHARED_DATA / "classification" / "qnli"
WEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
MODES = ("dense", "lexical", "hybrid")
BUDGETS = (500, 1000, 2000, 4000, 8000)
BUDGET_QUERIES = 400
WRITTEN_TOGETHER = 1024

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Judged queries for one collection."""

    name: str
    queries: dict[str, str]
    relevant: dict[str, set[str]]

    def encoded(self, encoder: OnnxEncoder) -> list[EncodedQuery]:
        """Encode the queries."""
        texts = list(self.queries.values())
        parts = (texts[start : start + 256] for start in range(0, len(texts), 256))
        return [query for part in parts for query in encode_queries(encoder, part)]

    def sample(self, size: int) -> Task:
        """Take so many of the queries, or all if there are fewer."""
        names = even_sample(sorted(self.queries), size)
        return Task(self.name, {name: self.queries[name] for name in names}, self.relevant)

    def judge(self, rankings: Sequence[Sequence[str]]) -> Values:
        """Reciprocal rank of each query's ranking, in order."""
        pairs = zip(self.queries, rankings, strict=True)
        return np.array([reciprocal_rank(run, self.relevant[name], k=10) for name, run in pairs])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--queries", type=int, help="at most so many of each split, drawn evenly")
    arguments = options.parse_args()
    if arguments.small:
        raise SystemExit("judged queries need the whole corpus; there is no --small here")
    work: Path = arguments.work
    encoder = OnnxEncoder.load("default")
    results: dict[str, Any] = {"modes": {}, "fusions": {}}
    quora, qnli = work / "quora", qnli_collection(work)
    corpus = quora_corpus(work)
    if not corpus.is_indexed(quora):
        build(corpus.path, quora)
        corpus.set_indexed(quora)
    run_measured([LAMINA, "index", "upgrade", quora])
    tasks = {
        "quora": (quora, {split: quora_task(split) for split in ("dev", "test")}),
        "qnli": (qnli, {"dev": qnli_task("dev"), "test": qnli_task("train")}),
    }
    for name, (collection, splits) in tasks.items():
        with Searcher.open(collection, encoder) as searcher:
            results["modes"][name] = {"documents": searcher.count}
            for split, task in splits.items():
                print(f"{name} {split}", file=sys.stderr, flush=True)
                if arguments.queries:
                    task = task.sample(arguments.queries)
                queries = task.encoded(encoder)
                results["modes"][name][split] = compare_modes(searcher, task, queries)
                if split == "dev":
                    results["fusions"][name] = compare_fusions(searcher, task, queries)
    print("budgets and stores", file=sys.stderr, flush=True)
    budget_queries = min(arguments.queries or BUDGET_QUERIES, BUDGET_QUERIES)
    results["budgets"] = compare_budgets(quora, tasks["quora"][1]["dev"].sample(budget_queries))
    results["store"] = write_stores(quora, work / "words-stores")
    settings = {
        "leg_depth": LEG_DEPTH,
        "window": words.WINDOW,
        "budget_rows": words.BUDGET_ROWS,
        "budget_share": words.BUDGET_SHARE,
        "fusion": SearchOptions().fusion,
        "lexical_weight": SearchOptions().lexical_weight,
        "budget_queries": budget_queries,
    }
    write_result(arguments.output or RESULTS / "words.json", settings, results)


def build(source: Path, collection: Path) -> None:
    """Index a TSV file with the columns qid and text, from nothing."""
    shutil.rmtree(collection, ignore_errors=True)
    command = [LAMINA, "index", "build", "--input", source, "--id-field", "qid"]
    run_measured([*command, "--collection", collection])


def quora_task(split: str) -> Task:
    """The queries and judgements of a split."""
    relevant: dict[str, set[str]] = {}
    for row in read_rows(QUORA / "qrels.tsv"):
        if row["split"] == split:
            relevant.setdefault(row["query_qid"], set()).add(row["corpus_qid"])
    texts = {row["qid"]: row["text"] for row in read_rows(QUORA / "queries.tsv")}
    return Task(split, {name: texts[name] for name in relevant}, relevant)


def qnli_task(file: str) -> Task:
    """The distinct questions of a file that have a sentence which answers them."""
    ids = qnli_ids()
    relevant: dict[str, set[str]] = {}
    for row in read_rows(QNLI / f"{file}.tsv"):
        if row["label"] == "entailment":
            relevant.setdefault(row["question"], set()).add(ids[row["sentence"]])
    return Task(file, {text: text for text in relevant}, relevant)


def qnli_ids() -> dict[str, str]:
    """All distinct sentences, with an id each."""
    rows = read_rows(QNLI / "dev.tsv") + read_rows(QNLI / "train.tsv")
    sentences = sorted({row["sentence"] for row in rows})
    return {sentence: f"s{number:04}" for number, sentence in enumerate(sentences)}


def qnli_collection(work: Path) -> Path:
    """Index the sentences."""
    source, collection = work / "qnli.tsv", work / "words-qnli"
    work.mkdir(parents=True, exist_ok=True)
    ids = qnli_ids()
    lines = [f"{name}\t{sentence}\n" for sentence, name in ids.items()]
    source.write_text("".join(["qid\ttext\n", *lines]), "utf-8")
    corpus = Corpus("QNLI sentences", source, len(ids), ())
    if not corpus.is_indexed(collection):
        build(source, collection)
        corpus.set_indexed(collection)
    return collection


def compare_modes(
    searcher: Searcher, task: Task, queries: Sequence[EncodedQuery]
) -> dict[str, Any]:
    """MRR@10 of each mode as served by default."""
    values = {}
    for mode in MODES:
        options = SearchOptions(mode=mode)  # type: ignore[arg-type] # one of the literals
        found = [searcher.search_encoded(query, options).hits for query in queries]
        values[mode] = task.judge([[hit.id for hit in hits] for hits in found])
    return {
        "queries": len(queries),
        **{mode: rounded_mean(values[mode]) for mode in MODES},
        "hybrid_minus_dense": paired(values["hybrid"], values["dense"]),
    }


def compare_fusions(
    searcher: Searcher, task: Task, queries: Sequence[EncodedQuery]
) -> dict[str, Any]:
    """Differences to dense search for both ways to join and several weights."""
    # joined by ranks half and half, all rows that a leg has found come before all others
    options = SearchOptions(
        mode="hybrid", fusion="ranks", lexical_weight=0.5, top_k=2 * LEG_DEPTH, explain=True
    )
    rankings: dict[tuple[str, float], list[list[str]]] = {("dense", 0.0): []}
    rankings |= {(fusion, weight): [] for fusion in ("ranks", "scores") for weight in WEIGHTS}
    for query in queries:
        hits = searcher.search_encoded(query, options).hits
        ids = np.array([hit.id for hit in hits])
        columns = {
            (leg, part): np.array([number(hit.explanation, leg, part) for hit in hits])
            for leg in ("dense", "lexical")
            for part in ("score", "rank")
        }
        for (fusion, weight), found in rankings.items():
            if fusion == "dense":
                fused = columns["dense", "score"]
            elif fusion == "ranks":
                ranks = columns["dense", "rank"], columns["lexical", "rank"]
                fused = reciprocal_rank_fusion(*ranks, lexical_weight=weight)
            else:
                scores = columns["dense", "score"], columns["lexical", "score"]
                fused = score_fusion(*scores, lexical_weight=weight)
            found.append(ids[np.lexsort((ids, -fused))[:10]].tolist())
    values = {how: task.judge(found) for how, found in rankings.items()}
    dense = values.pop(("dense", 0.0))
    return {
        f"{fusion} {weight}": {
            "mrr@10": rounded_mean(mine),
            "minus_dense": paired(mine, dense),
        }
        for (fusion, weight), mine in values.items()
    }


def number(explanation: Mapping[Any, Any] | None, leg: str, part: str) -> float:
    """One number of an explanation, NaN where it is None."""
    assert explanation
    found = getattr(explanation[leg], part)
    return float("nan") if found is None else float(found)


def compare_budgets(collection: Path, task: Task) -> list[dict[str, Any]]:
    """Quality and cost of word search against the rows that its leading words may match."""
    lines = []
    served = words.BUDGET_ROWS
    try:
        for budget in (*BUDGETS, sys.maxsize):
            words.BUDGET_ROWS = (budget, budget)
            with Searcher.open(collection) as searcher:
                rankings, milliseconds = [], []
                for text in task.queries.values():
                    started = time.thread_time()
                    hits = searcher.search(text, SearchOptions(mode="lexical")).hits
                    milliseconds.append((time.thread_time() - started) * 1000)
                    rankings.append([hit.id for hit in hits])
            lines.append(
                {
                    "rows": None if budget == sys.maxsize else budget,
                    "mrr@10": rounded_mean(task.judge(rankings)),
                    "cpu_ms_median": rounded(statistics.median(milliseconds)),
                    "cpu_ms_p95": rounded(float(np.quantile(milliseconds, 0.95))),
                }
            )
    finally:
        words.BUDGET_ROWS = served
    return lines


def write_stores(collection: Path, work: Path) -> dict[str, Any]:
    """Write all documents of a collection to new stores, with and without words."""
    with DocumentStore.open(collection, read_only=True) as source:
        documents = [Document(row.id, row.text, row.metadata) for row in source.documents()]
        vectors = np.concatenate([rows for _, rows in source.scan()])
    results = {}
    for name in ("without_words", "with_words"):
        folder = work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        DocumentStore.create(folder, dimension=vectors.shape[1]).close()
        if name == "without_words":
            with closing(sqlite3.connect(folder / STORE_FILE, isolation_level=None)) as connection:
                drop_words(connection)
                connection.execute("PRAGMA user_version = 1")
        started = time.process_time()
        with DocumentStore.open(folder) as store:
            for start in range(0, len(documents), WRITTEN_TOGETHER):
                end = start + WRITTEN_TOGETHER
                store.upsert(documents[start:end], vectors[start:end])
        results[name] = {
            "cpu_seconds": rounded(time.process_time() - started),
            "bytes": (folder / STORE_FILE).stat().st_size,
        }
    return {"documents": len(documents), "text_bytes": text_bytes(documents), **results}


def text_bytes(documents: Sequence[Document]) -> int:
    """Size of all texts."""
    return sum(len(document.text.encode()) for document in documents)


def rounded_mean(values: Values) -> float:
    return round(float(values.mean()), 5)


def paired(mine: Values, other: Values) -> dict[str, float]:
    """Mean difference of two runs and its 95% interval by bootstrap over queries."""
    difference = mine - other
    rng = np.random.default_rng(0)
    means = [rng.choice(difference, len(difference)).mean() for _ in range(2000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "mean": round(float(difference.mean()), 5),
        "low": round(float(low), 5),
        "high": round(float(high), 5),
    }


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read a tab-separated file without quoting."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


if __name__ == "__main__":
    main()
