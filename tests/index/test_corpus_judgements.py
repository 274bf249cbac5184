"""Queries and judgements of an evaluation."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lamina_index.corpus import Judgement, Query, beir_files, read_qrels, read_queries
from lamina_index.errors import CorpusError


def write(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("q.tsv", "qid\tsplit\ttext\n1\ttest\tone\n2\tdev\ttwo\n"),
        ("q.csv.gz", "qid,text,split\n1,one,test\n2,two,dev\n"),
        ("q.jsonl", '{"_id":"1","text":"one","split":"test"}\n{"id":2,"text":"two","split":"dev"}'),
    ],
)
def test_queries_have_id_first_text_and_split(tmp_path: Path, name: str, content: str):
    assert list(read_queries(write(tmp_path, name, content))) == [
        Query("1", "one", "test"),
        Query("2", "two", "dev"),
    ]


def test_queries_need_no_split(tmp_path: Path):
    path = write(tmp_path, "q.tsv", "qid\ttext\n1\tone\n")
    assert list(read_queries(path)) == [Query("1", "one")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("r.tsv", "query_qid\tcorpus_qid\tsplit\n1\ta\ttest\n", [Judgement("1", "a", 1, "test")]),
        ("r.tsv", "query-id\tcorpus-id\tscore\n1\ta\t2\n", [Judgement("1", "a", 2)]),
        ("r.tsv", "q\td\tsplit\tscore\n1\ta\t0\t-1\n", [Judgement("1", "a", -1, "0")]),
        ("r.tsv", "q\td\tnote\n1\ta\twhy\n", [Judgement("1", "a", 1)]),
        ("r.csv", "q,d,grade\n1,a,0.5\n", [Judgement("1", "a", 0.5)]),
        ("r.jsonl", '{"q":1,"d":"a","grade":3}\n', [Judgement("1", "a", 3)]),
        ("r.jsonl.gz", '{"q":"1","d":"a"}\n', [Judgement("1", "a", 1)]),
    ],
)
def test_judgements_are_query_document_and_grade_if_numeric(
    tmp_path: Path, name: str, content: str, expected: list[Judgement]
):
    assert list(read_qrels(write(tmp_path, name, content))) == expected


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (read_queries, "q.tsv", "qid\ttext\n1\tone\n2\n", "q.tsv:3: 1 column; the header has 2"),
        (read_queries, "q.tsv", "qid\tbody\n1\tone\n", 'q.tsv:2: no "text"'),
        (read_queries, "q.tsv", "qid\ttext\n1\t \n", "q.tsv:2: text is blank"),
        (read_queries, "q.jsonl", '{"_id":"1","text":5}', "q.jsonl:1: text is the number 5"),
        (read_queries, "q.jsonl", "{}", 'q.jsonl:1: no "text"'),
        (read_queries, "q.txt", "one\n", "expected a .tsv, .csv or .jsonl file"),
        (read_qrels, "r.tsv", "q\td\n1\t\n", "r.tsv:2: id is blank"),
        (read_qrels, "r.tsv", "q\td\ts\n1\ta\t1\n1\tb\tx\n", 'r.tsv:3: grade "x" is not a finite'),
        (read_qrels, "r.tsv", "q\td\ts\n1\ta\t1\n1\tb\t\n", 'r.tsv:3: grade "" is not a finite'),
        (read_qrels, "r.jsonl", '{"q":1.5,"d":"a"}', "r.jsonl:1: id is the number 1.5"),
        (read_qrels, "r.tsv", "q\n1\n", "r.tsv:2: fewer than two columns"),
        (read_qrels, "r.tsv", "", "is empty"),
    ],
)
def test_a_bad_record_stops_the_reading(
    tmp_path: Path, read: object, name: str, content: str, message: str
):
    path = write(tmp_path, name, content)
    with pytest.raises(CorpusError) as caught:
        list(read(path))
    assert message in str(caught.value)


def test_an_empty_cell_does_not_move_the_columns_of_a_judgement(tmp_path: Path):
    path = write(tmp_path, "r.tsv", "q\td\tgrade\n\ta\t1\n")
    with pytest.raises(CorpusError, match=r"r\.tsv:2: id is blank"):
        list(read_qrels(path))


def test_beir_files_are_found_plain_or_packed(tmp_path: Path):
    corpus = write(tmp_path, "corpus.jsonl.gz", "x")
    queries = write(tmp_path, "queries.jsonl", "x")
    qrels = write(tmp_path, "qrels/dev.tsv", "x")
    found = beir_files(tmp_path, "dev")
    assert (found.corpus, found.queries, found.qrels) == (corpus, queries, qrels)
    with pytest.raises(CorpusError, match=r"holds no qrels/test\.tsv; splits found: dev"):
        beir_files(tmp_path)
    queries.unlink()
    with pytest.raises(CorpusError, match=r"holds no queries\.jsonl"):
        beir_files(tmp_path, "dev")


def test_the_quora_files_are_read_whole(shared_data: Path):
    folder = shared_data / "quora" / "ir"
    queries = list(read_queries(folder / "queries.tsv"))
    judgements = list(read_qrels(folder / "qrels.tsv"))
    assert (len(queries), len(judgements)) == (8_484, 13_236)
    assert sum(query.split == "test" for query in queries) == 5_200
    assert sum(judgement.split == "test" for judgement in judgements) == 7_957
