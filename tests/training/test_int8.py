"""int8 graphs stay near fp32, and mean the same on CPUs with and without VNNI."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from onnx import TensorProto, helper, numpy_helper

from lamina_training.int8 import Int8Recipe, quantize_int8
from lamina_training.source import ExportError

VOCABULARY, HIDDEN, WIDE = 2000, 32, 48


def make_graph(path: Path, *, outlier: float = 1.0) -> None:
    """Embedding table -> three products of one input, one with a bias -> sentence_embedding."""
    generator = np.random.default_rng(0)
    table = generator.standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)
    table[:, 5] *= outlier
    constants = {"table": table, "bias": generator.standard_normal(WIDE).astype(np.float32)}
    for name in "abc":
        constants[name] = generator.standard_normal((HIDDEN, WIDE)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "a"], ["a_plain"]),
        helper.make_node("Add", ["a_plain", "bias"], ["a_out"]),
        helper.make_node("MatMul", ["rows", "b"], ["b_out"]),
        helper.make_node("MatMul", ["rows", "c"], ["c_out"]),
        helper.make_node("Sum", ["a_out", "b_out", "c_out"], ["token_embeddings"]),
        helper.make_node(
            "ReduceMean", ["token_embeddings", "axis"], ["sentence_embedding"], keepdims=0
        ),
        helper.make_node("Identity", ["attention_mask"], ["unused"]),
    ]
    constants["axis"] = np.array([1], dtype=np.int64)
    graph = helper.make_graph(
        nodes,
        "products",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"])
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info("token_embeddings", TensorProto.FLOAT, ["b", "t", WIDE]),
            helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["b", WIDE]),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)


def relative_error(exact: Path, found: Path) -> float:
    """Of the token embeddings of unseen texts."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (1, 50))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    outputs = [
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
            ["token_embeddings"], feed
        )[0]
        for path in (exact, found)
    ]
    return float(np.linalg.norm(outputs[0] - outputs[1]) / np.linalg.norm(outputs[0]))


def quantized(folder: Path, recipe: Int8Recipe, *, outlier: float = 1.0) -> float:
    make_graph(folder / "fp32.onnx", outlier=outlier)
    texts = np.random.default_rng(2).integers(0, VOCABULARY, (20, 12)).tolist()
    quantize_int8(folder / "fp32.onnx", folder / "int8.onnx", texts, recipe=recipe)
    return relative_error(folder / "fp32.onnx", folder / "int8.onnx")


def test_products_stay_near(tmp_path: Path) -> None:
    assert quantized(tmp_path, Int8Recipe()) < 0.03


def test_smoothing_saves_a_product_from_one_large_channel(tmp_path: Path) -> None:
    plain = quantized(tmp_path, Int8Recipe(strengths=(0.0,)), outlier=100)
    smoothed = quantized(tmp_path, Int8Recipe(), outlier=100)
    assert smoothed < 0.6 * plain


def test_products_of_one_input_are_done_as_one(tmp_path: Path) -> None:
    quantized(tmp_path, Int8Recipe())
    kinds = [node.op_type for node in onnx.load(tmp_path / "int8.onnx").graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 1
    assert "MatMul" not in kinds


def test_no_two_weights_that_meet_can_saturate_sixteen_bits(tmp_path: Path) -> None:
    """255 times the largest sum of two neighbouring weights of one sign fits into int16."""
    quantized(tmp_path, Int8Recipe())
    weight = stored_weight(tmp_path)
    groups = weight.reshape(-1, 4, weight.shape[1])
    for sign in (1, -1):
        sums = np.sort(np.maximum(sign * groups, 0), axis=1)[:, -2:].sum(axis=1)
        assert 255 * sums.max() < 2**15
    assert np.abs(weight).max() > 64  # finer than halving all weights


def test_without_the_limit_they_could(tmp_path: Path) -> None:
    quantized(tmp_path, Int8Recipe(largest_pair=None))
    weight = stored_weight(tmp_path)
    sums = np.sort(np.maximum(weight.reshape(-1, 4, weight.shape[1]), 0), axis=1)[:, -2:].sum(
        axis=1
    )
    assert 255 * sums.max() > 2**15


def test_graph_without_products_is_refused(tmp_path: Path) -> None:
    make_graph(tmp_path / "fp32.onnx")
    model = onnx.load(tmp_path / "fp32.onnx")
    for node in model.graph.node:
        if node.op_type == "MatMul":
            node.op_type = "Mul"
    onnx.save(model, tmp_path / "none.onnx")
    with pytest.raises(ExportError, match="no matrix product"):
        quantize_int8(tmp_path / "none.onnx", tmp_path / "int8.onnx", [[1, 2]], recipe=Int8Recipe())


def stored_weight(folder: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    tensors = onnx.load(folder / "int8.onnx").graph.initializer
    found = next(tensor for tensor in tensors if tensor.name.endswith("_weight"))
    return numpy_helper.to_array(found).astype(np.int64)
