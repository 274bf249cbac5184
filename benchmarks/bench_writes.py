"""How fast documents are written to a collection, beside how fast their texts are embedded.

Documents go through `CollectionWriter.upsert` in lists of 64, into a collection that holds the
other texts of the corpus already. Every round measures, in another order:

- `encode`: the encoder alone, all texts in one call.
- `encode_64`: the encoder alone, in lists of 64.
- `write_1`, `write_2`: upserts from one thread, and from two that take turns.

`share` is documents per second over those of `encode` in the same round, the median over rounds;
`commit_ms` the median milliseconds that a list waits for its turn and its transaction.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import servers
from corpora import quora_corpus, read_texts, small_corpus
from harness import RESULTS, alternate, parser, rounded, write_result

from lamina_index.encoder import OnnxEncoder
from lamina_index.writer import CollectionWriter

T = TypeVar("T")

LIST = 64
ROUNDS = 5
SMALL_ROUNDS = 2
DOCUMENTS = 4096
SMALL_DOCUMENTS = 256


def main() -> None:
    arguments = parser(__doc__).parse_args()
    work: Path = arguments.work
    corpus = small_corpus(work) if arguments.small else quora_corpus(work)
    count = SMALL_DOCUMENTS if arguments.small else DOCUMENTS
    rounds = SMALL_ROUNDS if arguments.small else ROUNDS
    built = servers.lamina_collection(corpus, work)
    _, texts = read_texts(corpus.path)
    texts = texts[:: max(1, len(texts) // count)][:count]
    encoder = OnnxEncoder.load("default")
    encoder.encode(texts[:LIST], role="document")
    seconds: dict[str, list[float]] = {}
    commits: list[float] = []
    for number, name in alternate(["encode", "encode_64", "write_1", "write_2"], rounds):
        if name.startswith("write"):
            collection = work / "writes"
            shutil.rmtree(collection, ignore_errors=True)
            shutil.copytree(built, collection)
            taken = _write(collection, encoder, texts, int(name[-1]), number, commits)
            shutil.rmtree(collection)
        else:
            size = LIST if name == "encode_64" else len(texts)
            started = time.perf_counter()
            for part in _lists(texts, size):
                encoder.encode(part, role="document")
            taken = time.perf_counter() - started
        seconds.setdefault(name, []).append(taken)
    write_result(
        arguments.output or RESULTS / "bench_writes.json",
        {
            "corpus": corpus.name,
            "documents_there": corpus.documents,
            "documents_written": len(texts),
            "list": LIST,
            "rounds": rounds,
        },
        {
            name: {
                "documents_per_second": rounded(len(texts) / statistics.median(taken)),
                "share": rounded(
                    statistics.median(
                        raw / own for raw, own in zip(seconds["encode"], taken, strict=True)
                    )
                ),
            }
            for name, taken in seconds.items()
        }
        | {"commit_ms": rounded(statistics.median(commits) * 1000)},
    )


def _write(
    collection: Path,
    encoder: OnnxEncoder,
    texts: Sequence[str],
    threads: int,
    round_number: int,
    commits: list[float],
) -> float:
    """Write texts under new ids; gives the seconds it took, and adds those of each commit."""
    records = [
        {"id": f"new-{round_number}-{number}", "text": text} for number, text in enumerate(texts)
    ]
    with CollectionWriter.open(collection, encoder) as writer, ThreadPoolExecutor(threads) as pool:

        def upsert(part: Sequence[object]) -> None:
            prepared = writer.prepare(part)
            started = time.perf_counter()
            written = writer.commit(prepared)
            commits.append(time.perf_counter() - started)
            if written.inserted != len(part):
                raise RuntimeError(f"{written.inserted} of {len(part)} documents were stored")

        started = time.perf_counter()
        for _ in pool.map(upsert, _lists(records, LIST)):
            pass
        return time.perf_counter() - started


def _lists(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


if __name__ == "__main__":
    main()
