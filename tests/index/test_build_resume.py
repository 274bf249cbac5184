from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from lamina_index import build_blocks
from lamina_index.build import BuildStatus, build_collection
from lamina_index.corpus import CorpusOptions
from lamina_index.encoder import Encoded, Encoder
from lamina_index.errors import ResumeError
from lamina_index.store import DocumentStore

BLOCK = 10


class InterruptedBuildError(Exception):
    pass


class CountingEncoder:
    def __init__(self, inner: Encoder) -> None:
        self._inner = inner
        self.texts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, texts: Sequence[str], *, role: Any) -> Encoded:
        self.texts += len(texts)
        return self._inner.encode(texts, role=role)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_blocks, "BLOCK_ROWS", BLOCK)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(f'{{"id": "d{n}", "text": "text {n}"}}\n' for n in range(100)))
    return path


def interrupt(corpus: Path, folder: Path, encoder: Encoder, **options: Any) -> None:
    """Build until 30 rows are stored."""

    def stop(status: BuildStatus) -> None:
        if status.rows >= 30:
            raise InterruptedBuildError

    with pytest.raises(InterruptedBuildError):
        build_collection([corpus], folder, encoder, on_progress=stop, **options)


def ids(folder: Path) -> list[str]:
    with DocumentStore.open(folder, read_only=True) as store:
        return [document.id for document in store.documents()]


@pytest.mark.parametrize("resume", [True, False])
def test_the_same_build_goes_on_after_the_last_stored_block(
    resume: bool, corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    interrupt(corpus, tmp_path / "c", word_encoder)
    assert not (tmp_path / "c").exists()
    encoder = CountingEncoder(word_encoder)
    report = build_collection([corpus], tmp_path / "c", encoder, resume=resume)
    assert (report.rows_read, report.rows_resumed, report.documents) == (100, 30, 100)
    assert encoder.texts == 70
    assert ids(tmp_path / "c") == [f"d{n}" for n in range(100)]


def test_resuming_a_finished_build_tells_its_report(
    corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    report = build_collection([corpus], tmp_path / "c", word_encoder)
    encoder = CountingEncoder(word_encoder)
    assert build_collection([corpus], tmp_path / "c", encoder, resume=True) == report
    assert encoder.texts == 0


def test_resume_without_anything_to_resume_builds(
    corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    report = build_collection([corpus], tmp_path / "c", word_encoder, resume=True)
    assert (report.rows_resumed, report.documents) == (0, 100)


def test_progress_of_another_lamina_is_in_nobodys_way_and_not_resumed(
    corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    build_collection([corpus], tmp_path / "c", word_encoder)
    interrupt(corpus, tmp_path / "d", word_encoder)
    for folder in (tmp_path / "c", tmp_path / ".d.building"):
        with DocumentStore.open(folder) as store:
            store.set_meta("progress", {"form": "of another version"})
    for folder, mode in ((tmp_path / "c", "append"), (tmp_path / "d", "new")):
        with pytest.raises(ResumeError, match="another Lamina"):
            build_collection([corpus], folder, word_encoder, mode=mode, resume=True)
        report = build_collection([corpus], folder, word_encoder, mode=mode)
        assert (report.rows_resumed, report.documents) == (0, 100)


@pytest.mark.parametrize("change", ["same size", "longer", "other file"])
def test_changed_inputs_are_not_resumed(
    change: str, corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    interrupt(corpus, tmp_path / "c", word_encoder)
    content = corpus.read_text()
    inputs = [corpus]
    if change == "same size":
        corpus.write_text(content.replace("text 5", "tent 5"))
    elif change == "longer":
        corpus.write_text(content + '{"id": "more", "text": "more"}\n')
    else:
        inputs.append(tmp_path / "more.jsonl")
        inputs[1].write_text('{"id": "more", "text": "more"}\n')
    with pytest.raises(ResumeError, match=r"corpus\.jsonl"):
        build_collection(inputs, tmp_path / "c", word_encoder, resume=True)
    report = build_collection(inputs, tmp_path / "c", word_encoder)
    assert report.rows_resumed == 0
    assert report.documents == (100 if change == "same size" else 101)


def test_other_options_or_encoders_are_not_resumed(
    corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    interrupt(corpus, tmp_path / "c", word_encoder)
    other = CountingEncoder(word_encoder)
    other.fingerprint = "f" * 64
    with pytest.raises(ResumeError, match=r"encoder was .*words"):
        build_collection([corpus], tmp_path / "c", other, resume=True)
    with pytest.raises(ResumeError, match=r"options was .*'id_field': None"):
        build_collection(
            [corpus],
            tmp_path / "c",
            word_encoder,
            options=CorpusOptions(id_field="line"),
            resume=True,
        )
    report = build_collection([corpus], tmp_path / "c", word_encoder, resume=True)
    assert report.rows_resumed == 30  # the refusals left what was there


def test_a_file_that_moved_is_still_the_same_input(
    corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    interrupt(corpus, tmp_path / "c", word_encoder)
    moved = corpus.rename(tmp_path / "moved.jsonl")
    report = build_collection([moved], tmp_path / "c", word_encoder, resume=True)
    assert (report.rows_resumed, report.documents) == (30, 100)


@pytest.fixture
def feed(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Put the corpus on standard input."""

    def put() -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))

    return put


def test_a_build_of_standard_input_that_fails_leaves_nothing(
    tmp_path: Path, word_encoder: Encoder, feed: Callable[[], None]
) -> None:
    feed()
    interrupt(Path("-"), tmp_path / "c", word_encoder, options=CorpusOptions(format="jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_an_append_of_standard_input_that_fails_leaves_the_collection(
    corpus: Path, tmp_path: Path, word_encoder: Encoder, feed: Callable[[], None]
) -> None:
    first = tmp_path / "first.jsonl"
    first.write_text('{"id": "old", "text": "old"}\n')
    build_collection([first], tmp_path / "c", word_encoder)
    feed()
    options = CorpusOptions(format="jsonl")
    interrupt(Path("-"), tmp_path / "c", word_encoder, options=options, mode="append")
    assert len(ids(tmp_path / "c")) == 31


def test_standard_input_is_read_anew_and_never_resumed(
    tmp_path: Path, word_encoder: Encoder, feed: Callable[[], None]
) -> None:
    options = CorpusOptions(format="jsonl")
    feed()

    def stop(status: BuildStatus) -> None:
        shutil.copytree(tmp_path / ".c.building", tmp_path / "killed", dirs_exist_ok=True)
        if status.rows >= 30:
            raise InterruptedBuildError

    with pytest.raises(InterruptedBuildError):
        build_collection(["-"], tmp_path / "c", word_encoder, options=options, on_progress=stop)
    (tmp_path / "killed").rename(tmp_path / ".c.building")  # as a kill would have left it
    feed()
    with pytest.raises(ResumeError, match="cannot be read again"):
        build_collection(["-"], tmp_path / "c", word_encoder, options=options, resume=True)
    feed()
    report = build_collection(["-"], tmp_path / "c", word_encoder, options=options)
    assert (report.rows_resumed, report.documents) == (0, 100)


def test_metadata_types_after_a_resume_are_those_of_an_undisturbed_run(
    tmp_path: Path, word_encoder: Encoder
) -> None:
    rows: list[dict[str, Any]] = [
        {"id": f"d{n}", "text": f"text {n}", "day": "2020-01-01"} for n in range(40)
    ]
    rows[35]["day"] = "someday"  # so the field is no date, which rows of both runs must agree on
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    interrupt(corpus, tmp_path / "c", word_encoder)
    report = build_collection([corpus], tmp_path / "c", word_encoder)
    assert (report.rows_resumed, report.rows_rejected, report.documents) == (30, 0, 40)


def test_an_interrupted_append_keeps_what_it_stored_and_goes_on(
    corpus: Path, tmp_path: Path, word_encoder: Encoder
) -> None:
    first = tmp_path / "first.jsonl"
    first.write_text('{"id": "d7", "text": "older"}\n{"id": "old", "text": "old"}\n{"id": "z"}\n')
    build_collection([first], tmp_path / "c", word_encoder)
    interrupt(corpus, tmp_path / "c", word_encoder, mode="append")
    assert len(ids(tmp_path / "c")) == 31
    with pytest.raises(ResumeError, match=r"first\.jsonl is not what was read before"):
        build_collection([first], tmp_path / "c", word_encoder, mode="append", resume=True)
    report = build_collection([corpus], tmp_path / "c", word_encoder, mode="append", resume=True)
    assert (report.rows_resumed, report.rows_replaced, report.documents) == (30, 1, 101)
    assert len((tmp_path / "c" / "rejects.jsonl").read_text().splitlines()) == 1
