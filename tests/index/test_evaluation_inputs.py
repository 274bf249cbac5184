from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

from lamina_index.corpus import Document, Rejected
from lamina_index.errors import CorpusError, EvaluationError
from lamina_index.evaluation_inputs import (
    EvaluationInputs,
    inputs_from_beir,
    inputs_from_files,
    inputs_from_quora,
    with_distractors,
)
from lamina_index.quora_split import build_split


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "corpus.tsv": "qid\ttext\nd1\tone\nd2\ttwo\n",
        "queries.tsv": "qid\ttext\tsplit\nq1\tfirst\tdev\nq2\tsecond\ttest\nq3\tnobody\ttest\n",
        "qrels.tsv": "query_qid\tcorpus_qid\tsplit\nq1\td1\tdev\nq2\td2\ttest\n",
        "graded.tsv": "query\tdocument\tgrade\nq1\td1\t2\nq2\td2\t0\nq2\td1\t1\n",
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def read(
    folder: Path, *, qrels: str = "qrels.tsv", corpus: str | None = None, split: str | None = None
) -> EvaluationInputs:
    beside = folder / corpus if corpus else None
    return inputs_from_files(
        folder / "queries.tsv", folder / qrels, beside, split=split, keep_self=False
    )


def ids(records: Iterable[Document | Rejected] | None) -> list[str]:
    assert records is not None
    return [record.id for record in records if isinstance(record, Document)]


def test_without_a_split_all_judgements_count(folder: Path) -> None:
    assert read(folder).judged.qrels == {"q1": {"d1": 1}, "q2": {"d2": 1}}


def test_a_split_column_of_the_judgements_is_honoured(folder: Path) -> None:
    judged = read(folder, split="test").judged
    assert (judged.texts, judged.qrels) == ({"q2": "second"}, {"q2": {"d2": 1}})


def test_a_split_column_of_the_queries_stands_in_for_that_of_the_judgements(folder: Path) -> None:
    judged = read(folder, qrels="graded.tsv", split="test").judged
    assert judged.qrels == {"q2": {"d2": 0, "d1": 1}}


def test_an_unknown_split_names_those_there_are(folder: Path) -> None:
    with pytest.raises(EvaluationError, match=r"no judgement of split 'train'; it has dev, test"):
        read(folder, split="train")


def test_a_header_alone_is_no_judgement(folder: Path) -> None:
    (folder / "qrels.tsv").write_text("query_qid\tcorpus_qid\tsplit\n")
    with pytest.raises(EvaluationError, match=r"qrels\.tsv: no judgements"):
        read(folder, split="dev")


def test_judged_queries_must_have_a_text(folder: Path) -> None:
    (folder / "qrels.tsv").write_text("a\tb\nq9\td1\n")
    with pytest.raises(EvaluationError, match=r"1 judged queries have no text \(q9\)"):
        read(folder)


def test_queries_without_a_text_column_are_refused_with_their_line(folder: Path) -> None:
    (folder / "queries.tsv").write_text("qid\tquestion\nq1\tfirst\n")
    with pytest.raises(CorpusError, match=r'queries\.tsv:2: no "text"'):
        read(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", '\ufeffqid\ttext\nd1\t"one\nd2\ttwo\n'),
        ("b.csv", 'number,"question"\nd1,one\nd2,"two, too"\n'),
        ("c.jsonl", '{"_id": "d1", "title": "t", "text": "one"}\n{"_id": "d2", "text": "two"}\n'),
        ("d.jsonl", '{"key": "d1", "text": "one"}\n{"key": "d2", "text": "two"}\n'),
        ("e.tsv", "row\tid\ttext\n1\td1\tone\n2\td2\ttwo\n"),
    ],
)
def test_a_corpus_has_its_id_first_or_under_id(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert ids(read(folder, corpus=name).corpus) == ["d1", "d2"]


def test_beir_folders_are_read_by_split(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "title": "", "text": "one"}\n')
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "b"}\n'
    )
    for split, query in (("test", "q1"), ("dev", "q2")):
        (tmp_path / "qrels" / f"{split}.tsv").write_text(
            f"query-id\tcorpus-id\tscore\n{query}\td1\t1\n"
        )
    inputs = inputs_from_beir(tmp_path, split=None, keep_self=False)
    assert (inputs.judged.split, list(inputs.judged.qrels), ids(inputs.corpus)) == (
        "test", ["q1"], ["d1"]
    )  # fmt: skip
    inputs = inputs_from_beir(tmp_path, split="dev", keep_self=False)
    assert list(inputs.judged.qrels) == ["q2"]


def test_the_quora_split_gives_the_same_inputs_in_memory_and_as_beir(tmp_path: Path) -> None:
    release = tmp_path / "release.tsv"
    release.write_text(
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        '0\t1\t2\tone?\t"two\n""lines"""\t1\n1\t3\t4\tthree?\tfour?\t0\n'
    )
    split = build_split(release, seed=1)
    split.write(tmp_path / "beir")
    one = inputs_from_quora(release, split)
    other = inputs_from_beir(tmp_path / "beir", split=None, keep_self=False)
    assert one.judged.qrels == other.judged.qrels
    assert one.judged.texts == other.judged.texts
    assert one.corpus is not None
    assert other.corpus is not None
    assert [(d.id, d.text) for d in one.corpus if isinstance(d, Document)] == [
        (d.id, d.text) for d in other.corpus if isinstance(d, Document)
    ]


def test_distractors_get_ids_of_their_own_from_any_format(folder: Path) -> None:
    with gzip.open(folder / "sentences.tsv.gz", "wt") as stream:
        stream.write("sentence\nsome text\nmore text\n")
    (folder / "same.tsv").write_text("qid\ttext\nd1\tno match\n\t\n")
    files = [folder / "sentences.tsv.gz", folder / "same.tsv"]
    inputs = with_distractors(read(folder, corpus="corpus.tsv"), files)
    assert inputs.sources[-2:] == [str(file) for file in files]
    assert inputs.corpus is not None
    records = list(inputs.corpus)
    found = ids(records)
    assert found[:2] == ["d1", "d2"]
    assert len(set(found)) == 5
    assert all(name.startswith("distractor:") for name in found[2:])
    assert sum(isinstance(record, Rejected) for record in records) == 1


def test_a_corpus_with_distractor_ids_is_refused(folder: Path) -> None:
    (folder / "corpus.tsv").write_text("qid\ttext\ndistractor:0:x\ttext\n")
    inputs = with_distractors(read(folder, corpus="corpus.tsv"), [folder / "queries.tsv"])
    assert inputs.corpus is not None
    with pytest.raises(EvaluationError, match="kept for distractors"):
        list(inputs.corpus)


def test_a_text_column_can_be_named(folder: Path) -> None:
    (folder / "pairs.tsv").write_text("number\tleft\tright\n1\tone\ttwo\n")
    inputs = inputs_from_files(
        folder / "queries.tsv",
        folder / "qrels.tsv",
        folder / "pairs.tsv",
        text_field="right",
    )
    assert inputs.corpus is not None
    (document,) = inputs.corpus
    assert isinstance(document, Document)
    assert (document.id, document.text) == ("1", "two")
