"""What collections of 100,000 to millions of documents take: disk, memory, minutes, milliseconds.

One collection grows from size to size; each step is in a process of its own:

- `write`: texts and vectors into the store, a block of 8,192 a transaction, without encoding.
- `build`: `auto`'s index, with its measurement and proof, and the most memory that takes.
- `serve`: searches by vector in one thread, cold and warm, with the memory that the process has.
  Recall is that of real questions which are not in the collection, against comparing everything.
- `compact`: 5,000 more rows are written and taken into the index, as the service does it.
- `others` (at the sizes of --compare): other indexes over the same rows.

The first 94,642 vectors are those of Quora's questions, the others are made from them; see
`grown_vectors.py`. `alike` compares made vectors with real ones, at the size of the real ones:
made from all, from a tenth, and from a 64th of them. Texts are sentences of Wikipedia, numbered.

It needs about 4 KB of disk and 0.7 KB of memory a document.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import servers
from corpora import Corpus, quora_corpus, read_texts, small_corpus, wiki_corpus
from grown_vectors import GrownVectors, difficulty
from harness import BENCHMARKS, RESULTS, last_json, parser, rounded, run_measured, write_result
from numpy.typing import NDArray
from sizing_steps import QUERIES_FILE, QUERY_TEXTS_FILE, TEXTS_FILE, VECTORS_FILE

from lamina_index.collection import MANIFEST_FILE, open_collection
from lamina_index.compaction import MAX_DELTA
from lamina_index.encoder import OnnxEncoder
from lamina_index.index_choice import list_count
from lamina_index.query_encoding import encode_queries
from lamina_index.runtime import available_threads
from lamina_index.store import DocumentStore

SIZES = (100_000, 1_000_000, 6_000_000)
COMPARED = (1_000_000,)
FACTORIES = (
    "HNSW32,SQ8",
    "IVF{lists}_HNSW32,PQ96x4fs,Refine(SQfp16)",
    "IVF{lists}_HNSW32,PQ96x4fs,Refine(SQ8)",
    "IVF{lists}_HNSW32,SQ8",
)
QUERIES = 2300
TEXTS = 400_000
SHARES = (1, 10, 64)
"""From what part of the real vectors as many are made again as there are."""

SMALL_SIZES = (200, 400)
SMALL_FACTORIES = ("HNSW32,SQ8", "IVF{lists}_HNSW32,SQ8")
SMALL_SHARES = (1, 4)
SMALL_ADDED = 50
SEED = 1


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", help=f"documents (default: {SIZES})")
    options.add_argument(
        "--compare", type=int, nargs="*", help=f"sizes to build the others at (default: {COMPARED})"
    )
    options.add_argument(
        "--factories", nargs="+", help=f"the others (default: {', '.join(FACTORIES)})"
    )
    arguments = options.parse_args()
    small: bool = arguments.small
    work: Path = arguments.work / "sizing"
    sizes = sorted(arguments.sizes or (SMALL_SIZES if small else SIZES))
    compared = arguments.compare
    if compared is None:
        compared = sizes[-1:] if small else [size for size in COMPARED if size in sizes]
    factories = arguments.factories or (SMALL_FACTORIES if small else FACTORIES)
    corpus = small_corpus(arguments.work) if small else quora_corpus(arguments.work)
    shutil.rmtree(work, ignore_errors=True)
    site = Site.prepare(corpus, arguments.work, work, small=small)
    settings = {
        "real": corpus.name,
        "real_documents": len(site.real),
        "dimension": site.real.shape[1],
        "sizes": sizes,
        "compared": compared,
        "threads": available_threads(),
        "queries": min(QUERIES, len(corpus.queries)),
    }
    same = alike(site.real, SMALL_SHARES if small else SHARES)
    results: dict[str, Any] = {"alike": same, "sizes": {}, "others": {}}
    output: Path = arguments.output or RESULTS / "sizing.json"
    for size in sizes:
        results["sizes"][str(size)] = measure(site, size, SMALL_ADDED if small else MAX_DELTA)
        write_result(output, settings, results)  # a later size may be too much for the machine
        if size in compared:
            results["others"][str(size)] = [
                built_and_served(site, factory.format(lists=list_count(size)))
                for factory in factories
            ]
            write_result(output, settings, results)
    shutil.rmtree(work)


@dataclass(frozen=True)
class Site:
    """The collection that grows, and the files that its rows and queries come from."""

    work: Path
    collection: Path
    real: NDArray[np.float32]

    @classmethod
    def prepare(cls, corpus: Corpus, built_in: Path, work: Path, *, small: bool) -> Site:
        """Take the vectors of a collection built from the corpus, and make an empty one."""
        built = servers.lamina_collection(corpus, built_in)
        collection = work / "collection"
        collection.mkdir(parents=True)
        manifest, source = open_collection(built)
        with source:
            real = np.concatenate([rows for _, rows in source.scan()])
        manifest.write(collection / MANIFEST_FILE)
        DocumentStore.create(collection, dimension=real.shape[1]).close()
        told("looking at the real vectors")
        GrownVectors.of(real).save(work / VECTORS_FILE)
        _, texts = read_texts((corpus if small else wiki_corpus(work, TEXTS)).path)
        (work / TEXTS_FILE).write_text("".join(f"{text}\n" for text in texts), "utf-8")
        queries = corpus.queries[:QUERIES]
        encoded = encode_queries(OnnxEncoder.load("default", threads=1), queries)
        np.save(work / QUERIES_FILE, np.stack([query.embedding for query in encoded]))
        (work / QUERY_TEXTS_FILE).write_text(json.dumps(queries), "utf-8")
        return cls(work, collection, real)

    def step(self, name: str, *options: object) -> dict[str, Any]:
        """Run a step in a process of its own, and add what that took."""
        command = [sys.executable, BENCHMARKS / "sizing_steps.py", name, self.collection, *options]
        measured = run_measured(command)
        return {
            **last_json(measured.output),
            "process": {
                "seconds": rounded(measured.wall_seconds),
                "cpu_seconds": rounded(measured.cpu_seconds),
                "peak_bytes": measured.peak_rss_bytes,
                "peak_own_bytes": measured.peak_own_bytes,
            },
        }


def measure(site: Site, size: int, added: int) -> dict[str, Any]:
    """Let the collection grow to a size, and do with it what is done with collections."""
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "write": lambda: site.step("write", site.work, size),
        "build": lambda: site.step("build", "auto"),
        "serve": lambda: site.step("serve", site.work),
        "write_more": lambda: site.step("write", site.work, size + added),
        "compact": lambda: site.step("compact"),
    }
    results = {}
    for name, step in steps.items():
        told(f"{size:,} documents: {name}")
        results[name] = step()
    return results


def built_and_served(site: Site, factory: str) -> dict[str, Any]:
    """Build another index over the rows that there are, and search it."""
    told(factory)
    return {"build": site.step("build", factory), "serve": site.step("serve", site.work)}


def alike(real: NDArray[np.float32], shares: Sequence[int]) -> list[dict[str, Any]]:
    """Compare real vectors (N, D) with as many that are made from parts of them."""
    threads = available_threads()
    told("the real vectors' neighbours")
    found = [{"made_from": None, **difficulty(real, threads)}]
    random = np.random.default_rng(SEED)
    for share in shares:
        told(f"vectors made from {len(real) // share:,} real ones")
        some = random.choice(real, len(real) // share, replace=False)
        rows = GrownVectors.of(some).rows(len(some), len(some) + len(real))
        found.append({"made_from": len(some), **difficulty(np.concatenate(list(rows)), threads)})
    return found


def told(what: str) -> None:
    print(f"  {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
