"""The standard library's docstrings as a corpus."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lamina_index.corpus import Document
from lamina_index.corpus.records import check_id
from lamina_index.docstrings import MAX_CHARACTERS, read_docstrings
from lamina_index.errors import CorpusError


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(read_docstrings())


def library(folder: Path, files: dict[str, str]) -> Path:
    for name, source in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


def test_the_running_python_gives_thousands_of_texts(documents: list[Document]):
    assert len(documents) > 3000
    ids = [document.id for document in documents]
    assert len(set(ids)) == len(ids)
    assert {document.metadata["kind"] for document in documents} == {
        "module",
        "class",
        "function",
        "method",
    }
    for document in documents:
        check_id(document.id)
        assert document.text.strip()
        assert len(document.text) <= MAX_CHARACTERS + len(document.id) + 2


@pytest.mark.parametrize(
    "identity",
    [
        "json",
        "json.loads",
        "json.decoder.JSONDecoder.decode",
        "pathlib.Path.glob",
        "datetime.datetime",
        "decimal.Decimal.quantize",
        "io.TextIOWrapper",
        "collections.abc.Mapping.get",
    ],
)
def test_names_are_those_that_users_import(documents: list[Document], identity: str):
    (found,) = [document for document in documents if document.id == identity]
    assert found.text.startswith(f"{identity}: ")
    assert identity.startswith(str(found.metadata["module"]))
    source = Path(found.file).read_text().splitlines()
    if found.metadata["kind"] != "module":
        assert str(found.metadata["name"]) in source[found.line - 1]


def test_what_is_private_or_no_library_is_left_out(documents: list[Document]):
    modules = {str(document.metadata["module"]) for document in documents}
    assert not {module for module in modules if module.split(".")[0] in ("test", "idlelib")}
    assert not {module for module in modules if any(p.startswith("_") for p in module.split("."))}
    assert {
        str(document.metadata["name"])
        for document in documents
        if str(document.metadata["name"]).startswith("_")
    } <= {"__init__"}


def test_the_order_is_that_of_paths_and_lines(documents: list[Document]):
    json_lines = [
        (str(document.metadata["file"]), document.line)
        for document in documents
        if document.metadata["module"] in ("json", "json.decoder", "json.encoder")
    ]
    assert len(json_lines) > 10
    assert json_lines == sorted(json_lines)


def test_definitions_of_every_kind_are_found_once(tmp_path: Path):
    folder = library(
        tmp_path,
        {
            "a.py": '''"""Module docs, first line."""
class Shape:
    """A shape of things."""
    def __init__(self): "Make a new shape."
    def area(self): "Give the area."
    def _hidden(self): "Not for all users."
    class Part:
        """One part of it."""
try:
    def fast(): "The fast way here."
except ImportError:
    def fast(): "The slow way here."
    async def wait(): "Wait for a while."
if True:
    def undocumented(): pass
    def short(): "Too short."
''',
            "p/__init__.py": '"""A package of modules."""',
            "p/m.py": '"""A module inside it."""',
            "p/__main__.py": '"""Runs the package p."""',
            "test/t.py": '"""Tests of the library."""',
            "broken.py": "def (:",
        },
    )
    found = list(read_docstrings(folder))
    assert [(document.id, document.metadata["kind"], document.line) for document in found] == [
        ("a", "module", 1),
        ("a.Shape", "class", 2),
        ("a.Shape.__init__", "method", 4),
        ("a.Shape.area", "method", 5),
        ("a.Shape.Part", "class", 7),
        ("a.fast", "function", 10),
        ("a.wait", "function", 13),
        ("p", "module", 1),
        ("p.m", "module", 1),
    ]
    assert found[5].text == "a.fast: The fast way here."
    assert found[3].metadata == {
        "kind": "method",
        "module": "a",
        "name": "area",
        "file": "a.py",
        "line": 5,
    }


def test_a_long_docstring_ends_with_a_whole_paragraph(tmp_path: Path):
    paragraph = "word " * 99 + "end."
    text = "\n\n".join([paragraph] * 9)
    folder = library(tmp_path, {"a.py": f'"""{text}"""'})
    (document,) = read_docstrings(folder)
    assert document.text == "a: " + "\n\n".join([paragraph] * 3)


def test_a_library_without_sources_is_an_error(tmp_path: Path):
    for folder in (tmp_path, tmp_path / "python.zip"):
        with pytest.raises(CorpusError, match="holds no documented Python source"):
            list(read_docstrings(folder))


def test_nothing_of_the_library_is_imported(tmp_path: Path):
    folder = library(tmp_path, {"trap.py": '"""A module that fails."""\nraise SystemExit\n'})
    before = set(sys.modules)
    assert [document.id for document in read_docstrings(folder)] == ["trap"]
    assert set(sys.modules) - before == set()
