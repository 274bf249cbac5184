"""The main job with the bundled encoder, through the command line, in processes of their own."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from lamina_index.docstrings import read_docstrings

DOCUMENTS = 300


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred docstrings of the standard library, with metadata of several types."""
    path = tmp_path_factory.mktemp("corpus") / "docstrings.jsonl"
    documents = islice(read_docstrings(), DOCUMENTS)
    path.write_text(
        "".join(
            f"{json.dumps({'id': each.id, 'text': each.text, **each.metadata})}\n"
            for each in documents
        )
    )
    return path


@pytest.fixture(scope="module")
def collection(
    corpus: Path, output_of: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("built") / "docs"
    report = json.loads(
        output_of("index", "build", "--input", corpus, "--collection", folder, "--json")
    )
    assert report["rows_read"] == report["rows_indexed"] == report["documents"] == DOCUMENTS
    assert report["rows_rejected"] == 0
    assert report["index"]["recall@10"] >= 0.99
    return folder


def test_a_question_finds_the_documentation_that_answers_it(
    collection: Path, corpus: Path, output_of: Callable[..., str]
) -> None:
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    target = next(row for row in rows if row["id"] == "argparse.ArgumentParser")
    found = json.loads(
        output_of("search", collection, "parse the options of a command line", "--json")
    )
    hits = {hit["id"]: hit for hit in found["hits"]}
    assert "argparse" in {hit["metadata"]["module"] for hit in hits.values()}
    assert any(hit_id.startswith("argparse") for hit_id in list(hits)[:3])
    exact = json.loads(output_of("search", collection, target["text"], "--json"))
    first = exact["hits"][0]
    assert (first["id"], first["text"]) == (target["id"], target["text"])
    assert first["score"] > 0.99
    assert first["metadata"] == {k: v for k, v in target.items() if k not in ("id", "text")}


def test_evaluating_the_collection_gives_the_expected_number(
    collection: Path, corpus: Path, output_of: Callable[..., str], tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    chosen = rows[::6]
    queries = "".join(f"q{n}\t{' '.join(row['text'].split())}\n" for n, row in enumerate(chosen))
    qrels = "".join(f"q{n}\t{row['id']}\n" for n, row in enumerate(chosen))
    (tmp_path / "queries.tsv").write_text(f"id\ttext\n{queries}")
    (tmp_path / "qrels.tsv").write_text(f"query\tdocument\n{qrels}")
    measured = json.loads(
        output_of(
            "evaluate",
            *("--queries", tmp_path / "queries.tsv", "--qrels", tmp_path / "qrels.tsv"),
            *("--collection", collection, "--json"),
        )
    )
    assert measured["mrr@10"] > 0.9  # each text asks for itself; a few are nearly the same


def test_a_build_killed_at_any_time_resumes_to_the_same_documents_and_vectors(
    collection: Path,
    corpus: Path,
    lamina: Callable[..., Any],
    output_of: Callable[..., str],
    tmp_path: Path,
) -> None:
    random_seconds = random.Random(2).uniform
    build = ("index", "build", "--input", corpus, "--collection", tmp_path / "docs")
    for _ in range(3):
        process = lamina(*build, "--resume")
        time.sleep(random_seconds(0.3, 2.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    output_of(*build, "--resume")
    exports = []
    for number, folder in enumerate((collection, tmp_path / "docs")):
        out = tmp_path / f"export{number}"
        process = lamina("index", "export", folder, "--output", out)
        process.communicate()
        exports.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert set(exports[0]) == {"documents.jsonl", "embeddings.npy"}
    assert exports[0] == exports[1]
    assert json.loads(output_of("index", "verify", tmp_path / "docs", "--json"))["sound"]
