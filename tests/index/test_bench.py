"""`lamina bench`: what it measures of a collection, and with which queries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lamina_index.bench import bench
from lamina_index.build import build_collection
from lamina_index.cli import main
from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import EvaluationError
from lamina_index.writer import CollectionWriter


@pytest.fixture(scope="module")
def encoder() -> OnnxEncoder:
    return OnnxEncoder.load("default")


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    corpus = folder / "c.txt"
    corpus.write_text("".join(f"text {n} about bread, cats and trains\n" for n in range(40)))
    build_collection([corpus], folder / "c", encoder)
    return folder / "c"


def test_each_kind_of_search_is_made_so_many_times(collection: Path, encoder: OnnxEncoder) -> None:
    report = bench(collection, encoder, count=12)
    kinds = {"encode", "dense", "dense index", "lexical", "hybrid", "hybrid index"}
    assert report.milliseconds.keys() == kinds
    for spread in report.milliseconds.values():
        assert spread.count == 12
        assert 0 < spread.median <= spread.p95
    assert report.documents == 40
    assert report.documents_per_second > 0
    assert min(report.queries_per_second) == 1
    assert all(rate > 0 for rate in report.queries_per_second.values())
    assert report.query_source == "first 8 words of documents"


def test_given_queries_are_asked_and_a_blank_file_of_them_is_refused(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("\ufeffwhere do cats sleep\n\n  trains to the sea \n", encoding="utf-8")
    given = ["bench", str(collection), "--queries", str(queries), "--count", "10"]
    assert main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["query_source"] == str(queries)
    assert found["milliseconds"]["dense"]["count"] == 10
    assert found["queries_per_second"].keys() >= {"1"}
    assert main(given) == 0
    shown = capsys.readouterr().out
    assert "40 documents" in shown
    assert "hybrid index" in shown
    queries.write_text(" \n")
    assert main(given) == 1
    assert "has no query; expected one a line" in capsys.readouterr().err
    queries.write_bytes(b"\xff\xfe\x00")
    assert main(given) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_documents_are_found_where_keys_have_gaps_and_an_empty_collection_says_so(
    tmp_path: Path, encoder: OnnxEncoder
) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("".join(f"line {n}\n" for n in range(30)))
    build_collection([corpus], tmp_path / "c", encoder)
    with CollectionWriter.open(tmp_path / "c") as writer:
        writer.delete([f"c.txt:{n}" for n in range(1, 30)])
        assert bench(tmp_path / "c", encoder, count=10).documents == 1
        writer.delete(["c.txt:30"])
    with pytest.raises(EvaluationError, match="holds no document"):
        bench(tmp_path / "c", encoder, count=10)
