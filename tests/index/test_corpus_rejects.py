"""A bad record costs only itself; a bad file stops the run with a remedy."""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from lamina_index.corpus import (
    MAX_RECORD_BYTES,
    CorpusOptions,
    Document,
    Rejected,
    read_corpus,
    sources,
)
from lamina_index.errors import CorpusError, MissingExtraError

GOOD = b'{"id":"good","text":"good"}'


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path, **options: str) -> list[Document | Rejected]:
    return list(read_corpus([path], CorpusOptions(**options)))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text":"x"}', 'no "id"; found "text" (--id-field names another)'),
        (b'{"id":"a"}', 'no "text"; found nothing (--text-field names another)'),
        (b'{"id":null,"text":"x"}', "id is null; expected a string or an integer"),
        (b'{"id":1.0,"text":"x"}', "id is the number 1.0; expected a string or an integer"),
        (b'{"id":true,"text":"x"}', "id is a boolean; expected a string or an integer"),
        (b'{"id":{},"text":"x"}', "id is an object; expected a string or an integer"),
        (b'{"id":["a"],"text":"x"}', "id is a list; expected a string or an integer"),
        (b'{"id":"","text":"x"}', "id is blank"),
        (b'{"id":" \\u2003\\n","text":"x"}', "id is blank"),
        (b'{"id":"a\\ud800","text":"x"}', "id holds a NUL or a lone surrogate"),
        (b'{"id":"a\\u0000","text":"x"}', "id holds a NUL or a lone surrogate"),
        (b'{"id":"' + b"x" * 513 + b'","text":"x"}', "id has 513 bytes; at most 512 are allowed"),
        (b'{"id":"' + "é".encode() * 257 + b'","text":"x"}', "id has 514 bytes"),
        (b'{"id":"a","text":5}', "text is the number 5; expected a string"),
        (b'{"id":"a","text":null}', "text is null; expected a string"),
        (b'{"id":"a","text":" \\n\\t "}', "text is blank"),
        (b'{"id":"a","text":""}', "text is blank"),
        (b'{"id":"a","text":"x"', "not JSON: Expecting ',' delimiter at character 21"),
        (b'{"id":"a","text":"a\tb"}', "not JSON: Invalid control character at"),
        (b"[1,2]", "line is a list; expected a JSON object"),
        (b"17", "line is the number 17; expected a JSON object"),
        (b'{"id":"a","text":"x","n":NaN}', "NaN is no JSON number"),
        (b'{"id":"a","text":"x","n":-Infinity}', "-Infinity is no JSON number"),
        (b'{"id":"a","text":"x","n":1e999}', 'field "n" is the number inf'),
        (b'{"id":"a","text":"x","n":' + b"9" * 5000 + b"}", "a number with thousands of digits"),
        (
            b'{"id":"a","text":"x","n":9223372036854775808}',
            'field "n" is the number 9223372036854775808',
        ),
        (b'{"id":"a","id":"b","text":"x"}', "a key stands twice in one object"),
        (b'{"id":"a","text":"x","m":{"n":{}}}', 'field "m" is an object'),
        (b'{"id":"a","text":"x","metadata":{"n":{}}}', 'field "n" is an object'),
        (b'{"id":"a","text":"x","n":1,"metadata":{"n":2}}', 'field "n" stands beside "metadata"'),
        (b'{"id":"a","text":"x","l":["a",1]}', 'field "l" is a list with other than strings'),
        (b'{"id":"a","text":"x","":1}', 'field "" has a blank name'),
        (b'{"id":"a","text":"x","metadata":{"id":1}}', 'field "id" cannot be metadata'),
        (b'{"id":"a","text":"x","\\ud800":1}', "has a NUL or a lone surrogate in its name"),
        (b'{"id":"a","text":"x","' + b"n" * 129 + b'":1}', "has a name longer than 128 bytes"),
        (b"[" * 100_000, "not usable JSON: nested too deeply"),
        (b'{"id":"a","text":"caf\xe9"}', "not UTF-8: byte 0xe9 at position 22"),
        (b'{"id":"a","text":"\xed\xa0\x80"}', "not UTF-8: byte 0xed at position 19"),
        (b"\xef\xbb\xbf" + GOOD, "not JSON"),
    ],
    ids=itertools.count(),
)
def test_a_bad_json_row_is_rejected_with_line_and_reason(tmp_path: Path, line: bytes, reason: str):
    path = write(tmp_path, "a.jsonl", b"\n".join([GOOD, line, GOOD]))
    before, bad, after = read(path)
    assert before == after == Document("good", "good")
    assert isinstance(bad, Rejected)
    assert (bad.file, bad.line) == (str(path), 2)
    assert reason in bad.reason
    assert len(bad.reason) < 200
    assert bad.reason.isprintable()


def test_a_rejected_row_tells_its_id_where_that_is_good(tmp_path: Path):
    (bad,) = read(write(tmp_path, "a.jsonl", b'{"id":7,"text":""}'))
    assert isinstance(bad, Rejected)
    assert bad.id == "7"


def rejects(items: list[Document | Rejected]) -> dict[int, str]:
    return {item.line: item.reason for item in items if isinstance(item, Rejected)}


def ids(items: list[Document | Rejected]) -> list[str]:
    return [item.id for item in items if isinstance(item, Document)]


def test_rows_with_another_number_of_columns_are_rejected(tmp_path: Path):
    rows = [b"id,text", b"a,x", b"b,x,y", b"c", b",x", b"d,", b"e,x"]
    for name, content in {
        "a.csv": b"\n".join(rows),
        "a.tsv": b"\n".join(rows).replace(b",", b"\t"),
    }.items():
        items = read(write(tmp_path, name, content))
        assert ids(items) == ["a", "e"]
        assert rejects(items) == {
            3: "3 columns; the header has 2",
            4: "1 column; the header has 2",
            5: 'no "id"; found "text" (--id-field names another)',
            6: 'no "text"; found nothing (--text-field names another)',
        }


def test_an_unclosed_quote_costs_its_own_line_only(tmp_path: Path):
    items = read(write(tmp_path, "a.csv", b'id,text\na,"open\nb,x\nc,"y"\nd,z\ne,"end\n'))
    assert ids(items) == ["b", "c", "d"]
    assert rejects(items) == {
        2: "not RFC 4180 CSV: ',' expected after '\"'",
        6: "a quoted field is never closed",
    }


def test_an_unclosed_quote_does_not_swallow_a_large_file(tmp_path: Path):
    line = b"x,%s\n" % (b"y" * 1000)
    count = MAX_RECORD_BYTES // len(line) + 1000
    items = read_corpus([write(tmp_path, "a.csv", b'id,text\na,"open\n' + line * count)])
    first = next(items)
    assert isinstance(first, Rejected)
    assert (first.line, first.reason) == (2, "a quoted field is not closed within 16 MiB")
    assert sum(isinstance(item, Document) for item in items) == count


def test_bytes_that_are_not_utf8_cost_their_csv_record_only(tmp_path: Path):
    items = read(write(tmp_path, "a.csv", b'id,text\na,caf\xe9\nb,"two\nlines \xff"\nc,x\n'))
    assert ids(items) == ["c"]
    assert rejects(items) == {
        2: "not UTF-8: byte 0xe9 at position 6",
        3: "not UTF-8: byte 0xff at position 7",
        4: "not UTF-8: byte 0xff at position 7",
    }


def test_a_carriage_return_in_an_unquoted_csv_field_is_rejected(tmp_path: Path):
    items = read(write(tmp_path, "a.csv", b'id,text\na,x\ry\nb,"x\ry"\n'))
    assert [item.text for item in items if isinstance(item, Document)] == ["x\ry"]
    assert rejects(items) == {2: "a carriage return stands in an unquoted field"}


def test_a_quote_inside_an_unquoted_csv_field_is_a_plain_character(tmp_path: Path):
    items = read(write(tmp_path, "a.csv", b'id,text\na,5" pipe\n'))
    assert items == [Document("a", '5" pipe')]


@pytest.mark.parametrize(
    ("name", "header", "start", "end", "good"),
    [
        ("a.jsonl", b"", b'{"id":"a","text":"', b'"}', b'{"id":"b","text":"x"}'),
        ("a.tsv", b"id\ttext\n", b"a\t", b"", b"b\tx"),
        ("a.csv", b"id,text\n", b"a,", b"", b"b,x"),
        ("a.txt", b"", b"", b"", b"x"),
    ],
)
def test_a_line_one_byte_too_long_is_rejected_and_the_next_is_read(
    tmp_path: Path, name: str, header: bytes, start: bytes, end: bytes, good: bytes
):
    longest = start + b"x" * (MAX_RECORD_BYTES - len(start + end)) + end
    path = write(tmp_path, name, header + longest + b"\n" + good)
    assert [type(item) for item in read(path)] == [Document, Document]
    path = write(tmp_path, name, header + start + b"x" + longest.removeprefix(start) + b"\n" + good)
    first, second = read(path)
    assert rejects([first]) == {header.count(b"\n") + 1: "line is longer than 16 MiB"}
    assert isinstance(second, Document)


def test_memory_is_bounded_on_a_line_without_end(monkeypatch: pytest.MonkeyPatch):
    class Endless:
        """A stream of 200 MiB without a line break."""

        left = 200

        def read(self, size: int) -> bytes:
            self.left -= 1
            return b"x" * size if self.left >= 0 else b""

    monkeypatch.setattr(sources, "open_stream", lambda path: nullcontext(Endless()))
    tracemalloc.start()
    try:
        (line,) = sources.read_lines("endless")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert line.content is None
    assert peak < 3 * MAX_RECORD_BYTES


def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    def rows(count: int) -> Iterator[bytes]:
        for number in range(count):
            yield json.dumps({"id": number, "text": "word " * 200, "n": number}).encode() + b"\n"

    def peak(count: int) -> int:
        path = write(tmp_path, f"{count}.jsonl", b"".join(rows(count)))
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_corpus([path])) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(12_000) < peak(3_000) * 1.2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", b"", "is empty"),
        ("a.jsonl", b"\xef\xbb\xbf", "is empty"),
        ("a.txt.gz", gzip.compress(b""), "is empty"),
        ("a.jsonl", "{}".encode("utf-16"), "is UTF-16; convert it to UTF-8"),
        ("a.tsv.gz", gzip.compress(b"id\ttext\n" * 99)[:-4], "cut or damaged gzip"),
        ("a.csv", b"qid,text\n1,x\n", 'no column "id"; found "qid", "text"; set --id-field'),
        ("a.csv", b"id,body\n1,x\n", 'no column "text"; found "id", "body"; set --text-field'),
        ("a.csv", b"id;text\n1;x\n", 'or --delimiter if "," does not separate them'),
        ("a.csv", b"1,hello\n2,x\n", 'no column "id"; found "1", "hello"'),
        ("a.csv", b"id,text,text\n1,x,y\n", 'column "text" is named twice'),
        ("a.csv", b"id,_id,text\xff\n1,1,x\n", "cannot read the header: not UTF-8"),
        ("a.tsv", b"\n\n", "cannot read the header: no header line"),
        ("a.json", b"[]", "its name does not tell the format; set --format to one of jsonl"),
        ("corpus", b"x", "its name does not tell the format"),
    ],
)
def test_an_unusable_file_is_an_error_with_a_remedy(
    tmp_path: Path, name: str, content: bytes, message: str
):
    path = write(tmp_path, name, content)
    with pytest.raises(CorpusError) as caught:
        read_corpus([path])  # at once, before anything is read of other inputs
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_column_that_metadata_cannot_be_named_after_is_an_error(tmp_path: Path):
    path = write(tmp_path, "a.csv", b"qid,id,text\n1,2,x\n")
    with pytest.raises(CorpusError, match='column "id" is neither the id nor the text here'):
        read_corpus([path], CorpusOptions(id_field="qid"))


def test_paths_that_are_not_what_the_format_needs_are_errors(tmp_path: Path):
    file = write(tmp_path, "a.txt", b"x")
    for path, options, message in (
        (tmp_path / "no.tsv", CorpusOptions(), "no such file or folder"),
        (tmp_path, CorpusOptions(format="csv"), "is a folder; --format csv expects a file"),
        (file, CorpusOptions(format="folder"), "is a file; --format folder expects a folder"),
        (tmp_path, CorpusOptions(format="beir"), "holds no corpus.jsonl"),
    ):
        with pytest.raises(CorpusError, match=message):
            read_corpus([path], options)


def test_a_gzip_file_cut_far_inside_stops_the_stream_by_name(tmp_path: Path):
    lines = b"".join(b"%d\ttext %d\n" % (n, n * 7919) for n in range(200_000))
    packed = gzip.compress(b"id\ttext\n" + lines)
    path = write(tmp_path, "a.tsv.gz", packed[: len(packed) // 2])
    items = read_corpus([path])
    assert isinstance(next(items), Document)
    with pytest.raises(CorpusError, match=r"a\.tsv\.gz: cut or damaged gzip"):
        list(items)


def test_options_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="is not one of jsonl, csv"):
        CorpusOptions(format="xml")
    for delimiter in ("", "ab", '"', "\n"):
        with pytest.raises(ValueError, match="must be one character"):
            CorpusOptions(delimiter=delimiter)


def test_without_pyarrow_parquet_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path, "a.parquet", b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lamina-search\[parquet\]'"):
        read_corpus([path])
