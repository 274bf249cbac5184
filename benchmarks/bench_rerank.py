r"""What a reranker changes: MRR@10 of a search by meaning, before and after, and what it costs.

python training/recipes/reranker_qnli.py ../shared/data build/reranker
lamina train --config training/recipes/reranker_qnli.toml --out runs/reranker
lamina export runs/reranker encoders/reranker --reranker --relevant-label entailment \
  --max-tokens 128
python benchmarks/bench_rerank.py encoders/reranker --data build/reranker

The folder of `--data` has `corpus.tsv`, `queries.tsv` and `qrels.tsv`, as `lamina evaluate` reads
them. Each query is searched once, with the deepest reranking; an order for a smaller depth follows
from the scores and ranks that the search explains. Differences are paired, query by query, with
95% intervals by bootstrap. Milliseconds are of the reranking alone, one thread a query, while as
many queries run as there are CPUs.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from compare_encoders import Values, compare, mean
from harness import RESULTS, parser, rounded, shown, write_result

from lamina_index.build import build_collection
from lamina_index.encoder import OnnxEncoder
from lamina_index.evaluation_inputs import inputs_from_files
from lamina_index.hits import Hit
from lamina_index.metrics import reciprocal_rank, relevant_ids
from lamina_index.reranker import OnnxReranker
from lamina_index.runtime import available_threads
from lamina_index.search_options import SearchOptions
from lamina_index.search_stages import SearchResult
from lamina_index.searcher import Searcher

DEPTHS = (5, 10, 20, 50)
QUESTIONS = 200
K = 10


def main() -> None:
    options = parser(__doc__)
    options.add_argument("reranker", type=Path, help="folder of a reranker")
    options.add_argument("--data", type=Path, required=True, help="folder of the search task")
    arguments = options.parse_args()
    data: Path = arguments.data
    judged = inputs_from_files(*(data / f"{n}.tsv" for n in ("queries", "qrels", "corpus"))).judged
    chosen = np.random.default_rng(0).permutation(sorted(judged.qrels))
    names = chosen[: 20 if arguments.small else QUESTIONS].tolist()
    relevant = [relevant_ids(judged.qrels[name]) for name in names]
    encoder = OnnxEncoder.load("default")
    reranker = OnnxReranker.load(arguments.reranker, threads=1)
    collection = arguments.work / "rerank"
    shutil.rmtree(collection, ignore_errors=True)
    build_collection([data / "corpus.tsv"], collection, encoder)
    with Searcher.open(collection, encoder, reranker) as searcher:
        documents = searcher.count
        found = search(searcher, [judged.texts[name] for name in names])

    dense = scores_at(0, found, relevant)
    results: dict[str, Any] = {"0": compare(dense, dense, mean)}
    for depth in DEPTHS:
        results[str(depth)] = compare(scores_at(depth, found, relevant), dense, mean) | {
            "reachable": rounded(reachable(depth, found, relevant)),
        }
    settings = {
        "reranker": reranker.name,
        "fingerprint": reranker.fingerprint,
        "mb": rounded(reranker.size_bytes / 1e6),
        "max_tokens": reranker.max_tokens,
        "training": reranker.manifest.provenance.get("training"),
        "task": shown(data),
        "queries": len(names),
        "documents": documents,
        "milliseconds": rounded(1000 * statistics.median(each.took["rerank"] for each in found)),
        "milliseconds_depth": DEPTHS[-1],
        "truncated": sum(each.reranking.truncated for each in found if each.reranking),
    }
    write_result(arguments.output or RESULTS / "rerank.json", settings, results)
    print(json.dumps(results, indent=1))


def search(searcher: Searcher, queries: list[str]) -> list[SearchResult]:
    """Search for each query, with the deepest reranking."""
    options = SearchOptions(top_k=max(DEPTHS), rerank=max(DEPTHS), explain=True)

    def one(query: str) -> SearchResult:
        found = searcher.search(query, options)
        print(".", end="", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(available_threads()) as pool:
        return list(pool.map(one, queries))


def scores_at(depth: int, found: list[SearchResult], relevant: list[frozenset[str]]) -> Values:
    """Reciprocal rank of each query if so many hits were reranked, (Q,)."""
    ranked = [[hit.id for hit in order_at(depth, each.hits)] for each in found]
    pairs = zip(ranked, relevant, strict=True)
    return np.array([reciprocal_rank(ids, wanted, k=K) for ids, wanted in pairs])


def order_at(depth: int, hits: list[Hit]) -> list[Hit]:
    """Put the best hits by meaning in the reranker's order, and the others behind them."""
    before = sorted(hits, key=first_rank)
    return sorted(before[:depth], key=lambda hit: -hit.score) + before[depth:]


def first_rank(hit: Hit) -> tuple[int, str]:
    """Where meaning alone puts a hit; equal cosines share a rank and go by id."""
    assert hit.explanation is not None  # it was asked for
    return hit.explanation["dense"].rank or 0, hit.id


def reachable(depth: int, found: list[SearchResult], relevant: list[frozenset[str]]) -> float:
    """Tell in which share of the queries any order could put a relevant text first."""
    reached = [
        bool(wanted.intersection(hit.id for hit in sorted(each.hits, key=first_rank)[:depth]))
        for each, wanted in zip(found, relevant, strict=True)
    ]
    return sum(reached) / len(reached)


if __name__ == "__main__":
    main()
