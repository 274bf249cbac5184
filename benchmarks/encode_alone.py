"""Time the encoding of texts alone, without loading the model; prints one line of JSON.

python encode_alone.py lamina|sentence-transformers CORPUS.tsv DOCUMENTS
python encode_alone.py one-query CORPUS.tsv DOCUMENTS

The latter gives the median milliseconds of one text in one thread.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpora import base_weights, even_sample, read_texts

WARM_UP = 64


def lamina() -> Callable[[list[str]], Any]:
    from lamina_index.encoder import OnnxEncoder

    encoder = OnnxEncoder.load("default")
    return lambda texts: encoder.encode(texts, role="document").embeddings


def sentence_transformers() -> Callable[[list[str]], Any]:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(base_weights()), device="cpu")
    return lambda texts: model.encode(texts, normalize_embeddings=True)


def many_texts(encode: Callable[[list[str]], Any], texts: list[str]) -> dict[str, float]:
    encode(texts[:WARM_UP])
    wall, cpu = time.perf_counter(), time.process_time()
    encode(texts)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"documents_per_second": len(texts) / wall, "cpu_seconds": cpu}


def one_query(texts: list[str]) -> dict[str, float]:
    from lamina_index.encoder import OnnxEncoder

    encoder = OnnxEncoder.load("default", threads=1)
    milliseconds = []
    for text in texts:
        started = time.perf_counter()
        encoder.encode([text], role="query")
        milliseconds.append((time.perf_counter() - started) * 1000)
    return {"p50_ms": statistics.median(milliseconds[WARM_UP:])}


def main() -> None:
    what, corpus, documents = sys.argv[1:]
    _, texts = read_texts(Path(corpus))
    texts = even_sample(texts, int(documents))
    match what:
        case "one-query":
            measured = one_query(texts)
        case "lamina":
            measured = many_texts(lamina(), texts)
        case "sentence-transformers":
            measured = many_texts(sentence_transformers(), texts)
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
