"""A corpus in memory, the collection built from it, and the service over that: one number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina_index.cli import main

TOPICS = ["rice", "guitars", "the moon", "cats", "chess", "Python", "rivers", "bread", "taxes"]
FORMS = {
    "How do I learn about {}?": "What is a good way to study {}?",
    "Why do people like {}?": "What makes {} so popular?",
    "What is the history of {}?": "Where do {} come from?",
    "Is it expensive to deal with {}?": "How much money does one need for {}?",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with judged queries, one of them without a token, and the collections of it."""
    folder = tmp_path_factory.mktemp("agree")
    corpus, queries, qrels = ["qid\ttext"], ["qid\ttext\tsplit"], ["query\tdocument\tsplit"]
    for topic in TOPICS:
        for form, other in FORMS.items():
            number = len(corpus)
            corpus.append(f"d/{number}\t{form.format(topic)}")
            queries.append(f"q{number}\t{other.format(topic)}\ttest")
            qrels.append(f"q{number}\td/{number}\ttest")
    corpus += ["copy\tHow do I learn about rice?", "q2\tWhat makes rice so popular?"]
    queries.append("blank\t\u200b\ttest")
    qrels += ["blank\td/1\ttest", "q1\tgone\ttest"]
    for name, lines in (("corpus", corpus), ("queries", queries), ("qrels", qrels)):
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    build = ["index", "build", "--input", str(folder / "corpus.tsv"), "--id-field", "qid"]
    for name, more in (("plain", []), ("chunked", ["--chunk", "5", "--overlap", "1"])):
        assert main([*build, "--collection", str(folder / "data" / name), *more]) == 0
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """A service in a process of its own."""
    serve = "from lamina_index.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", serve, "serve", "--data", str(folder / "data"), "--port", "0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LAMINA_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


def measure(
    folder: Path, capsys: pytest.CaptureFixture[str], *source: str
) -> tuple[dict[str, Any], list[list[str]]]:
    """Give the report and every query's ranking."""
    files = [f"--{name}={folder / name}.tsv" for name in ("queries", "qrels")]
    options = [*files, "--split", "test", "--output", str(folder / "out"), "--json", *source]
    assert main(["evaluate", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = (folder / "out" / "per_query.jsonl").read_text().splitlines()
    return report, [json.loads(row)["ranking"] for row in rows]


def test_corpus_collection_and_service_give_the_same_rankings(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, exact_run = measure(folder, capsys, "--corpus", str(folder / "corpus.tsv"))
    local, local_run = measure(folder, capsys, "--collection", str(folder / "data" / "plain"))
    monkeypatch.setenv("LAMINA_ENCODER", "fast")  # of another service: not what is asked here
    served, served_run = measure(folder, capsys, "--url", url, "--name", "plain")
    assert "fast" not in served["command"]
    assert exact_run == local_run == served_run
    assert 0.5 < exact["mrr@10"] < 1
    for key in ("mrr@10", "intervals", "documents", "queries_unanswered_ids", "self_hits_taken_out",
                "relevant_not_in_corpus_ids"):  # fmt: skip
        assert exact[key] == local[key] == served[key], key
    assert exact["queries_unanswered_ids"] == ["blank"]
    assert exact["relevant_not_in_corpus_ids"] == ["gone"]
    assert exact["self_hits_taken_out"] == 1
    assert exact["searched"]["corpus_fingerprint"] == local["searched"]["corpus_fingerprint"]
    fingerprints = {each["searched"]["encoder"]["fingerprint"] for each in (exact, local, served)}
    assert len(fingerprints) == 1


def test_of_a_chunked_collection_documents_are_ranked(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    local, local_run = measure(folder, capsys, "--collection", str(folder / "data" / "chunked"))
    served, served_run = measure(folder, capsys, "--url", url, "--name", "chunked")
    assert local_run == served_run
    assert local["mrr@10"] == served["mrr@10"] > 0
    assert all("#" not in document for ranking in local_run for document in ranking)
    assert any("best chunk" in rule for rule in local["rules"])


def test_a_collection_that_is_not_there_is_told_by_the_service(
    folder: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"--{name}={folder / name}.tsv" for name in ("queries", "qrels")]
    assert main(["evaluate", *files, "--url", url, "--name", "absent"]) == 1
    assert "404 No such collection" in capsys.readouterr().err
