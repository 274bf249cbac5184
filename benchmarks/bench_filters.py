"""What a filter costs a search and what it finds, from half of the documents to one in 10,000.

Each document gets made-up metadata: `share`, a random number below 10,000, so that `{"share":
{"$lt": n}}` passes n in 10,000 documents whatever they say; and `topic`, its place in the order of
nearness to a document taken at random, so that filters on it pass what is most alike (`near`) or
least (`far`).

- `recall@10`: against comparing every matching document; the least of those of each filter.
- `added_ms`: median milliseconds of searches with the filter, less that of the same searches
  without; `added_cpu_ms` is the processor's time of the thread, which other work disturbs less.
- `facets`: the same for counting the values of two fields over all documents.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import servers
from corpora import quora_corpus, small_corpus
from harness import RESULTS, parser, rounded, write_result
from numpy.typing import NDArray

from lamina_index.collection import MANIFEST_FILE, open_collection
from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.filters import parse_filter
from lamina_index.manifest import FieldType
from lamina_index.query_encoding import EncodedQuery, encode_queries
from lamina_index.scoring import exact_scores
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore

FIELDS: dict[str, FieldType] = {
    "share": "number",
    "topic": "number",
    "name": "string",
    "tags": "strings",
}
SHARES = {"50%": 5000, "25%": 2500, "10%": 1000, "1%": 100, "0.01%": 1}
QUERIES = 200
WARM_UP = 20
SEED = 1
BATCH = 4096


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--factory", default="auto", help="of the index to search (%(default)s)")
    options.add_argument("--collection", type=Path, help="instead of one built for benchmarks")
    arguments = options.parse_args()
    work: Path = arguments.work
    corpus = small_corpus(work) if arguments.small else quora_corpus(work)
    built = arguments.collection or servers.lamina_collection(corpus, work)
    collection = work / "filters"
    rows = with_metadata(built, collection, arguments.factory)
    encoder = OnnxEncoder.load("default", threads=1)
    queries = encode_queries(encoder, corpus.queries[: QUERIES + WARM_UP])
    with Searcher.open(collection, encoder) as searcher:
        index = searcher.info()["index"]
        results = measure(searcher, queries, rows)
    shutil.rmtree(collection)
    settings = {
        "corpus": corpus.name,
        "documents": len(rows.topics),
        "queries": len(queries) - WARM_UP,
        "factory": index["factory"],
        "parameters": index["parameters"],
    }
    write_result(arguments.output or RESULTS / "filters.json", settings, results)


class Rows:
    """What the collection holds, in the order of its keys.

    Attributes:
        ids: N ids.
        embeddings: (N, D).
        shares: (N,) of the field `share`.
        topics: (N,) of the field `topic`.
    """

    def __init__(self, ids: list[str], embeddings: NDArray[np.float32]) -> None:
        random = np.random.default_rng(SEED)
        count = len(ids)
        self.ids = np.array(ids)
        self.embeddings = embeddings
        self.shares = random.permutation(count) * 10_000 // count
        middle = embeddings[random.integers(count)]
        self.topics = np.empty(count, np.int64)
        self.topics[np.argsort(-(embeddings @ middle))] = np.arange(count) * 10_000 // count

    def metadata(self, row: int) -> dict[str, Any]:
        share = int(self.shares[row])
        return {
            "share": share,
            "topic": int(self.topics[row]),
            "name": f"name {share % 50}",
            "tags": [f"a{share % 7}", f"b{share % 11}"],
        }


def with_metadata(built: Path, collection: Path, factory: str) -> Rows:
    """Copy a collection and give each document metadata."""
    shutil.rmtree(collection, ignore_errors=True)
    collection.mkdir(parents=True)
    manifest, source = open_collection(built)
    manifest.model_copy(update={"fields": FIELDS}).write(collection / MANIFEST_FILE)
    with source, DocumentStore.create(collection, dimension=source.dimension) as store:
        documents = list(source.documents())
        embeddings = source.vectors([document.key for document in documents])
        rows = Rows([document.id for document in documents], embeddings)
        for start in range(0, len(documents), BATCH):
            part = documents[start : start + BATCH]
            store.upsert(
                [
                    Document(document.id, document.text, rows.metadata(start + place))
                    for place, document in enumerate(part)
                ],
                embeddings[start : start + BATCH],
            )
        write_snapshot(collection, store, factory=factory)
    return rows


def measure(searcher: Searcher, queries: list[EncodedQuery], rows: Rows) -> dict[str, Any]:
    """Search with every filter, and without one in between, since other work comes and goes."""
    filters = {
        f"{kind} {label}": (wanted, mask)
        for label, share in SHARES.items()
        for kind, wanted, mask in (
            ("random", {"share": {"$lt": share}}, rows.shares < share),
            ("near", {"topic": {"$lt": share}}, rows.topics < share),
            ("far", {"topic": {"$gte": 10_000 - share}}, rows.topics >= 10_000 - share),
        )
    }
    results: dict[str, Any] = {}
    for name, (wanted, mask) in filters.items():
        options = SearchOptions(filter=parse_filter(wanted, FIELDS))
        results[name] = {
            "matching": int(mask.sum()),
            "recall@10": rounded(recall(searcher, queries[WARM_UP:], options, rows, mask)),
            **timed(searcher, queries, options),
        }
    results["facets"] = timed(searcher, queries, SearchOptions(facets=("name", "tags")))
    return results


def timed(
    searcher: Searcher, queries: list[EncodedQuery], options: SearchOptions
) -> dict[str, float]:
    """Median milliseconds of a search without and with the options, turn by turn."""
    wall: list[tuple[float, float]] = []
    cpu: list[tuple[float, float]] = []
    for query in queries:
        marks = [(time.perf_counter(), time.thread_time())]
        for wanted in (SearchOptions(), options):
            searcher.search_encoded(query, wanted)
            marks.append((time.perf_counter(), time.thread_time()))
        for times, readings in zip((wall, cpu), zip(*marks, strict=True), strict=True):
            before, between, after = readings
            times.append((1000 * (between - before), 1000 * (after - between)))
    plain, added = _medians(wall)
    plain_cpu, added_cpu = _medians(cpu)
    return {
        "plain_ms": plain,
        "added_ms": added,
        "plain_cpu_ms": plain_cpu,
        "added_cpu_ms": added_cpu,
    }


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Median of the first, and by how much the median of the second is above it."""
    plain = statistics.median(first for first, _ in pairs[WARM_UP:])
    other = statistics.median(second for _, second in pairs[WARM_UP:])
    return rounded(plain), rounded(other - plain)


def recall(
    searcher: Searcher,
    queries: list[EncodedQuery],
    options: SearchOptions,
    rows: Rows,
    mask: NDArray[np.bool_],
) -> float:
    """Share of the exact ten found; any document as near as the tenth counts."""
    found = expected = 0
    matching = rows.embeddings[mask]
    ids = set(rows.ids[mask].tolist())
    for query in queries:
        exact = np.sort(exact_scores(matching, query.embedding))[::-1][:10]
        hits = searcher.search_encoded(query, options).hits
        if len(hits) != len(exact) or not {hit.id for hit in hits} <= ids:
            raise SystemExit(f"{len(hits)} hits for {len(exact)}, or some that do not match")
        found += sum(hit.score >= exact[-1] for hit in hits)
        expected += len(exact)
    return found / expected if expected else 1.0


if __name__ == "__main__":
    main()
