from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import NoReturn
from urllib.error import URLError

import pytest

from lamina_index.errors import EvaluationError
from lamina_index.quora_split import build_split, find_release

HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
ROWS = [
    "0\t1\t2\tHow do I cook rice?\tHow is rice cooked?\t1",
    "1\t2\t3\tHow is rice cooked?\tWhat is the way to cook rice?\t1",
    "2\t1\t3\tHow do I cook rice?\tWhat is the way to cook rice?\t0",  # crossed: 1-2-3 are one
    '3\t4\t5\t"Who said ""I think,\ttherefore I am""?"\tWho is Descartes?\t0',
    "4\t6\t7\tIs the earth flat?\t\t0",  # no text: as in three rows of the release
    "5\t8\t4\tWho said it?\tignored: question 4 has its text\t1",
    "6\t9\t10\tWho is Descartes?\tWhere was Descartes born?\t0",  # 9 has the text of 5
]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    path = tmp_path / "quora_duplicate_questions.tsv"
    path.write_text("\n".join([HEADER, *ROWS]) + "\n", encoding="utf-8")
    return path


def test_a_cluster_gives_one_query_and_the_rest_of_it_is_relevant(release: Path) -> None:
    split = build_split(release, seed=0)
    clusters = [{query, *grades} for query, grades in split.qrels.items()]
    assert clusters == [{"1", "2", "3"}, {"4", "8"}]
    assert set(split.queries) == set(split.qrels)
    assert split.crossed_pairs == 1


def test_the_corpus_is_every_question_that_is_not_a_query(release: Path) -> None:
    split = build_split(release, seed=0)
    assert set(split.corpus) | set(split.queries) == {"1", "2", "3", "4", "5", "8", "10"}
    assert not set(split.corpus) & set(split.queries)


def test_quoted_fields_are_read_as_the_release_writes_them(release: Path) -> None:
    split = build_split(release, seed=0)
    texts = split.corpus | split.queries
    assert texts["4"] == 'Who said "I think,\ttherefore I am"?'


def test_equal_texts_are_one_question_and_textless_pairs_are_counted(release: Path) -> None:
    split = build_split(release, seed=0)
    assert (split.merged_questions, split.skipped_rows) == (1, 1)


def test_the_seed_decides_the_queries(release: Path) -> None:
    drawn = {frozenset(build_split(release, seed=seed).queries) for seed in range(20)}
    assert len(drawn) > 1
    assert build_split(release, seed=3) == build_split(release, seed=3)


def test_a_comma_separated_copy_gives_the_same_split(release: Path, tmp_path: Path) -> None:
    commas = tmp_path / "train.csv"
    commas.write_text(
        '"id","qid1","qid2","question1","question2","is_duplicate"\n'
        '"0","1","2","How, do I?","How?","1"\n'
    )
    split = build_split(commas, seed=0)
    assert {*split.queries.values(), *split.corpus.values()} == {"How, do I?", "How?"}


def test_the_written_split_is_in_beir_layout(release: Path, tmp_path: Path) -> None:
    split = build_split(release, seed=0)
    split.write(tmp_path / "out")
    qrels = (tmp_path / "out" / "qrels" / "test.tsv").read_text().splitlines()
    assert qrels[0] == "query-id\tcorpus-id\tscore"
    assert len(qrels) == 1 + sum(map(len, split.qrels.values()))
    assert len((tmp_path / "out" / "corpus.jsonl").read_bytes().splitlines()) == len(split.corpus)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("qid\ttext\n1\thello\n", "columns qid, text; expected id, qid1"),
        ("", "columns ; expected id"),
        (f"{HEADER}\n0\t1\t2\ta?\tb?\n", "tsv:2: 5 fields"),
        (f'{HEADER}\n0\t1\t2\t"a?\tb?\t1\n', "unexpected end of data"),
        (f"{HEADER}\n0\t1\t2\ta?\tb?\t0\n", "no pair of different questions is labelled 1"),
    ],
)
def test_another_file_is_refused_and_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "release.tsv"
    path.write_text(content)
    with pytest.raises(EvaluationError, match=message) as caught:
        build_split(path, seed=0)
    assert str(path) in str(caught.value)


def test_without_a_network_the_remedy_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> NoReturn:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    with pytest.raises(EvaluationError, match=r"no such file, and downloading .* copy the release"):
        find_release(tmp_path / "quora_duplicate_questions.tsv")
    assert not list(tmp_path.iterdir())


def test_a_download_of_other_content_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked.html"
    blocked.write_text("<html>blocked</html>")
    monkeypatch.setattr("lamina_index.quora_split.RELEASE_URL", blocked.as_uri())
    with pytest.raises(EvaluationError, match="got 20 bytes of sha256"):
        find_release(tmp_path / "release.tsv")
    assert [path.name for path in tmp_path.iterdir()] == ["blocked.html"]
