from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest

from lamina_index.cli import main

CORPUS = {
    "d1": "How do I learn to play the guitar?",
    "d2": "What is the best way to cook rice?",
    "d3": "Is the earth flat?",
    "d4": "How far away is the moon?",
}
QUERIES = {
    "q1": ("teach myself guitar", "d1"),
    "q2": ("boiling rice", "d2"),
    "q3": ("distance to the moon", "d4"),
}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Options that name a small corpus with queries and judgements."""
    tables = {
        "corpus": ["qid\ttext", *(f"{name}\t{text}" for name, text in CORPUS.items())],
        "queries": ["qid\ttext", *(f"{name}\t{text}" for name, (text, _) in QUERIES.items())],
        "qrels": ["query\tdocument", *(f"{name}\t{found}" for name, (_, found) in QUERIES.items())],
    }
    options = []
    for name, lines in tables.items():
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        options += [f"--{name}", str(tmp_path / f"{name}.tsv")]
    return options


def test_json_alone_goes_to_stdout_and_names_what_was_measured(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *files, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mrr@10"] == 1.0
    assert (report["queries"], report["documents"], report["judgements"]) == (3, 4, 3)
    searched = report["searched"]
    assert len(searched["corpus_fingerprint"]) == len(searched["encoder"]["fingerprint"]) == 64
    assert searched["encoder"]["size_bytes"] > 1e6
    assert searched["index"]["size_bytes"] == 4 * 4 * searched["encoder"]["dimension"]
    assert searched["encoder"]["pooling"] == "mean"
    assert report["milliseconds_per_query"]["median"] > 0


def test_files_whose_names_are_not_utf8_are_reported_with_escapes(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = (tmp_path / "corpus.tsv").rename(tmp_path / os.fsdecode(b"caf\xe9.tsv"))
    options = [str(corpus) if word.endswith("corpus.tsv") else word for word in files]
    output = ["--output", str(tmp_path / "out")]
    assert main(["evaluate", *options, *output, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert rf"{tmp_path}/caf\xe9.tsv" in report["sources"]


def test_the_reported_command_repeats_the_run(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["evaluate", *files, "--seed", "3", "--json", "--keep-self"]
    assert main(options) == 0
    first = json.loads(capsys.readouterr().out)
    program, *words = shlex.split(first["command"])
    assert program == "lamina"
    assert sorted(words) == sorted(options)
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["intervals"] == first["intervals"]


def test_a_table_for_people_and_the_files_for_the_record(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distractors = tmp_path / "more.txt"
    distractors.write_text("guitar, guitar, guitar\nan unrelated line\n")
    output = tmp_path / "out"
    options = [*files, "--distractors", str(distractors), "--output", str(output)]
    assert main(["evaluate", *options]) == 0
    printed = capsys.readouterr()
    assert "MRR@10" in printed.out
    assert printed.err == ""
    assert sorted(path.name for path in output.iterdir()) == [
        "evaluation.json",
        "evaluation.md",
        "evaluation.svg",
        "per_query.jsonl",
    ]
    assert json.loads((output / "evaluation.json").read_bytes())["documents"] == 6


def test_judgements_of_documents_that_are_not_there_are_warned_about(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "qrels.tsv").open("a") as stream:
        stream.write("q1\tgone\n")
    assert main(["evaluate", *files]) == 0
    assert (
        "relevant documents not in the corpus, counted as not found: 1 (gone)"
        in capsys.readouterr().err
    )


def test_the_quora_release_is_split_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = tmp_path / "quora_duplicate_questions.tsv"
    release.write_text(
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        "0\t1\t2\tHow do I cook rice?\tWhat is the way to cook rice?\t1\n"
        "1\t3\t4\tIs the earth flat?\tHow far is the moon?\t0\n"
    )
    output = tmp_path / "out"
    assert main(["evaluate", "--quora", str(release), "--output", str(output), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["mrr@10"], first["queries"], first["documents"]) == (1.0, 1, 3)
    assert main(["evaluate", "--beir", str(output / "quora"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["searched"]["corpus_fingerprint"] == first["searched"]["corpus_fingerprint"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give one of --beir, --queries and --quora"),
        (["--queries", "q.tsv"], "--queries and --qrels go together"),
        (["--queries", "q.tsv", "--qrels", "r.tsv"], "say what to search"),
        (["--beir", "b", "--corpus", "c.tsv"], "--corpus goes with --queries"),
        (["--beir", "b", "--url", "http://x"], "--url and --name go together"),
        (["--beir", "b", "--url", "u", "--name", "n", "--encoder", "e"], "service's own encoder"),
        (["--beir", "b", "--collection", "c", "--url", "u", "--name", "n"], "not both"),
        (["--beir", "b", "--collection", "c", "--distractors", "d"], "build them in"),
        (["--beir", "b", "--rerank", "r"], "--rerank goes with --collection"),
        (["--beir", "b", "--collection", "c", "--depth", "9"], "--depth goes with --rerank"),
        (["--quora", "q.tsv", "--split", "dev"], "--quora has one split only"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_missing_file_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--beir", "/nowhere"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_output_that_cannot_be_made_is_told_before_the_work(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    assert main(["evaluate", *files, "--output", str(taken)]) == 1
    assert capsys.readouterr().err == f"lamina: {taken}: cannot be written (File exists)\n"


def test_a_reranker_is_measured_and_named(
    files: list[str],
    tmp_path: Path,
    overlap_reranker: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, corpus, *queries = files
    folder = str(tmp_path / "collection")
    build = ["index", "build", "--input", corpus, "--id-field", "qid", "--collection", folder]
    assert main(build) == 0
    capsys.readouterr()
    options = [*queries, "--collection", folder, "--rerank", str(overlap_reranker), "--depth", "2"]
    assert main(["evaluate", *options, "--json"]) == 0
    searched = json.loads(capsys.readouterr().out)["searched"]
    assert searched["kind"] == f"collection {folder}, best 2 reranked"
    assert searched["reranker"]["name"] == "overlap"
