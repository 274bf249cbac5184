from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lamina_index.encoder_files import BUNDLED_ENCODERS, bundled_encoders
from lamina_index.errors import FormatError
from lamina_index.manifest import (
    EncoderManifest,
    Prompts,
    decode_vector,
    encode_vector,
    write_atomically,
)


@pytest.fixture
def bundled() -> EncoderManifest:
    return EncoderManifest.read(BUNDLED_ENCODERS / "default" / "encoder.json")


def test_manifest_survives_writing_and_reading(tmp_path: Path, bundled: EncoderManifest) -> None:
    bundled.write(tmp_path / "encoder.json")
    assert EncoderManifest.read(tmp_path / "encoder.json") == bundled


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format version 99, expected 2"),
        ({"max_token": 3}, "max_token: Extra inputs are not permitted"),
        ({"dimension": 0}, "dimension: Input should be greater than 0"),
        ({"dimension": "many"}, "dimension"),
    ],
)
def test_what_is_wrong_in_a_manifest_is_named(
    tmp_path: Path, bundled: EncoderManifest, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "encoder.json"
    path.write_text(json.dumps(bundled.model_dump() | change))
    with pytest.raises(FormatError, match=message) as caught:
        EncoderManifest.read(path)
    assert str(path) in str(caught.value)


def test_a_manifest_of_format_1_is_read_as_one_whose_int8_runs_each_text_alone(
    tmp_path: Path, bundled: EncoderManifest
) -> None:
    """Format 1 had no `batch_invariant`, and its int8 graphs had one input scale a call."""
    older = bundled.model_dump() | {"format_version": 1}
    for file in older["precisions"].values():
        del file["batch_invariant"]
    path = tmp_path / "encoder.json"
    path.write_text(json.dumps(older))
    assert not EncoderManifest.read(path).precisions["int8"].batch_invariant


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_manifest_that_is_not_json_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "encoder.json").write_bytes(content)
    with pytest.raises(FormatError, match=r"encoder\.json"):
        EncoderManifest.read(tmp_path / "encoder.json")


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        EncoderManifest.read(tmp_path / "encoder.json")


def test_fingerprint_covers_all_that_decides_a_vector(bundled: EncoderManifest) -> None:
    reference = bundled.fingerprint_of("graph")
    decisive = [
        bundled.fingerprint_of("other graph"),
        bundled.model_copy(update={"tokenizer_sha256": "x"}).fingerprint_of("graph"),
        bundled.model_copy(update={"max_tokens": 7}).fingerprint_of("graph"),
        bundled.model_copy(update={"prompts": Prompts(query="q: ")}).fingerprint_of("graph"),
    ]
    assert reference not in decisive
    assert bundled.model_copy(update={"name": "renamed"}).fingerprint_of("graph") == reference


@pytest.mark.parametrize("name", bundled_encoders())
def test_bundled_fingerprints_are_those_of_their_files(name: str) -> None:
    manifest = EncoderManifest.read(BUNDLED_ENCODERS / name / "encoder.json")
    for file in manifest.precisions.values():
        assert file.fingerprint == manifest.fingerprint_of(file.sha256)


def test_vectors_survive_their_text_form() -> None:
    vector = np.array([0.1, -2.5e-8, 1.0], dtype=np.float32)
    np.testing.assert_array_equal(decode_vector(encode_vector(vector)), vector)


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "collection.json"
    write_atomically(target, b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, b"new")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
