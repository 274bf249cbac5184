"""`lamina demo`, up to the point where it serves."""

import json
from pathlib import Path

import pytest

from lamina_index.build import build_collection
from lamina_index.build_report import BuildReport
from lamina_index.corpus import CorpusOptions
from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import CollectionExistsError
from lamina_index.manifest import Chunking
from lamina_index.store import DocumentStore
from lamina_service.demo import collection_name, ensure_collection, stdlib_corpus


def _write(path: Path, *texts: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"id": str(row), "text": text}) for row, text in enumerate(texts)]
    path.write_text("\n".join(lines))
    return path


def _ensure(corpus: Path, folder: Path, encoder: OnnxEncoder) -> BuildReport:
    return ensure_collection(corpus, folder, encoder, CorpusOptions(), lambda _: None)


def _texts(folder: Path) -> set[str]:
    with DocumentStore.open(folder, read_only=True) as store:
        return {document.text for document in store.documents()}


def test_another_state_of_the_corpus_is_indexed_anew(
    tmp_path: Path, default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "questions"
    _ensure(_write(tmp_path / "questions.jsonl", "cats", "dogs"), folder, default_encoder)
    monkeypatch.chdir(tmp_path)  # the same file by another path
    _write(Path("questions.jsonl"), "birds")
    assert _ensure(Path("questions.jsonl"), folder, default_encoder).documents == 1
    assert _texts(folder) == {"birds"}


def test_the_docstrings_of_another_python_take_the_place_of_those_before(
    tmp_path: Path, default_encoder: OnnxEncoder
) -> None:
    folder = tmp_path / collection_name(None)
    _ensure(_write(tmp_path / "stdlib-3.10.2.jsonl", "old"), folder, default_encoder)
    corpus = tmp_path / "stdlib-3.11.9.jsonl"
    _ensure(_write(corpus, "new"), folder, default_encoder)
    assert _texts(folder) == {"new"}
    assert stdlib_corpus(tmp_path).name.startswith("stdlib-3")


def test_a_collection_of_anything_else_is_never_replaced(
    tmp_path: Path, default_encoder: OnnxEncoder
) -> None:
    corpus = _write(tmp_path / "questions.jsonl", "cats")
    other = _write(tmp_path / "other" / "questions.jsonl", "dogs")
    of_other, of_both, appended, parts, unknown = (tmp_path / name for name in "abcde")
    build_collection([other], of_other, default_encoder)
    build_collection([corpus, _write(tmp_path / "more.jsonl", "x")], of_both, default_encoder)
    build_collection([other], appended, default_encoder)
    build_collection([corpus], appended, default_encoder, mode="append")
    chunking = Chunking(tokens=32, overlap=0)
    build_collection([corpus], parts, default_encoder, chunking=chunking)
    build_collection([corpus], unknown, default_encoder)
    with DocumentStore.open(unknown) as store:
        store.set_meta("progress", {"of": "another Lamina"})
    for folder in (of_other, of_both, appended, parts, unknown):
        before = _texts(folder)
        with pytest.raises(CollectionExistsError, match="--data"):
            _ensure(corpus, folder, default_encoder)
        assert _texts(folder) == before
