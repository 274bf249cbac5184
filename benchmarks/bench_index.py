"""Indexing speed and memory: `lamina index build` beside sentence-transformers and FAISS.

Over the 94,642 Quora questions, in turns, each in a process of its own:

- `index`: from the TSV file to a searchable index on disk. Lamina is its command as a user runs it;
  the other is `stacks/plain_index.py`, whose flat index costs nothing to build.
- `encode`: the encoder alone on a sample of the texts, model loaded and warm.
- `memory` (--large): Lamina's peak memory and index size at 94,642 and at 400,000 texts.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from corpora import (
    Corpus,
    base_weights,
    quora_corpus,
    small_corpus,
    wiki_corpus,
)
from harness import (
    BENCHMARKS,
    LAMINA,
    RESULTS,
    Measured,
    alternate,
    folder_bytes,
    last_json,
    medians,
    parser,
    rounded,
    run_measured,
    write_result,
)

MEMORY_SIZES = (94_642, 400_000)
SMALL_MEMORY_SIZES = (200, 400)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--documents", type=int, help="index an even sample of so many texts")
    options.add_argument("--encode-documents", type=int, default=20_000, help="texts for `encode`")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--large", action="store_true", help="add `memory`, up to 400,000 texts")
    arguments = options.parse_args()
    work: Path = arguments.work
    corpus = small_corpus(work) if arguments.small else quora_corpus(work, arguments.documents)
    encode_documents = min(arguments.encode_documents, corpus.documents)
    rounds = 1 if arguments.small else arguments.rounds

    print(f"index: {corpus.documents:,} texts", file=sys.stderr)
    index_rows: dict[str, list[dict[str, float]]] = {"lamina": [], "sentence-transformers": []}
    for _, name in alternate(list(index_rows), rounds):
        index_rows[name].append(index_once(name, corpus, work))
    print(f"encode: {encode_documents:,} texts", file=sys.stderr)
    encode_rows: dict[str, list[dict[str, float]]] = {"lamina": [], "sentence-transformers": []}
    for _, name in alternate(list(encode_rows), rounds):
        encode_rows[name].append(encode_once(name, corpus, encode_documents))

    results = {
        "index": with_ratio({name: medians(rows) for name, rows in index_rows.items()}),
        "lamina_build": build_facts(work / "collections" / "lamina"),
        "encode": with_ratio({name: medians(rows) for name, rows in encode_rows.items()}),
    }
    if arguments.large:
        sizes = SMALL_MEMORY_SIZES if arguments.small else MEMORY_SIZES
        results["memory"] = {str(size): memory_at(size, work) for size in sizes}
    settings = {
        "corpus": corpus.name,
        "documents": corpus.documents,
        "encode_documents": encode_documents,
        "rounds": rounds,
        "encoder": "bundled default, int8",
        "sentence_transformers": "all-MiniLM-L6-v2 fp32, batch 32, torch's own thread count",
    }
    write_result(arguments.output or RESULTS / "index.json", settings, results)


def index_once(name: str, corpus: Corpus, work: Path) -> dict[str, float]:
    """Index the corpus from nothing with one of the two, where `bench_service.py` looks for it."""
    if name == "lamina":
        output = work / "collections" / "lamina"
        row = lamina_index(corpus, output)
    else:
        output = work / "plain-index"
        row = plain_index(corpus, output)
    corpus.set_indexed(output)
    return row


def plain_index(corpus: Corpus, output: Path) -> dict[str, float]:
    """Run `stacks/plain_index.py` on the corpus, from nothing."""
    shutil.rmtree(output, ignore_errors=True)
    script = BENCHMARKS / "stacks" / "plain_index.py"
    measured = run_measured([sys.executable, script, base_weights(), corpus.path, output])
    return measurements(corpus, measured, output)


def lamina_index(corpus: Corpus, output: Path) -> dict[str, float]:
    """Run `lamina index build` on the corpus, from nothing."""
    shutil.rmtree(output, ignore_errors=True)
    command = [LAMINA, "index", "build", "--input", corpus.path, "--id-field", "qid"]
    measured = run_measured([*command, "--collection", output, "--json"])
    report = json.loads(measured.output)
    if report["rows_indexed"] < 0.99 * corpus.documents:
        raise RuntimeError(f"only {report['rows_indexed']} of {corpus.documents} were indexed")
    faiss_bytes = sum(file.stat().st_size for file in output.rglob("*.faiss"))
    return {**measurements(corpus, measured, output), "faiss_mb": faiss_bytes / 1e6}


def build_facts(collection: Path) -> dict[str, object]:
    """Take from the build's own report what it chose, and where its time went."""
    report = json.loads((collection / "build.json").read_text("utf-8"))
    choice = report["index"]
    return {
        **{name: choice[name] for name in ("factory", "parameters", "recall@10")},
        "stage_seconds": {name: rounded(value) for name, value in report["stage_seconds"].items()},
    }


def measurements(corpus: Corpus, measured: Measured, output: Path) -> dict[str, float]:
    """Put what was measured of a finished indexing in the units of the result."""
    return {
        "documents_per_second": corpus.documents / measured.wall_seconds,
        "wall_seconds": measured.wall_seconds,
        "cpu_seconds": measured.cpu_seconds,
        "peak_rss_mb": measured.peak_rss_bytes / 1e6,
        "size_mb": folder_bytes(output) / 1e6,
    }


def encode_once(name: str, corpus: Corpus, documents: int) -> dict[str, float]:
    """Encode a sample in a fresh process with one of the two."""
    script = BENCHMARKS / "encode_alone.py"
    measured = run_measured([sys.executable, script, name, corpus.path, str(documents)])
    return last_json(measured.output)


def memory_at(documents: int, work: Path) -> dict[str, float]:
    """Index Wikipedia sentences and report what it took."""
    print(f"memory: {documents:,} texts", file=sys.stderr)
    output = work / f"index-wiki-{documents}"
    measured = medians([lamina_index(wiki_corpus(work, documents), output)])
    shutil.rmtree(output)
    return measured


def with_ratio(results: dict[str, dict[str, float]]) -> dict[str, object]:
    """Add how many times as many texts a second Lamina does."""
    speeds = [results[name]["documents_per_second"] for name in ("lamina", "sentence-transformers")]
    return {**results, "times_as_fast": round(speeds[0] / speeds[1], 2)}


if __name__ == "__main__":
    main()
