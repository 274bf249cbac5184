from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from lamina_index import collection_export, parquet_export
from lamina_index.cli import main
from lamina_index.corpus import Format
from lamina_index.manifest import CollectionManifest, Precision

LINES = [
    "cats sleep most of the day",
    "the stock market fell sharply",
    "bread needs flour, water and yeast",
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.fixture
def collection(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert (
        main(["index", "build", "--input", str(corpus), "--collection", str(tmp_path / "c")]) == 0
    )
    capsys.readouterr()
    return tmp_path / "c"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["index", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def result(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code, out, err = run(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_build_reports_as_json_and_says_nothing_on_standard_error(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = result(capsys, "build", "--input", corpus, "--collection", tmp_path / "c")
    assert (report["rows_read"], report["rows_indexed"], report["documents"]) == (3, 3, 3)
    assert report["index"]["recall@10"] == 1.0
    assert json.loads((tmp_path / "c" / "build.json").read_bytes()) == report


def test_build_reports_as_a_table(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "build", "--input", corpus, "--collection", tmp_path / "c")
    assert (code, err) == (0, "")
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert {"rows read 3", "indexed 3", "rejected 0", "factory Flat", "recall@10 1.0"} <= lines


@pytest.mark.parametrize("repeated", [True, False])
def test_several_inputs_are_read_in_the_order_given(
    repeated: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["b.jsonl", "a.jsonl", "c.jsonl"]
    for name in names:
        (tmp_path / name).write_text(f'{{"id": "same", "text": "from {name}"}}\n')
    paths = [str(tmp_path / name) for name in names]
    inputs = (
        [word for path in paths for word in ("--input", path)] if repeated else ["--input", *paths]
    )
    report = result(capsys, "build", *inputs, "--collection", tmp_path / "c")
    assert (report["rows_read"], report["rows_replaced"]) == (3, 2)
    code, out, _ = run(capsys, "export", tmp_path / "c", "--output", "-")
    assert (code, json.loads(out)) == (0, {"id": "same", "text": "from c.jsonl"})


def test_words_after_other_options_are_no_inputs(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["build", "--input", corpus, "--collection", tmp_path / "c", "stray.txt"]
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "stray.txt" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--append", "--replace"], "not both"),
        (["--overlap", "3"], "goes with --chunk"),
        (["--chunk", "8", "--overlap", "5"], "at most half"),
        (["--chunk", "9999"], "254 tokens"),
        (["--chunk", "0"], "--chunk"),
        (["--delimiter", "ab"], "one character"),
        (["--format", "xml"], "xml"),
        (["--precision", "int4"], "int4"),
        (["--threads", "0"], "--threads"),
        (["--fields", "x"], "--fields"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str],
    complaint: str,
    corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    build = ["build", "--input", corpus, "--collection", tmp_path / "c", *arguments]
    code, out, err = run(capsys, *build)
    assert (code, out) == (2, "")
    assert complaint in err
    assert not (tmp_path / "c").exists()


def test_options_name_what_the_library_knows() -> None:
    from lamina_index.commands.options import FormatName, PrecisionName

    assert set(get_args(FormatName)) == set(get_args(Format))
    assert set(get_args(PrecisionName)) == set(get_args(Precision))


def test_an_error_is_one_line_with_the_remedy(
    collection: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "build", "--input", corpus, "--collection", collection)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "--append" in err
    assert "--replace" in err


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--strict"], 3)])
def test_rejected_rows_end_with_3_only_when_strict_and_the_rest_is_indexed(
    flags: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"id": "a", "text": "good"}\n{"id": "b"}\nnot json\n')
    arguments = ["build", "--input", bad, "--collection", tmp_path / "c", "--json", *flags]
    found, out, err = run(capsys, *arguments)
    assert found == code
    assert json.loads(out)["rows_rejected"] == 2
    assert err == (
        f"lamina: 2 of 3 rows were rejected, the others are indexed; {tmp_path}/c/rejects.jsonl "
        "says which and why\n"
        if code
        else ""
    )
    lines = (tmp_path / "c" / "rejects.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in lines] == [2, 3]


def test_append_replace_and_chunks_through_the_command_line(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "m", "text": "One thing. Another thing. " * 30}))
    build = ["build", "--input", more, "--collection", collection]
    assert result(capsys, *build, "--append")["documents"] == 4
    report = result(capsys, *build, "--replace", "--chunk", "16", "--overlap", "4")
    assert report["documents"] > 8
    assert result(capsys, "info", collection)["chunking"] == {"tokens": 16, "overlap": 4}


def test_info_tells_what_the_collection_is(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = result(capsys, "info", collection)
    assert (facts["count"], facts["dimension"], facts["delta_count"]) == (3, 384, 0)
    assert facts["encoder"]["precision"] == "int8"
    code, out, _ = run(capsys, "info", collection)
    assert code == 0
    assert facts["encoder"]["fingerprint"] in out


def test_verify_passes_a_sound_collection(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(capsys, "verify", collection) == {"sound": True, "damage": []}
    assert run(capsys, "verify", collection) == (0, f"{collection}: sound\n", "")


def test_a_damaged_snapshot_is_found_and_compact_mends_it_without_an_encoder(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = collection / "snapshots" / "1" / "vectors.faiss"
    content = bytearray(vectors.read_bytes())
    content[len(content) // 2] ^= 1
    vectors.write_bytes(content)
    code, out, _ = run(capsys, "verify", collection)
    assert code == 1
    assert str(vectors) in out
    assert "lamina index compact" in out
    assert result(capsys, "compact", collection, "--factory", "SQ8")["index"]["factory"] == "SQ8"
    assert run(capsys, "verify", collection)[0] == 0
    assert main(["search", str(collection), "sleeping", "cats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hits"][0]["text"] == LINES[0]


def test_a_flipped_bit_in_a_row_is_found(
    collection: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = collection / "documents.sqlite"
    content = database.read_bytes()
    assert content.count(b"stock market fell") == 1
    database.write_bytes(content.replace(b"stock market fell", b"stock market felt"))
    code, out, _ = run(capsys, "verify", collection, "--json")
    assert code == 1
    assert json.loads(out)["sound"] is False


@pytest.mark.parametrize("command", ["info", "verify", "compact", "export"])
def test_commands_on_no_collection_say_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = ["--output", tmp_path / "out"] if command == "export" else []
    code, _, err = run(capsys, command, tmp_path / "none", *extra)
    assert (code, err.count("\n")) == (1, 1)
    assert "no collection there" in err
    assert list(tmp_path.iterdir()) == []


def test_a_collection_whose_path_is_not_utf8_is_refused_in_a_line(
    collection: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "snapshot", collection, tmp_path / "c.tar")[0] == 0
    place = tmp_path / os.fsdecode(b"caf\xe9")
    for arguments in (
        ["build", "--input", corpus, "--collection", place / "c"],
        ["restore", tmp_path / "c.tar", place],
    ):
        code, _, err = run(capsys, *arguments)
        assert (code, err.count("\n")) == (1, 1)
        assert rf"{tmp_path}/caf\xe9" in err
        assert "must be UTF-8" in err
        assert not place.exists()
    collection.rename(place)
    for arguments in (["info", place], ["export", place, "--output", "-"]):
        assert run(capsys, *arguments)[0] == 1


def test_an_output_whose_name_is_not_utf8_is_written(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    told = result(capsys, "export", collection, "--output", output)
    assert told == {"documents": 3, "output": rf"{tmp_path}/caf\xe9.jsonl"}
    assert len(output.read_text().splitlines()) == 3


def test_an_export_builds_the_same_collection_again(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    assert run(capsys, "export", collection, "--output", tmp_path / "out")[0] == 0
    documents = tmp_path / "out" / "documents.jsonl"
    embeddings = np.load(tmp_path / "out" / "embeddings.npy", allow_pickle=False)
    assert embeddings.shape == (3, 384)
    assert [json.loads(line)["text"] for line in documents.read_text().splitlines()] == LINES
    assert run(capsys, "build", "--input", documents, "--collection", tmp_path / "d")[0] == 0
    again = tmp_path / "again.jsonl"
    assert run(capsys, "export", tmp_path / "d", "--output", again)[0] == 0
    assert again.read_bytes() == documents.read_bytes()
    assert run(capsys, "export", tmp_path / "d", "--output", tmp_path / "out2")[0] == 0
    assert np.array_equal(np.load(tmp_path / "out2" / "embeddings.npy"), embeddings)


MIXED: list[dict[str, Any]] = [
    {"id": "1", "text": "one", "year": 2**53 + 1, "price": 2, "tags": ["x", "y"], "ok": True},
    {"id": "2", "text": "two\nlines", "price": 2.5, "tags": [], "day": "2024-02-29"},
    {"id": "3", "text": "drei \U0001f600", "name": "", "day": "2024-02-29T10:00:00Z"},
    {"id": "4", "text": "four", "year": -(2**63), "ok": False},
]


@pytest.fixture
def mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A collection with metadata of every type."""
    pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
    (tmp_path / "m.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in MIXED))
    build = ["build", "--input", tmp_path / "m.jsonl", "--collection", tmp_path / "m"]
    assert result(capsys, *build)["rows_rejected"] == 0
    return tmp_path / "m"


def test_parquet_builds_the_same_collection_again(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    monkeypatch.setattr(collection_export, "_BATCH_ROWS", 3)
    path = tmp_path / "m.parquet"
    assert result(capsys, "export", mixed, "--output", path)["documents"] == 4
    file = pq.ParquetFile(path)
    types = {field.name: str(field.type) for field in file.schema_arrow}
    assert types.pop("tags").startswith("list<")
    assert types == {
        "id": "string",
        "text": "large_string",
        "year": "int64",
        "price": "double",
        "ok": "bool",
        "day": "string",
        "name": "string",
    }
    assert file.num_row_groups == 2
    again = ["build", "--input", path, "--collection", tmp_path / "again"]
    assert result(capsys, *again)["rows_rejected"] == 0
    _, out, _ = run(capsys, "export", tmp_path / "again", "--output", "-")
    assert [json.loads(line) for line in out.splitlines()] == MIXED
    assert (
        CollectionManifest.read(tmp_path / "again" / "collection.json").fields
        == CollectionManifest.read(mixed / "collection.json").fields
    )


def test_a_folder_of_parquet_has_the_vectors_row_by_row(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np
    import pyarrow.parquet as pq

    for documents_format in ("jsonl", "parquet"):
        output = ["--output", tmp_path / documents_format, "--format", documents_format]
        assert run(capsys, "export", mixed, *output)[0] == 0
    assert sorted(each.name for each in (tmp_path / "parquet").iterdir()) == [
        "documents.parquet",
        "embeddings.npy",
    ]
    ids = pq.read_table(tmp_path / "parquet" / "documents.parquet")["id"].to_pylist()
    assert ids == [row["id"] for row in MIXED]
    names = [tmp_path / each / "embeddings.npy" for each in ("jsonl", "parquet")]
    assert np.array_equal(*map(np.load, names))


def test_what_is_written_during_an_export_to_parquet_is_left_out(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    (tmp_path / "new.jsonl").write_text('{"id": "5", "text": "five", "fresh": 1.5, "year": 0.5}')

    def begun(*arguments: Any) -> Any:
        assert run(capsys, "add", mixed, "--input", tmp_path / "new.jsonl")[0] == 0
        return parquet_export.parquet_writer(*arguments)

    monkeypatch.setattr(collection_export, "parquet_writer", begun)
    assert result(capsys, "export", mixed, "--output", tmp_path / "m.parquet")["documents"] == 4
    table = pq.read_table(tmp_path / "m.parquet")
    assert table["id"].to_pylist() == [row["id"] for row in MIXED]
    assert table["year"].to_pylist() == [row.get("year") for row in MIXED]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("c.csv", [], "found .csv, expected .jsonl or .parquet, - or a folder"),
        ("c.jsonl.GZ", [], "found .gz, expected"),
        ("c.PARQUET", ["--format", "jsonl"], "takes parquet"),
    ],
)
def test_a_file_that_an_export_does_not_write_is_refused_and_no_folder_made(
    collection: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    options: list[str],
    told: str,
) -> None:
    before = sorted(tmp_path.iterdir())
    code, _, err = run(capsys, "export", collection, "--output", tmp_path / name, *options)
    assert code == 2
    assert told in " ".join(err.split())
    assert sorted(tmp_path.iterdir()) == before


def test_parquet_that_cannot_be_written_is_told(
    collection: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, _, err = run(capsys, "export", collection, "--output", "-", "--format", "parquet")
    assert code == 2
    assert "takes jsonl" in err
    before = sorted(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, err = run(capsys, "export", collection, "--output", tmp_path / "c.parquet")
    assert (code, err.count("\n")) == (1, 1)
    assert "pip install 'lamina-search[parquet]'" in err
    assert sorted(tmp_path.iterdir()) == before


def test_export_writes_into_no_folder_that_holds_something(
    collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "export", collection, "--output", tmp_path)
    assert (code, err.count("\n")) == (1, 1)
    assert "not empty" in err


def test_an_export_with_metadata_keeps_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {
        "id": "a",
        "text": "hi",
        "year": 1999,
        "tags": ["x", "y"],
        "ok": True,
        "day": "2020-02-03",
    }
    (tmp_path / "c.jsonl").write_text(json.dumps(row))
    build = ["build", "--input", tmp_path / "c.jsonl", "--collection", tmp_path / "c"]
    assert result(capsys, *build)["rows_rejected"] == 0
    _, out, _ = run(capsys, "export", tmp_path / "c", "--output", "-")
    assert json.loads(out) == row
