from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_index.build import build_collection
from lamina_index.encoder import Encoded, Encoder
from lamina_index.errors import EncoderOutputError
from lamina_index.manifest import Chunking, CollectionManifest
from lamina_index.store import DocumentStore


def build(content: bytes, name: str, folder: Path, encoder: Encoder) -> tuple[dict[str, str], Any]:
    """Build a collection of one file; give its documents and the lines of rejects.jsonl."""
    corpus = folder / name
    corpus.write_bytes(content)
    report = build_collection([corpus], folder / "c", encoder)
    with DocumentStore.open(folder / "c", read_only=True) as store:
        documents = {document.id: document.text for document in store.documents()}
    rejects = folder / "c" / "rejects.jsonl"
    lines = rejects.read_text().splitlines() if rejects.exists() else []
    assert report.rows_rejected == len(lines)
    assert report.documents == len(documents)
    return documents, [json.loads(line) for line in lines]


class FaultyEncoder:
    """The word encoder, with a fault that depends on the texts of a call."""

    def __init__(self, inner: Encoder, fault: Callable[[Sequence[str], Encoded], Encoded]) -> None:
        self._inner = inner
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, texts: Sequence[str], *, role: Any) -> Encoded:
        return self._fault(texts, self._inner.encode(texts, role=role))


def test_a_reject_names_file_line_reason_id_and_an_excerpt(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    content = b'{"id": "a", "text": "fine"}\n{"id": "b", "text": "' + b"-" * 5000 + b'"}\n'
    documents, rejects = build(content, "c.jsonl", tmp_path, word_encoder)
    assert documents == {"a": "fine"}
    assert rejects == [
        {
            "file": str(tmp_path / "c.jsonl"),
            "line": 2,
            "reason": "text is blank: no token is left of it",
            "id": "b",
            "text": "-" * 200,
        }
    ]


@pytest.mark.parametrize("text", ["", " ", "\\n\\n", "\\t", "\\u200b \\u3000", "...", "\\u00ad"])
def test_blank_and_zero_token_texts_are_rejected(
    text: str, tmp_path: Path, default_encoder: Encoder
) -> None:
    content = f'{{"id": "a", "text": "fine"}}\n{{"id": "b", "text": "{text}"}}\n'.encode()
    documents, rejects = build(content, "c.jsonl", tmp_path, default_encoder)
    if text == "...":  # three tokens to this encoder
        assert documents == {"a": "fine", "b": "..."}
    else:
        assert documents == {"a": "fine"}
        assert (rejects[0]["line"], "blank" in rejects[0]["reason"]) == (2, True)


@pytest.mark.parametrize(
    ("chunking", "bad"),
    [
        (None, {"id": "a", "text": "...", "year": "soon"}),
        (Chunking(tokens=4, overlap=0), {"id": "a", "text": "...", "year": "soon"}),
        (Chunking(tokens=4, overlap=0), {"id": "a", "text": "words", "year": "soon", "part": 1}),
        (Chunking(tokens=4, overlap=0), {"id": "a" * 510, "text": "words", "year": "soon"}),
    ],
)
def test_a_row_that_cannot_be_stored_decides_no_type(
    chunking: Chunking | None, bad: dict[str, Any], tmp_path: Path, word_encoder: Encoder
) -> None:
    rows = [bad, {"id": "b", "text": "words", "year": 3, "part": None}]
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = build_collection([corpus], tmp_path / "c", word_encoder, chunking=chunking)
    assert (report.rows_indexed, report.rows_rejected) == (1, 1)
    [reject] = map(json.loads, (tmp_path / "c" / "rejects.jsonl").read_text().splitlines())
    assert (reject["line"], reject["text"]) == (1, bad["text"])
    fields = CollectionManifest.read(tmp_path / "c" / "collection.json").fields
    assert fields["year"] == "number"


def test_lone_surrogates_and_nul_are_replaced_and_the_run_goes_on(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    content = (
        b'{"id":"1","text":"a\\udbc0b"}\n{"id":"2","text":"a\\u0000b"}\n'
        b'{"id":"3","text":"pair \\ud83d\\ude00"}\n'
    )
    documents, rejects = build(content, "c.jsonl", tmp_path, word_encoder)
    assert documents == {"1": "a\ufffdb", "2": "a\ufffdb", "3": "pair \U0001f600"}
    assert rejects == []


def test_ids_keep_their_digits_and_bad_ones_are_rejected(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    ids = ['"1"', '"01"', "9007199254740993", "-1", '""', f'"{"x" * 1_000_000}"', "1.5", "null"]
    content = "".join(f'{{"id": {each}, "text": "some text"}}\n' for each in ids).encode()
    documents, rejects = build(content, "c.jsonl", tmp_path, word_encoder)
    assert set(documents) == {"1", "01", "9007199254740993", "-1"}
    assert [reject["line"] for reject in rejects] == [5, 6, 7, 8]
    assert all(len(reject["reason"]) < 200 for reject in rejects)


def test_a_numeric_id_and_its_string_are_one_id(tmp_path: Path, word_encoder: Encoder) -> None:
    content = b'{"id": "1", "text": "string"}\n{"id": 1, "text": "number"}\n'
    documents, _ = build(content, "c.jsonl", tmp_path, word_encoder)
    assert documents == {"1": "number"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.csv", b"id,text\r\na,x\xef\xbb\xbfy\r\n"),
        ("c.tsv", b"id\ttext\na\tx\xef\xbb\xbfy\n"),
        ("c.jsonl", b'{"id": "a", "text": "x\xef\xbb\xbfy"}\n'),
    ],
)
def test_a_byte_order_mark_hides_nothing_and_stays_inside_text(
    name: str, content: bytes, tmp_path: Path, word_encoder: Encoder
) -> None:
    documents, rejects = build(b"\xef\xbb\xbf" + content, name, tmp_path, word_encoder)
    assert (documents, rejects) == ({"a": "x\ufeffy"}, [])


def test_quotes_in_tsv_swallow_no_line(tmp_path: Path, word_encoder: Encoder) -> None:
    content = b'id\ttext\nFirst\tfirst\n"Second\tsecond\nThird "x"\tthird\nFourth\n'
    documents, rejects = build(content, "c.tsv", tmp_path, word_encoder)
    assert documents == {"First": "first", '"Second': "second", 'Third "x"': "third"}
    assert [reject["line"] for reject in rejects] == [5]


def test_delimiter_and_newline_inside_a_quoted_csv_field_are_one_row(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    (tmp_path / "c.csv").write_bytes(b'id;text;n\nc;"hi;\n""x""";1\n')
    from lamina_index.corpus import CorpusOptions

    report = build_collection(
        [tmp_path / "c.csv"], tmp_path / "c", word_encoder, options=CorpusOptions(delimiter=";")
    )
    assert report.rows_read == report.documents == 1
    with DocumentStore.open(tmp_path / "c") as store:
        document = store.get("c")
    assert document is not None
    assert (document.text, document.metadata) == ('hi;\n"x"', {"n": 1})


def rows_with_one_bad(count: int, bad: int) -> bytes:
    return "".join(
        f'{{"id": "d{n}", "text": "{"poison" if n == bad else f"text {n}"}"}}\n'
        for n in range(count)
    ).encode()


def test_one_text_that_makes_the_encoder_raise_costs_only_itself(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    def fault(texts: Sequence[str], encoded: Encoded) -> Encoded:
        if "poison" in texts:
            raise RuntimeError("boom")
        return encoded

    encoder = FaultyEncoder(word_encoder, fault)
    documents, rejects = build(rows_with_one_bad(128, 77), "c.jsonl", tmp_path, encoder)
    assert len(documents) == 127
    assert [(reject["id"], reject["line"]) for reject in rejects] == [("d77", 78)]
    assert "boom" in rejects[0]["reason"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 7.0])
def test_a_vector_that_is_not_finite_or_not_of_unit_length_never_reaches_the_index(
    value: float, tmp_path: Path, word_encoder: Encoder
) -> None:
    def fault(texts: Sequence[str], encoded: Encoded) -> Encoded:
        encoded.embeddings[[text == "poison" for text in texts]] = value
        return encoded

    encoder = FaultyEncoder(word_encoder, fault)
    documents, rejects = build(rows_with_one_bad(101, 100), "c.jsonl", tmp_path, encoder)
    assert len(documents) == 100
    assert [reject["id"] for reject in rejects] == ["d100"]


def test_an_encoder_that_fails_on_everything_stops_the_build(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    def fault(texts: Sequence[str], encoded: Encoded) -> Encoded:
        raise RuntimeError("the graphics card fell off the bus")

    with pytest.raises(EncoderOutputError, match="fell off the bus"):
        build(rows_with_one_bad(5, 2), "c.jsonl", tmp_path, FaultyEncoder(word_encoder, fault))
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("shape", [(0,), (3, 0), (3, 31), (2, 32)])
def test_vectors_of_a_wrong_shape_stop_the_build(
    shape: tuple[int, ...], tmp_path: Path, word_encoder: Encoder
) -> None:
    def fault(texts: Sequence[str], encoded: Encoded) -> Encoded:
        wrong = np.zeros(shape, dtype=np.float32)
        return Encoded(wrong, encoded.token_counts, encoded.full_token_counts, encoded.blank)

    with pytest.raises(EncoderOutputError, match="shape"):
        build(rows_with_one_bad(3, 9), "c.jsonl", tmp_path, FaultyEncoder(word_encoder, fault))


def test_many_equal_ids_are_no_slower_than_distinct_ones(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    calls = 0

    def flat(texts: Sequence[str], encoded: Encoded) -> Encoded:
        nonlocal calls
        calls += 1
        return encoded

    content = "".join(f'{{"id": "d{n % 3990}", "text": "t"}}\n' for n in range(4000)).encode()
    documents, rejects = build(content, "c.jsonl", tmp_path, FaultyEncoder(word_encoder, flat))
    assert (len(documents), rejects) == (3990, [])
    assert calls == 4  # one call a block: repeated ids cause no second look at any row


def test_words_of_any_length_are_indexed(tmp_path: Path, default_encoder: Encoder) -> None:
    rows = [{"id": f"d{n}", "text": chr(97 + n) * 12_345} for n in range(3)]
    rows.append({"id": "mixed", "text": f"a word {'é' * 12_345} between others"})
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    documents, rejects = build(content, "c.jsonl", tmp_path, default_encoder)
    assert (set(documents), rejects) == ({"d0", "d1", "d2", "mixed"}, [])
