from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina_index import adding
from lamina_index.adding import add_documents
from lamina_index.cli import main
from lamina_index.collection import verify_collection, writer_lock
from lamina_index.collection_changes import create_collection, new_manifest
from lamina_index.corpus import CorpusOptions
from lamina_index.encoder import Encoder, OnnxEncoder
from lamina_index.errors import CorpusError
from lamina_index.manifest import Chunking
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore
from lamina_index.writer import Fault

CAPTURE = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def bundled() -> Iterator[OnnxEncoder]:
    encoder = OnnxEncoder.load(check=False)
    yield encoder
    encoder.close()


@pytest.fixture
def collection(tmp_path: Path, bundled: OnnxEncoder) -> Path:
    create_collection(tmp_path / "c", new_manifest(bundled))
    return tmp_path / "c"


def rows(path: Path, *values: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return path


def run(capsys: CAPTURE, *arguments: object) -> tuple[int, str, str]:
    code = main(["index", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def ids(folder: Path) -> list[str]:
    with DocumentStore.open(folder, read_only=True) as store:
        return [document.id for document in store.documents()]


def stored(folder: Path) -> dict[str, str]:
    with DocumentStore.open(folder, read_only=True) as store:
        return {document.id: document.text for document in store.documents()}


def test_added_files_are_found_by_who_has_the_collection_open(
    collection: Path, tmp_path: Path, bundled: OnnxEncoder, capsys: CAPTURE
) -> None:
    first = rows(tmp_path / "1.jsonl", {"id": "a", "text": "cats sleep"}, {"id": 7, "text": "b"})
    second = tmp_path / "2.csv"
    second.write_text("id,text,year\na,bread needs flour,1999\n")
    with Searcher.open(collection, bundled) as searcher:
        code, out, err = run(capsys, "add", collection, "--input", first, second, "--json")
        assert (code, err) == (0, "")
        assert [hit.id for hit in searcher.search("baking bread").hits] == ["a", "7"]
        report = json.loads(out)
        assert report == {
            "collection": str(collection),
            "rows_read": 3,
            "inserted": 2,
            "replaced": 0,
            "rejected": 0,
            "truncated": 0,
            "generation": searcher.info()["generation"],
        }
        assert run(capsys, "add", collection, "--input", first)[0] == 0
        assert searcher.count == 2
    assert verify_collection(collection) == []


def test_bad_rows_are_told_and_strict_makes_them_an_error(
    collection: Path, tmp_path: Path, capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = '{"id": "a", "text": "good"}\n{"id": "b"}\nno json\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    add = ["add", collection, "--input", "-", "--format", "jsonl"]
    code, out, err = run(capsys, *add, "--json", "--strict")
    assert code == 3
    assert json.loads(out)["rejected"] == 2
    *told, last = err.splitlines()
    assert [(json.loads(line)["line"], json.loads(line)["id"]) for line in told] == [
        (2, "b"),
        (3, None),
    ]
    assert "2 of 3 rows were rejected" in last
    assert ids(collection) == ["a"]
    bad = rows(tmp_path / "bad.jsonl", {"id": "x"}, {"id": "y", "text": "good"})
    file = tmp_path / "rejects.jsonl"
    code, _, err = run(capsys, "add", collection, "--input", bad, "--rejects", file)
    assert (code, err) == (0, "")
    assert json.loads(file.read_text())["file"] == str(bad)


@pytest.mark.parametrize("how", [["--format", "text"], ["--format", "tsv", "--id-field", "line"]])
def test_lines_of_standard_input_replace_no_others(
    how: list[str],
    tmp_path: Path,
    capsys: CAPTURE,
    monkeypatch: pytest.MonkeyPatch,
    word_encoder: Encoder,
) -> None:
    def feed(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    feed("text\nfirst\n")
    assert run(capsys, "build", "--input", "-", "--collection", tmp_path / "c", *how)[0] == 0
    before = stored(tmp_path / "c")
    for command in (
        ["add", tmp_path / "c", "--input", "-"],
        ["build", "--append", "--collection", tmp_path / "c", "--input", "-"],
    ):
        feed("text\nother\n")
        code, _, err = run(capsys, *command, *how)
        assert (code, err.count("\n")) == (1, 1)
        assert "<stdin>: its ids would be stdin:1" in err
        assert "--id-field" in err
    assert stored(tmp_path / "c") == before
    os.mkfifo(tmp_path / "63")
    with pytest.raises(CorpusError, match=r"63: its ids would be 63:1"):
        add_documents(
            [tmp_path / "63"], tmp_path / "c", word_encoder, options=CorpusOptions(format="text")
        )


def test_a_file_of_the_same_name_replaces_and_the_report_tells_it(
    collection: Path, tmp_path: Path, capsys: CAPTURE
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "n.txt").write_text(f"note of {folder}\n")
    assert run(capsys, "add", collection, "--input", tmp_path / "one" / "n.txt")[0] == 0
    more = ["--input", tmp_path / "two" / "n.txt"]
    _, out, _ = run(capsys, "add", collection, *more)
    assert "replaced 1 (by lines of a file of the same name)" in " ".join(out.split())
    _, out, _ = run(capsys, "build", "--append", "--collection", collection, *more)
    assert "replaced 1 (by lines of a file of the same name)" in " ".join(out.split())
    assert stored(collection) == {"n.txt:1": "note of two"}


def test_what_cannot_be_read_or_found_is_one_line(
    collection: Path, tmp_path: Path, capsys: CAPTURE
) -> None:
    good = rows(tmp_path / "1.jsonl", {"id": "a", "text": "text"})
    for arguments, told in (
        (["add", collection, "--input", tmp_path / "absent.jsonl"], "no such file"),
        (["add", tmp_path / "absent", "--input", good], "no such collection"),
        (["add", collection, "--input", good, "--rejects", tmp_path / "no" / "x"], "written"),
        (["delete", tmp_path / "absent", "a"], "no such collection"),
        (["delete", collection, "--ids-from", tmp_path / "absent"], "cannot be read"),
        (["delete", collection, "--filter", "{"], "no JSON"),
        (["delete", collection, "--filter", '{"never": 1}'], "no such metadata"),
        (["delete", collection, "--filter", "{}"], "passes every document, so all would be"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (1, ""), arguments
        assert told in err
        assert err.count("\n") == 1
    assert ids(collection) == []


def test_documents_are_deleted_by_id_file_or_filter(
    collection: Path, tmp_path: Path, capsys: CAPTURE, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [{"id": f"d{n}", "text": f"text {n}", "year": n} for n in range(12)]
    assert run(capsys, "add", collection, "--input", rows(tmp_path / "1.jsonl", *values))[0] == 0
    monkeypatch.setattr("lamina_index.commands.writes._IDS_AT_ONCE", 2)

    def deleted(*arguments: object) -> int:
        code, out, err = run(capsys, "delete", collection, *arguments, "--json")
        assert (code, err) == (0, "")
        return int(json.loads(out)["deleted"])

    assert deleted("d0", "d1", "d1", "never") == 2
    (tmp_path / "ids").write_text("d2\r\nd3\n\nd4\nnever")
    assert deleted("--ids-from", tmp_path / "ids") == 3
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"d5\n")))
    assert deleted("--ids-from", "-") == 1
    assert deleted("--filter", '{"year": {"$gte": 8}}') == 4
    assert ids(collection) == ["d6", "d7"]
    for arguments in ([], ["a", "--ids-from", tmp_path / "ids"], ["a", "--filter", "{}"]):
        code, _, err = run(capsys, "delete", collection, *arguments)
        assert code == 2
        assert "one of them only" in err
    code, out, _ = run(capsys, "delete", collection, "d6")
    assert (code, out) == (0, f"{collection}: 1 documents deleted\n")


def numbered(path: Path, count: int) -> Path:
    return rows(path, *({"id": f"d{n}", "text": f"text {n}"} for n in range(count)))


def test_adding_makes_a_new_index_when_too_much_is_newer(
    tmp_path: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "ROWS_AT_ONCE", 10)
    folder = tmp_path / "c"
    create_collection(folder, new_manifest(word_encoder))
    newer = []

    def look(report: object) -> None:
        with Searcher.open(folder) as searcher:
            newer.append(searcher.info()["delta_count"])

    report = add_documents(
        [numbered(tmp_path / "1.jsonl", 95)],
        folder,
        word_encoder,
        max_backlog=25,
        on_progress=look,
    )
    assert report.inserted == 95
    assert newer == [10, 20, 10, 20, 10, 20, 10, 20, 10, 15]
    assert verify_collection(folder) == []


def test_adding_waits_for_who_makes_a_new_index(
    tmp_path: Path, word_encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "c"
    create_collection(folder, new_manifest(word_encoder))
    plain, waits = adding.make_room, []

    def make_room(path: Path) -> None:
        waits.append(path)
        if len(waits) == 1:
            with writer_lock(folder):
                plain(path)
        else:
            plain(path)

    monkeypatch.setattr(adding, "make_room", make_room)
    monkeypatch.setattr(adding, "ROWS_AT_ONCE", 10)
    path = numbered(tmp_path / "1.jsonl", 20)
    assert add_documents([path], folder, word_encoder, max_backlog=10).inserted == 20
    assert len(waits) == 2


def test_what_one_write_cannot_take_is_written_in_several_or_rejected(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    folder = tmp_path / "c"
    create_collection(folder, new_manifest(word_encoder, chunking=Chunking(tokens=1, overlap=0)))
    fits = [{"id": f"d{n}", "text": "one two three"} for n in range(7)]  # 21 rows in a block
    path = rows(tmp_path / "1.jsonl", *fits, {"id": "a", "text": "one two three four five six"})
    faults: list[Fault] = []
    report = add_documents([path], folder, word_encoder, max_backlog=5, on_faults=faults.extend)
    assert (report.rows_read, report.inserted, report.rejected) == (8, 7, 1)
    assert [fault.reason for fault in faults] == [
        "text has 6 parts, expected at most 5; make several documents of it"
    ]
    assert verify_collection(folder) == []
