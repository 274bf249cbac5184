"""A collection that one precision of an encoder built, searched with another precision of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lamina_index.build import build_collection
from lamina_index.collection import MANIFEST_FILE
from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import EncoderMismatchError
from lamina_index.searcher import Searcher
from lamina_index.writer import CollectionWriter


@pytest.fixture
def built_by_fp32(tmp_path: Path) -> Path:
    """A collection that says so: bundled encoders ship int8 alone, and know fp32's fingerprint."""
    corpus = tmp_path / "c.txt"
    corpus.write_text("cats sleep\nstocks fell\nbread is baked\n")
    encoder = OnnxEncoder.load("default")
    build_collection([corpus], tmp_path / "c", encoder)
    fp32 = next(each for each in encoder.manifest.compatible_with if each.precision == "fp32")
    path = tmp_path / "c" / MANIFEST_FILE
    manifest = json.loads(path.read_text())
    manifest["encoder"] |= {"fingerprint": fp32.fingerprint, "precision": "fp32"}
    path.write_text(json.dumps(manifest))
    return tmp_path / "c"


def test_it_is_refused_with_the_measured_cosine_until_that_is_accepted(built_by_fp32: Path) -> None:
    told = r"in two precisions, with a cosine of 0\.99018 or more .*: --accept-compatible with that"
    with pytest.raises(EncoderMismatchError, match=told):
        Searcher.open(built_by_fp32, OnnxEncoder.load("default"))
    with pytest.raises(EncoderMismatchError):
        Searcher.open(built_by_fp32, OnnxEncoder.load("default", accept=0.995))
    with Searcher.open(built_by_fp32, OnnxEncoder.load("default", accept=0.99)) as searcher:
        assert searcher.search("kittens nap").hits[0].text == "cats sleep"
        assert searcher.info()["accepted_cosine"] == pytest.approx(0.99018)


def test_it_is_never_written_to_and_another_encoder_is_no_other_precision(
    built_by_fp32: Path,
) -> None:
    with pytest.raises(EncoderMismatchError):
        CollectionWriter.open(built_by_fp32, OnnxEncoder.load("default", accept=0.0))
    with pytest.raises(EncoderMismatchError) as refused:
        Searcher.open(built_by_fp32, OnnxEncoder.load("fast", accept=0.0))
    assert "precisions" not in str(refused.value)


def test_its_own_precision_needs_no_leave(tmp_path: Path) -> None:
    corpus = tmp_path / "c.txt"
    corpus.write_text("cats sleep\n")
    encoder = OnnxEncoder.load("default", accept=0.5)
    assert encoder.fingerprint not in encoder.accepted
    build_collection([corpus], tmp_path / "c", encoder)
    with Searcher.open(tmp_path / "c", encoder) as searcher:
        assert searcher.info()["accepted_cosine"] is None
