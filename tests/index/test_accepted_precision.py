"""A collection that one precision of an encoder built, searched with another precision of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina_index.build import build_collection
from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import EncoderMismatchError
from lamina_index.searcher import Searcher
from lamina_index.writer import CollectionWriter
from other_precision import build_as_fp32


@pytest.fixture
def built_by_fp32(tmp_path: Path) -> Path:
    return build_as_fp32(tmp_path / "c", OnnxEncoder.load("default"))


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
    with pytest.raises(EncoderMismatchError, match=r"may search .* but not write to it"):
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
