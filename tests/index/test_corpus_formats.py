"""Every format that people have, read as documented in docs/formats.md."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import os
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina_index.corpus import CorpusOptions, Document, Rejected, read_corpus
from lamina_index.errors import CorpusError

STORABLE = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
IDS = st.text(STORABLE, min_size=1, max_size=40).filter(str.strip)
TEXTS = st.text(STORABLE, min_size=1, max_size=60).filter(str.strip)
ROWS = st.lists(st.tuples(IDS, TEXTS), min_size=1, max_size=8)


def read(path: Path, **options: str) -> list[Document | Rejected]:
    return list(read_corpus([path], CorpusOptions(**options)))


def pairs(items: list[Document | Rejected]) -> list[tuple[str, str]]:
    assert not [item for item in items if isinstance(item, Rejected)]
    return [(item.id, item.text) for item in items if isinstance(item, Document)]


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_jsonl_keeps_other_keys_as_metadata(tmp_path: Path):
    path = write(
        tmp_path,
        "a.jsonl",
        b'{"id":"1","text":"one","year":1999,"open":true,"tags":["a","b"],"none":null}\n'
        b'{"id":2,"text":"two","metadata":{"year":2.5}}\n',
    )
    first, second = read(path)
    assert first == Document(
        "1", "one", {"year": 1999, "open": True, "tags": ["a", "b"]}, file="", line=0
    )
    assert (first.file, first.line) == (str(path), 1)
    assert second == Document("2", "two", {"year": 2.5})


def test_csv_fields_may_hold_delimiter_quote_and_line_break(tmp_path: Path):
    path = write(tmp_path, "a.csv", b'id;text;n\nc;"hi;\n""x""";1\nd;plain;2\n')
    assert read(path, delimiter=";") == [
        Document("c", 'hi;\n"x"', {"n": 1}),
        Document("d", "plain", {"n": 2}),
    ]


def test_tsv_quotes_are_plain_characters_and_merge_nothing(tmp_path: Path):
    path = write(tmp_path, "a.tsv", b'id\ttext\nFirst\tfirst\n"Second\tsecond\nThird "x"\tthird\n')
    assert pairs(read(path)) == [
        ("First", "first"),
        ('"Second', "second"),
        ('Third "x"', "third"),
    ]


def test_tables_can_have_another_delimiter(tmp_path: Path):
    path = write(tmp_path, "a.txt", b"id|text\n1|one\n")
    assert pairs(read(path, format="tsv", delimiter="|")) == [("1", "one")]


def test_empty_cells_and_unnamed_columns_are_no_metadata(tmp_path: Path):
    path = write(tmp_path, "a.csv", b",id,text,colour\n0,1,one,\n1,2,two,red\n")
    assert read(path) == [Document("1", "one"), Document("2", "two", {"colour": "red"})]


def test_empty_lines_are_no_records_but_count_as_lines(tmp_path: Path):
    for name, content in {
        "a.tsv": b"id\ttext\n\n\na\tone\n",
        "a.csv": b"id,text\n\n\na,one\n",
        "a.jsonl": b'\n  \n\n{"id":"a","text":"one"}\n',
    }.items():
        (item,) = read(write(tmp_path, name, content))
        assert (item.line, pairs([item])) == (4, [("a", "one")])


def test_plain_lines_get_ids_of_file_name_and_line_number(tmp_path: Path):
    path = write(tmp_path, "notes.txt", b"first\n\n  \n third\tpart \n")
    assert pairs(read(path)) == [("notes.txt:1", "first"), ("notes.txt:4", " third\tpart ")]


def test_line_ids_can_be_asked_for_in_any_format(tmp_path: Path):
    path = write(tmp_path, "s.tsv", b"sentence\nfirst\nsecond\n")
    items = read(path, id_field="line", text_field="sentence")
    assert pairs(items) == [("s.tsv:2", "first"), ("s.tsv:3", "second")]


def test_two_inputs_that_would_make_equal_line_ids_are_refused(tmp_path: Path):
    (tmp_path / "b").mkdir()
    paths = [write(tmp_path, "a.txt", b"x\n"), write(tmp_path / "b", "a.txt", b"y\n")]
    with pytest.raises(CorpusError, match=r"an input named a\.txt was given before"):
        read_corpus(paths)


def test_inputs_follow_one_another_and_repeated_ids_stay(tmp_path: Path):
    paths = [
        write(tmp_path, "a.jsonl", b'{"id":"a","text":"old"}\n{"id":"a","text":"newer"}\n'),
        write(tmp_path, "b.csv", b"id,text\na,newest\n"),
    ]
    assert [item.text for item in read_corpus(paths) if isinstance(item, Document)] == [
        "old",
        "newer",
        "newest",
    ]


def test_a_folder_gives_each_text_file_by_relative_path(tmp_path: Path):
    for name in ("b.md", "a/z.txt", "a/deep/x.MD", "skip.rst", ".hidden.md", ".git/c.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of\n{name}")
    (tmp_path / "p.txt.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfpacked"))
    assert pairs(read(tmp_path)) == [
        ("b.md", "text of\nb.md"),
        ("p.txt.gz", "packed"),
        ("a/z.txt", "text of\na/z.txt"),
        ("a/deep/x.MD", "text of\na/deep/x.MD"),
    ]


def test_a_bad_file_of_a_folder_costs_only_itself(tmp_path: Path):
    write(tmp_path, "a.txt", b"")
    write(tmp_path, "b.txt", b"caf\xe9")
    write(tmp_path, "c.txt.gz", gzip.compress(b"whole" * 100)[:-9])
    write(tmp_path, "d.txt", b"good")
    empty, latin, cut, good = read(tmp_path)
    assert isinstance(empty, Rejected)
    assert isinstance(latin, Rejected)
    assert isinstance(cut, Rejected)
    assert (empty.id, empty.reason) == ("a.txt", "text is blank")
    assert latin.reason == "not UTF-8: byte 0xe9 at position 4"
    assert "cut or damaged gzip" in cut.reason
    assert pairs([good]) == [("d.txt", "good")]


def test_a_folder_without_text_files_is_an_error(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"holds no \.md or \.txt file"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_beir_folder_joins_title_and_text(tmp_path: Path, name: str):
    rows = (
        b'{"_id":"d1","title":"Heat","text":"flows.","metadata":{"url":"u"}}\n'
        b'{"_id":"d2","title":"","text":"No title"}\n'
        b'{"_id":"d3","title":"Only title","text":""}\n'
    )
    path = write(tmp_path, name, gzip.compress(rows) if name.endswith("gz") else rows)
    for source, options in ((tmp_path, {}), (path, {"format": "beir"})):
        assert read(source, **options) == [
            Document("d1", "Heat flows.", {"title": "Heat", "url": "u"}),
            Document("d2", "No title"),
            Document("d3", "Only title", {"title": "Only title"}),
        ]


def test_parquet_values_come_as_json_would_have_them(tmp_path: Path):
    pa = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="the parquet extra is not installed")
    nanoseconds = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", tz="UTC"))
    table = pa.table(
        {
            "id": pa.array([2**63, 7], pa.uint64()),
            "text": ["one", "two"],
            "day": [datetime.date(2024, 2, 29), None],
            "at": nanoseconds,
            "price": [Decimal("1.50"), None],
            "tags": [["a"], None],
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    assert read(path) == [
        Document(
            "9223372036854775808",
            "one",
            {
                "day": "2024-02-29",
                "at": "2023-11-14T22:13:20.123456+00:00",
                "price": 1.5,
                "tags": ["a"],
            },
        ),
        Document("7", "two"),
    ]


def test_bad_parquet_strings_cost_only_their_row(tmp_path: Path):
    pa = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="the parquet extra is not installed")
    broken = pa.array([b"good", b"caf\xe9", b"fine"], pa.binary()).view(pa.string())
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1, 2, 3], "text": broken}), path)
    first, second, third = read(path)
    assert second == Rejected(str(path), 2, "a string is not UTF-8")
    assert pairs([first, third]) == [("1", "good"), ("3", "fine")]


def test_a_file_that_is_no_parquet_is_an_error(tmp_path: Path):
    pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    with pytest.raises(CorpusError, match="cannot be read as Parquet"):
        read(write(tmp_path, "a.parquet", b"PAR1 not really"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\r\n1,one\r\n2,two\r\n"),
        ("a.tsv", "id\ttext\r\n1\tone\r\n2\ttwo\r\n"),
        ("a.jsonl", '{"id":"1","text":"one"}\r\n{"id":"2","text":"two"}\r\n'),
    ],
)
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", [b"\r\n", b"\n", b"\r"])
@pytest.mark.parametrize("packed", [False, True])
def test_byte_order_mark_line_ending_and_gzip_change_nothing(
    tmp_path: Path, name: str, content: str, bom: bytes, ending: bytes, packed: bool
):
    data = bom + content.encode().replace(b"\r\n", ending)
    if packed:
        name, data = f"{name}.gz", gzip.compress(data)
    assert pairs(read(write(tmp_path, name, data))) == [("1", "one"), ("2", "two")]


def test_a_missing_last_line_ending_loses_nothing(tmp_path: Path):
    assert pairs(read(write(tmp_path, "a.tsv", b"id\ttext\n1\tone"))) == [("1", "one")]


def test_gzip_is_known_by_content_and_may_have_several_members(tmp_path: Path):
    data = gzip.compress(b"id\ttext\n1\tone\n") + gzip.compress(b"2\ttwo\n")
    assert pairs(read(write(tmp_path, "a.tsv", data))) == [("1", "one"), ("2", "two")]


def test_the_mark_character_inside_text_is_kept(tmp_path: Path):
    path = write(tmp_path, "a.tsv", "\ufeffid\ttext\n1\ta\ufeffb\n2\t\ufefftwo\n".encode())
    assert pairs(read(path)) == [("1", "a\ufeffb"), ("2", "\ufefftwo")]


def test_a_stray_carriage_return_ends_no_line(tmp_path: Path):
    path = write(tmp_path, "a.tsv", b"id\ttext\n1\tone\rmore\n2\ttwo\n")
    assert pairs(read(path)) == [("1", "one\rmore"), ("2", "two")]


def test_other_line_separators_of_unicode_end_no_line(tmp_path: Path):
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g"
    assert pairs(read(write(tmp_path, "a.tsv", f"id\ttext\n1\t{text}\n".encode()))) == [("1", text)]


def test_lone_surrogates_and_nul_become_replacement_characters(tmp_path: Path):
    path = write(
        tmp_path,
        "a.jsonl",
        rb'{"id":"1","text":"a\udbc0b","note":"\ud83d"}'
        b"\n"
        rb'{"id":"2","text":"a\u0000b \ud83d\ude00"}',
    )
    assert read(path) == [
        Document("1", "a\ufffdb", {"note": "\ufffd"}),
        Document("2", "a\ufffdb \U0001f600"),
    ]


def test_raw_nul_is_repaired_in_tables(tmp_path: Path):
    for name, content in {"a.csv": b"id,text\n1,a\0b\n", "a.tsv": b"id\ttext\n1\ta\0b\n"}.items():
        assert pairs(read(write(tmp_path, name, content))) == [("1", "a\ufffdb")]


def test_ids_keep_every_digit_and_zero(tmp_path: Path):
    path = write(
        tmp_path,
        "a.jsonl",
        b'{"id":"1","text":"a"}\n{"id":1,"text":"b"}\n{"id":"01","text":"c"}\n'
        b'{"id":9007199254740993,"text":"d"}\n{"id":-1,"text":"e"}\n'
        b'{"id":36893488147419103232,"text":"f"}\n',
    )
    expected = ["1", "1", "01", "9007199254740993", "-1", "36893488147419103232"]
    assert [identity for identity, _ in pairs(read(path))] == expected


def test_standard_input_is_read_in_the_format_given(monkeypatch: pytest.MonkeyPatch):
    class Terminal:
        buffer = io.BytesIO(gzip.compress(b"\xef\xbb\xbfone\ntwo\n"))

    monkeypatch.setattr(sys, "stdin", Terminal)
    items = list(read_corpus(["-"], CorpusOptions(format="text")))
    assert pairs(items) == [("stdin:1", "one"), ("stdin:2", "two")]
    assert items[0].file == "<stdin>"
    for options in (CorpusOptions(), CorpusOptions(format="parquet")):
        with pytest.raises(CorpusError, match="set --format"):
            read_corpus(["-"], options)


def test_a_pipe_is_read_once(tmp_path: Path):
    path = tmp_path / "pipe.tsv"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"id\ttext\n1\tone\n",))
    writer.start()
    try:
        assert pairs(read(path)) == [("1", "one")]
    finally:
        writer.join()


@given(rows=ROWS, bom=st.booleans(), ending=st.sampled_from(["\n", "\r\n"]))
def test_written_csv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    bom: bool,
    ending: str,
):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with path.open("w", newline="", encoding="utf-8-sig" if bom else "utf-8") as stream:
        writer = csv.writer(stream, lineterminator=ending, quoting=csv.QUOTE_ALL)
        writer.writerows([("id", "text"), *rows])
    assert pairs(read(path)) == rows


@given(rows=ROWS, ascii_only=st.booleans())
def test_written_jsonl_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ascii_only: bool
):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    lines = [
        json.dumps({"id": identity, "text": text}, ensure_ascii=ascii_only)
        for identity, text in rows
    ]
    path.write_bytes("\n".join(lines).encode())
    assert pairs(read(path)) == rows


@given(rows=ROWS)
def test_written_tsv_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
):
    blank = str.maketrans("\t\n\r", "   ")
    rows = [(identity.translate(blank), text.translate(blank)) for identity, text in rows]
    path = tmp_path_factory.mktemp("tsv") / "a.tsv"
    path.write_bytes(
        "".join(f"{cells[0]}\t{cells[1]}\n" for cells in [("id", "text"), *rows]).encode()
    )
    assert pairs(read(path)) == rows
