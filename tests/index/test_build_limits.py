"""Builds at the edge: a full disk, and memory that must not grow with the corpus."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina_index.build import build_collection
from lamina_index.corpus import CorpusOptions
from lamina_index.encoder import Encoder
from lamina_index.errors import StorageFullError
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher


def write_corpus(path: Path, count: int) -> Path:
    path.write_text("".join(f'{{"id": "d{n}", "text": "text {n}"}}\n' for n in range(count)))
    return path


@pytest.mark.parametrize(
    ("mode", "safe"), [("append", "rows of the finished blocks"), ("replace", "it is as it was")]
)
def test_a_full_disk_leaves_the_old_collection_and_nothing_in_the_way(
    mode: Any, safe: str, small_disk: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    small = write_corpus(tmp_path / "small.jsonl", 50)
    large = write_corpus(tmp_path / "large.jsonl", 6000)
    build_collection([small], small_disk / "c", word_encoder)
    with pytest.raises(StorageFullError, match=rf"no space left.*{safe}.*run the same command"):
        build_collection([large], small_disk / "c", word_encoder, mode=mode)
    with Searcher.open(small_disk / "c", word_encoder) as searcher:
        assert searcher.search("text 49", SearchOptions(top_k=1)).hits[0].id == "d49"
    if mode == "replace":
        report = build_collection([small], small_disk / "c", word_encoder, mode="replace")
        assert report.documents == 50
        assert [path.name for path in small_disk.iterdir()] == ["c"]


def test_a_full_disk_leaves_nothing_of_a_build_that_cannot_go_on(
    small_disk: Path, tmp_path: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = write_corpus(tmp_path / "large.jsonl", 6000).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    with pytest.raises(StorageFullError, match=r"run the same command again to start over"):
        build_collection(
            ["-"], small_disk / "c", word_encoder, options=CorpusOptions(format="jsonl")
        )
    assert list(small_disk.iterdir()) == []


MEASURE = """
import sys
from pathlib import Path
import numpy as np
from lamina_index.build import build_collection
from lamina_index.encoder import Encoded

class Rows:
    name, precision, fingerprint, dimension, max_tokens = "rows", "fp32", "0" * 64, 256, 16

    def encode(self, texts, *, role):
        numbers = np.array([int(text.split()[1]) for text in texts])
        rows = np.cos(np.outer(numbers + 1, np.arange(1, 257))).astype(np.float32)
        ones = np.ones(len(texts), np.int32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return Encoded(rows, ones, ones, np.zeros(len(texts), bool))

report = build_collection([sys.argv[1]], sys.argv[2], Rows(), factory="SQ8", threads=1)
print(report.peak_memory_bytes, report.index["size_bytes"])
"""


def test_memory_grows_by_no_more_than_the_index(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for count in (20_000, 100_000):
        corpus = write_corpus(tmp_path / f"{count}.jsonl", count)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(corpus), str(tmp_path / str(count))],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        peak, size = (int(word) for word in done.stdout.split())
        peaks.append(peak)
        sizes.append(size)
    # SQLite's caches and one block of rows are in both; a copy of the vectors would be 80 MB more.
    assert peaks[1] - peaks[0] < 1.2 * (sizes[1] - sizes[0]) + 8_000_000
