"""Rows of padding are left out of all products, and a vector is the same in any batch."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from lamina_training.graph import open_session
from lamina_training.packing import ATTENTION, fuse_attention

TEXTS = [[2, 5, 6, 7, 8, 3], [2, 9, 3], [2, 10, 11, 12, 3], [2, 3]]


@pytest.fixture(scope="module")
def fp32(tiny_export: Path) -> onnx.ModelProto:
    return onnx.load(tiny_export / "onnx" / "model.onnx")


@pytest.fixture(scope="module")
def int8(tiny_export: Path) -> onnx.ModelProto:
    return onnx.load(tiny_export / "onnx" / "model_int8.onnx")


def run(
    model: onnx.ModelProto, texts: list[list[int]], output: str, width: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """A value of the graph for a batch padded to its longest text, or to more."""
    width = max(width, *map(len, texts))
    ids = np.array([text + [0] * (width - len(text)) for text in texts])
    mask = np.array([[1] * len(text) + [0] * (width - len(text)) for text in texts])
    found: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = open_session(model).run(
        [output], {"input_ids": ids, "attention_mask": mask}
    )[0]
    return found


def test_attention_becomes_one_node_a_layer(fp32: onnx.ModelProto) -> None:
    fused = fuse_attention(fp32, TEXTS)
    kinds = Counter(node.op_type for node in fused.graph.node)
    assert kinds[ATTENTION] == 2
    assert kinds["Softmax"] == 0
    for output in ("token_embeddings", "sentence_embedding"):
        found, expected = (run(model, TEXTS, output) for model in (fused, fp32))
        kept = np.array([[n < len(text) for n in range(6)] for text in TEXTS])
        if output == "token_embeddings":
            found, expected = found[kept], expected[kept]
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_attention_that_adds_more_than_the_mask_stays_as_it_is(fp32: onnx.ModelProto) -> None:
    """As relative positions do, something for each distance comes with the mask."""
    model = copy.deepcopy(fp32)
    nodes = list(model.graph.node)
    softmax = next(node for node in nodes if node.op_type == "Softmax")
    scores = next(node for node in nodes if node.output[0] == softmax.input[0])
    assert scores.op_type == "Add"
    mask = scores.input[1]
    columns = np.linspace(0, 3, 6, dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(columns, "by_column"))
    for node in nodes:
        if node.op_type == "Add" and node.input[1] == mask:
            node.input[1] = "mask_and_columns"
    added = helper.make_node("Add", [mask, "by_column"], ["mask_and_columns"])
    model.graph.node.insert(nodes.index(scores), added)
    assert fuse_attention(model, [[2, 5, 6, 7, 8, 3], [2, 9, 3]]) is model


def test_products_see_no_padding(int8: onnx.ModelProto) -> None:
    model = copy.deepcopy(int8)
    products = [node for node in model.graph.node if node.op_type == "MatMulIntegerToFloat"]
    assert len(products) == 8  # two layers of: query, key and value; output; in; out
    for node in products:
        name = node.output[0]
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        rows = run(model, TEXTS, name, width=40)
        assert rows.shape[0] == sum(map(len, TEXTS))


def test_token_embeddings_keep_their_places(int8: onnx.ModelProto) -> None:
    together = run(int8, TEXTS, "token_embeddings")
    assert together.shape[:2] == (4, 6)
    for text, rows in zip(TEXTS, together, strict=True):
        alone = run(int8, [text], "token_embeddings")[0]
        np.testing.assert_allclose(rows[: len(text)], alone, atol=1e-6)


@given(
    st.lists(st.lists(st.integers(5, 40), min_size=1, max_size=40), min_size=1, max_size=6),
    st.integers(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_a_vector_is_the_same_in_any_batch(
    int8: onnx.ModelProto, texts: list[list[int]], width: int
) -> None:
    together = run(int8, texts, "sentence_embedding", width)
    alone = np.concatenate([run(int8, [text], "sentence_embedding") for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_a_text_of_padding_alone_stays_finite(int8: onnx.ModelProto) -> None:
    feed = {"input_ids": np.zeros((2, 4), np.int64), "attention_mask": np.zeros((2, 4), np.int64)}
    feed["attention_mask"][0, :2] = 1
    found = open_session(int8).run(["sentence_embedding"], feed)[0]
    assert np.isfinite(found).all()
