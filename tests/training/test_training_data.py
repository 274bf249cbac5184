"""Reading what is trained on: formats, errors with file and line, order, keys."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.errors import CorpusError
from lamina_training.data_rows import TrainingDataError
from lamina_training.duplicates import duplicate_keys, sha256_half
from lamina_training.training_data import (
    Example,
    LabelledExample,
    read_examples,
    read_labelled,
    read_labels,
    read_names,
    to_dataset,
)

PAIRS = [("How do I cook?", "How to cook?"), ('Say "hi", now', "Tab-free")]
COLUMNS = ("anchor", "positive")


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def pairs_as(folder: Path, suffix: str) -> Path:
    """The same pairs in each format."""
    if suffix == "tsv":
        rows = ["\t".join(row) for row in (COLUMNS, *PAIRS)]
    elif suffix == "csv":
        quoted = [[cell.replace('"', '""') for cell in row] for row in (COLUMNS, *PAIRS)]
        rows = [",".join(f'"{cell}"' for cell in row) for row in quoted]
    else:
        rows = [json.dumps(dict(zip(COLUMNS, row, strict=True))) for row in PAIRS]
    return write(folder / f"pairs.{suffix}", *rows)


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
@pytest.mark.parametrize("packed", [False, True])
def test_formats_give_the_same_examples(tmp_path: Path, suffix: str, packed: bool) -> None:
    path = pairs_as(tmp_path, suffix)
    if packed:
        path = path.with_name(f"{path.name}.gz")
        path.write_bytes(gzip.compress((tmp_path / f"pairs.{suffix}").read_bytes()))
    examples = list(read_examples(path, columns=COLUMNS))
    assert examples == [Example(pair, (None, None)) for pair in PAIRS]


def test_a_byte_order_mark_does_not_hide_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_bytes("\ufeffanchor\tpositive\na\tb\n".encode())
    assert next(read_examples(path, columns=COLUMNS)).texts == ("a", "b")


def test_texts_are_normalised_as_they_are_at_query_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence", "  cafe\u0301 ")
    assert next(read_examples(path, columns=["sentence"])).texts == ("caf\u00e9",)


def test_triplets_carry_a_cluster_for_the_texts_that_have_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "group\ta\tp\tn", "7\tone\ttwo\tthree")
    for none in (None, ""):
        examples = list(read_examples(path, columns="apn", clusters=("group", "group", none)))
        assert examples == [Example(("one", "two", "three"), ("7", "7", None))]


def test_only_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"t": "a", "y": 1}', '{"t": "b", "y": 0}', '{"t":"c","y":""}'
    )
    examples = read_examples(path, columns=["t"], where={"y": ["1"]})
    assert [example.texts for example in examples] == [("a",)]


def test_ids_are_looked_up_with_their_clusters(tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.tsv", "qid1\tqid2", "q1\tq2")
    questions = write(tmp_path / "questions.tsv", "qid\ttext", "q1\tfirst", "q2\tsecond")
    splits = write(tmp_path / "splits.tsv", "qid\tcluster", "q1\tc9")
    examples = read_examples(
        pairs,
        columns=("qid1", "qid2"),
        texts=read_names(questions, key="qid", value="text"),
        cluster_of=read_names(splits, key="qid", value="cluster"),
    )
    assert list(examples) == [Example(("first", "second"), ("c9", None))]


def test_halves_share_no_text_and_leave_none_out(tmp_path: Path) -> None:
    texts = [f"sentence {number}" for number in range(50)]
    path = write(tmp_path / "a.tsv", "sentence", *texts)
    even, odd = (
        [example.texts[0] for example in read_examples(path, columns=["sentence"], half=half)]
        for half in ("even", "odd")
    )
    assert sorted(even + odd) == sorted(texts)
    assert 10 < len(even) < 40
    assert {sha256_half(text) for text in even} == {"even"}


def test_reading_does_not_run_ahead(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "anchor\tpositive", "a\tb", "c\t")
    examples = read_examples(path, columns=COLUMNS)
    assert next(examples).texts == ("a", "b")  # the bad row comes next
    with pytest.raises(TrainingDataError):
        next(examples)


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        (
            "a.tsv",
            ["anchor\tpos", "a\tb"],
            r'a\.tsv:1: no column "positive"; found "anchor", "pos"',
        ),
        ("a.tsv", ["x\ty", "a\tb"], r'a\.tsv:1: no columns "anchor", "positive"; found'),
        ("a.tsv", ["anchor\tpositive"], r"a\.tsv: has a header but no rows"),
        ("a.tsv", ["anchor\tpositive", "a\tb", "c"], r"a\.tsv:3: 1 column; the header has 2"),
        ("a.tsv", ["anchor\tpositive", "a\tb", "c\t "], r'a\.tsv:3: column "positive": text is bl'),
        ("a.csv", ["anchor,positive", '"a,b'], r"a\.csv:2: a quoted field is never closed"),
        ("a.jsonl", ['{"anchor": "a"}'], r'a\.jsonl:1: no column "positive"; found "anchor"'),
        (
            "a.jsonl",
            ['{"anchor": 3, "positive": "b"}'],
            r'a\.jsonl:1: column "anchor": text is the',
        ),
        ("a.jsonl", ["{"], r"a\.jsonl:1: not JSON"),
        ("a.txt", ["a"], r"a\.txt: expected a \.tsv, \.csv or \.jsonl file"),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, name: str, lines: list[str], message: str
) -> None:
    with pytest.raises(TrainingDataError, match=message):
        list(read_examples(write(tmp_path / name, *lines), columns=COLUMNS))


def test_an_empty_or_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").touch()
    with pytest.raises(CorpusError, match=r"a\.tsv: is empty"):
        list(read_examples(tmp_path / "a.tsv", columns=COLUMNS))
    with pytest.raises(CorpusError, match=r"b\.tsv: cannot be read"):
        list(read_examples(tmp_path / "b.tsv", columns=COLUMNS))


def test_a_filter_that_leaves_nothing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "t\tlabel", "a\t0", "b\t0")
    with pytest.raises(TrainingDataError, match=r"none of its 2 rows has label in \['1'\]"):
        list(read_examples(path, columns=["t"], where={"label": ["1"]}))
    only = next(half for half in ("even", "odd") if half != sha256_half("a"))
    path = write(tmp_path / "b.tsv", "t", "a")
    with pytest.raises(TrainingDataError, match=f"no row has a text of the {only} half"):
        list(read_examples(path, columns=["t"], half=only))


def test_unknown_and_repeated_ids_are_named(tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.tsv", "qid1\tqid2", "q1\tq8")
    with pytest.raises(TrainingDataError, match=r'pairs\.tsv:2: column "qid2": no text .* "q8"'):
        list(read_examples(pairs, columns=("qid1", "qid2"), texts={"q1": "first"}))
    twice = write(tmp_path / "names.tsv", "qid\ttext", "q1\ta", "q1\tb")
    with pytest.raises(TrainingDataError, match=r'names\.tsv:3: column "qid": "q1" stands twice'):
        read_names(twice, key="qid", value="text")


@pytest.mark.parametrize(
    "arguments",
    [
        {"columns": ()},
        {"columns": ("a", "a")},
        {"columns": ("a", "b"), "clusters": ("c",)},
        {"columns": ("a",), "cluster_of": {}},
    ],
)
def test_columns_that_cannot_be_meant_are_refused(
    tmp_path: Path, arguments: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"column|cluster"):
        list(read_examples(tmp_path / "a.tsv", **arguments))


def test_labels_are_ordered_as_numbers_where_they_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tword", "10\tyes", "2\tno", "10\tmaybe")
    assert read_labels(path, label="label") == ("2", "10")
    assert read_labels(path, label="word") == ("maybe", "no", "yes")


def test_labelled_pairs_carry_the_place_of_their_label(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tq\ts", "no\twhat\tthis", "yes\twho\tthat")
    rows = list(read_labelled(path, columns="qs", label="label", labels=("yes", "no")))
    assert rows == [LabelledExample(("what", "this"), 1), LabelledExample(("who", "that"), 0)]


def test_tenths_split_a_file_by_its_first_text(tmp_path: Path) -> None:
    lines = [f"{number % 2}\tpremise {number // 3}\thypothesis {number}" for number in range(300)]
    path = write(tmp_path / "a.tsv", "y\tp\th", *lines)

    def texts(*tenths: int) -> set[tuple[str, ...]]:
        options = {"label": "y", "labels": ("0", "1"), "tenths": tenths}
        return {row.texts for row in read_labelled(path, columns="ph", **options)}  # type: ignore[arg-type]  # mixed

    dev, train = texts(0), texts(*range(1, 10))
    assert (len(dev | train), len(dev & train)) == (300, 0)
    assert len(dev) % 3 == 0  # the three rows of a premise stay together
    assert not {row[0] for row in dev} & {row[0] for row in train}
    one = write(tmp_path / "one.tsv", "y\tp\th", "0\tabc\td")  # in tenth 5
    with pytest.raises(
        TrainingDataError, match=r"one\.tsv: no row has its first text in the tenths"
    ):
        list(read_labelled(one, columns="ph", label="y", labels=("0", "1"), tenths=[0]))


def test_json_labels_of_any_scalar_kind_are_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"t": "a", "y": true}', '{"t": "b", "y": false}')
    assert read_labels(path, label="y") == ("false", "true")
    path = write(tmp_path / "b.jsonl", '{"t": "a", "y": 0.5}')
    with pytest.raises(TrainingDataError, match=r'b\.jsonl:1: column "y" is the number 0\.5'):
        read_labels(path, label="y")


def test_a_bad_label_is_named_with_its_line_and_the_good_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "dev.tsv", "label\tt", "0\ta", "2\tb")
    with pytest.raises(
        TrainingDataError, match=r'dev\.tsv:3: column "label" is "2".*"0", "1": mend'
    ):
        list(read_labelled(path, columns="t", label="label", labels=("0", "1")))
    path = write(tmp_path / "blank.tsv", "label\tt", "\ta")
    with pytest.raises(TrainingDataError, match=r'blank\.tsv:2: column "label" is blank'):
        list(read_labelled(path, columns="t", label="label", labels=("0", "1")))


def test_labels_that_teach_nothing_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one.tsv", "label", "0", "0")
    with pytest.raises(TrainingDataError, match=r'column "label" is "0" in every row'):
        read_labels(one, label="label")
    many = write(tmp_path / "many.tsv", "label", *map(str, range(1001)))
    with pytest.raises(TrainingDataError, match=r"many\.tsv:1002: .* more than 1000"):
        read_labels(many, label="label")


def test_a_dataset_has_a_column_for_each_text_and_its_keys() -> None:
    dataset = to_dataset([Example(("a", "b", "c", "d"), ("q", "q", None, None))])
    assert dataset.column_names == ["anchor", "positive", "negative", "negative2", "label"]
    # The trainer finds a column's tokens by its name and "_".
    for name, other in itertools.permutations(dataset.column_names, 2):
        assert not name.startswith(f"{other}_")
    keys = [duplicate_keys("a", "q"), duplicate_keys("b", "q")]
    assert dataset[0]["label"][:2] == keys
    assert to_dataset([Example(("a",), (None,))]).column_names == ["anchor", "label"]


def test_examples_of_different_widths_make_no_dataset() -> None:
    with pytest.raises(ValueError, match=r"found \[1, 2\]"):
        to_dataset([Example(("a",), (None,)), Example(("a", "b"), (None, None))])
    with pytest.raises(ValueError, match=r"found \[\]"):
        to_dataset([])


def numbered(count: int = 100) -> list[Example]:
    return [Example((str(number),), (None,)) for number in range(count)]


def anchors(dataset: object) -> list[str]:
    return [row["anchor"] for row in dataset]  # type: ignore[attr-defined]  # datasets is untyped


def test_a_seed_fixes_the_order() -> None:
    in_order = [str(number) for number in range(100)]
    first, same, other = (anchors(to_dataset(numbered(), seed=seed)) for seed in (1, 1, 2))
    assert anchors(to_dataset(numbered())) == in_order
    assert first == same
    assert first not in (other, in_order)
    assert sorted(first, key=int) == in_order


def test_the_public_training_files_are_read(shared_data: Path) -> None:
    triplets = read_examples(
        shared_data / "nli" / "triplets.tsv", columns=("anchor", "positive", "hard_negative")
    )
    assert sum(len(example.texts) == 3 for example in triplets) == 15_492
    cola = shared_data / "classification" / "cola" / "train.tsv"
    labels = read_labels(cola, label="label")
    assert labels == ("0", "1")
    rows = read_labelled(cola, columns=["sentence"], label="label", labels=labels)
    assert sum(1 for _ in rows) == 8551
