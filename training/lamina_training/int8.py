"""fp32 graph -> int8 graph: fast on CPUs with VNNI, right on those without.

Each matrix product with constant weights becomes one `MatMulIntegerToFloat` of ONNX Runtime:
unsigned 8-bit inputs with one scale, signed 8-bit weights with a scale per output column. Products
of one input (query, key, value) become one. The inputs' scale is a constant, found on calibration
texts, so a text's vector does not depend on its batch mates. Four things keep the vectors near
fp32's, and the same on every x86 CPU:

- Smoothing (Xiao et al. 2022, arXiv 2211.10438): a few input channels of a transformer are far
  larger than the rest and would take the whole 8-bit range. Each channel is divided by a factor
  that its weights are multiplied by. Departs from it: the strength is searched for each product,
  and the division is a node of its own, since BERT's layer norms feed the residual too.
- Cut ranges: the few largest inputs are clipped where that loses less than finer steps gain.
- Limited pairs: without VNNI, x86 adds two neighbouring products in 16 bits, where two large
  weights saturate (255 * (127 + 127) > 32767). Halving all weights, the usual remedy, doubles
  their rounding error; here a column's scale grows only until no two of its weights that can meet
  exceed 128 together (255 * 128 < 32767).
- Token embeddings have a scale per row, not one for the whole table.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from lamina_training.graph import open_session, values_leading_to
from lamina_training.packing import fuse_attention, pack_tokens, set_nodes
from lamina_training.source import ExportError

Array = NDArray[np.float32]

SMALLEST_TABLE = 1024
"""Gathered tables with fewer rows (positions, token types) stay fp32."""
WEIGHTS_THAT_MEET = 4
"""x86 kernels lay out this many consecutive weights of a column together and add them in pairs."""
CUTS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the largest and of the smallest input at which a static range may end."""
_TRIED_TEXTS = 8
_TINY = np.float32(1e-5)


@dataclass(frozen=True)
class Int8Recipe:
    """How to quantise.

    Attributes:
        strengths: Smoothing strengths to choose from; (0,) turns smoothing off.
        largest_weight: Largest absolute value of a rounded weight, at most 127.
        largest_pair: The same for the sum of two weights of one sign that meet, before rounding,
            which can add 1; None does not limit it, which is right on CPUs with VNNI only.
        input_scales: Constants, or found at run time over all texts of a call, so that batch mates
            change a vector.
    """

    strengths: tuple[float, ...] = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
    largest_weight: int = 127
    largest_pair: int | None = 127
    input_scales: Literal["static", "dynamic"] = "static"

    @property
    def batch_invariant(self) -> bool:
        """Whether batch mates leave a vector unchanged."""
        return self.input_scales == "static"


@dataclass
class _Product:
    """Matrix products that read the same input, done as one."""

    source: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    weights: list[Array] = field(default_factory=list)
    biases: list[Array] = field(default_factory=list)


def quantize_int8(
    source: Path, target: Path, token_ids: Sequence[Sequence[int]], *, recipe: Int8Recipe
) -> None:
    """Write the int8 form of an fp32 graph.

    Args:
        source: A graph with inputs input_ids and attention_mask.
        target: Where to write.
        token_ids: Tokenised texts that show what the products' inputs look like.
        recipe: How to quantise.

    Raises:
        ExportError: If the graph has no matrix product with constant weights.
    """
    model = fuse_attention(onnx.load(source), token_ids[:_TRIED_TEXTS])
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    products = _find_products(model.graph, constants)
    if not products:
        raise ExportError(f"{source}: no matrix product with constant weights to quantise")
    inputs = _record_inputs(model, [product.source for product in products], token_ids)
    replaced: set[str] = set()
    before: dict[str, list[onnx.NodeProto]] = {}
    added: list[onnx.TensorProto] = []
    for number, product in enumerate(products):
        nodes, tensors = _quantize_product(f"int8_{number}", product, inputs[number], recipe)
        before[product.nodes[0].output[0]] = nodes
        replaced.update(node.output[0] for node in product.nodes)
        replaced.update(product.outputs)
        added += tensors
    for node in model.graph.node:
        if node.op_type == "Gather" and _is_table(constants.get(node.input[0])):
            nodes, tensors = _quantize_table(node, numpy_helper.to_array(constants[node.input[0]]))
            before[node.output[0]] = nodes
            replaced.add(node.output[0])
            added += tensors
    _rebuild(model, before, replaced, added)
    if recipe.input_scales == "static":
        pack_tokens(model)
    onnx.checker.check_model(model)
    onnx.save(model, target)


def _find_products(
    graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto]
) -> list[_Product]:
    """Group products by input and take in the bias that is added right after, if any.

    Only products that lead to the token embeddings: those of a pooling have few rows, hence little
    to gain, and would round away that their inputs differ in the last bit with the batch mates.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    of_tokens = values_leading_to(graph, ["token_embeddings"])
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, _Product] = {}
    for node in graph.node:
        weight = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2 or node.output[0] not in of_tokens:
            continue
        product = found.setdefault(node.input[0], _Product(node.input[0]))
        bias, output = np.zeros(weight.dims[1], np.float32), node.output[0]
        after = readers.get(output, [])
        if len(after) == 1 and after[0].op_type == "Add":
            for name in after[0].input:
                if name in constants and list(constants[name].dims) == [weight.dims[1]]:
                    bias, output = numpy_helper.to_array(constants[name]), after[0].output[0]
        product.nodes.append(node)
        product.outputs.append(output)
        product.weights.append(numpy_helper.to_array(weight))
        product.biases.append(bias)
    return list(found.values())


def _is_table(tensor: onnx.TensorProto | None) -> bool:
    return (
        tensor is not None
        and tensor.data_type == TensorProto.FLOAT
        and len(tensor.dims) == 2
        and tensor.dims[0] >= SMALLEST_TABLE
    )


def _record_inputs(
    fp32: onnx.ModelProto, names: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> list[list[Array]]:
    """Run the fp32 graph and keep each named tensor: for each name, one (T, K) array a text."""
    model = copy.deepcopy(fp32)
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    session = open_session(model)
    recorded: list[list[Array]] = [[] for _ in names]
    for text in token_ids:
        ids = np.array([text], dtype=np.int64)
        values = session.run(names, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        for rows, value in zip(recorded, values, strict=True):
            rows.append(value.reshape(-1, value.shape[-1]))
    return recorded


def _quantize_product(
    prefix: str, product: _Product, inputs: list[Array], recipe: Int8Recipe
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    weight = np.concatenate(product.weights, axis=1)  # (K, N)
    if recipe.input_scales == "static":
        inputs = [np.concatenate(inputs)]
    factors = _smoothing_factors(inputs, weight, recipe)  # (K,)
    smooth = weight * factors[:, None]
    scales = _column_scales(smooth, recipe)  # (N,)
    rounded = _round(smooth, scales, recipe)
    tensors = [
        numpy_helper.from_array(rounded, f"{prefix}_weight"),
        numpy_helper.from_array(scales, f"{prefix}_scale"),
        numpy_helper.from_array(np.concatenate(product.biases), f"{prefix}_bias"),
    ]
    nodes, value = [], product.source
    if not np.all(factors == 1):
        tensors.append(numpy_helper.from_array(1 / factors, f"{prefix}_smooth"))
        nodes.append(helper.make_node("Mul", [value, f"{prefix}_smooth"], [f"{prefix}_input"]))
        value = f"{prefix}_input"
    joined = product.outputs[0] if len(product.outputs) == 1 else f"{prefix}_joined"
    if recipe.input_scales == "dynamic":
        nodes.append(_dynamic_product(prefix, value, joined))
    else:
        step, zero = _static_scale(inputs[0] / factors, smooth, rounded * scales)
        tensors += [
            numpy_helper.from_array(np.array(step, np.float32), f"{prefix}_step"),
            numpy_helper.from_array(np.array(zero, np.uint8), f"{prefix}_zero"),
        ]
        nodes += _static_product(prefix, value, joined)
    if len(product.outputs) > 1:
        sizes = np.array([part.shape[1] for part in product.weights], dtype=np.int64)
        tensors.append(numpy_helper.from_array(sizes, f"{prefix}_sizes"))
        nodes.append(
            helper.make_node("Split", [joined, f"{prefix}_sizes"], product.outputs, axis=-1)
        )
    return nodes, tensors


def _dynamic_product(prefix: str, value: str, output: str) -> onnx.NodeProto:
    return helper.make_node(
        "DynamicQuantizeMatMul",
        [value, f"{prefix}_weight", f"{prefix}_scale", "", f"{prefix}_bias"],
        [output],
        domain="com.microsoft",
    )


def _static_product(prefix: str, value: str, output: str) -> list[onnx.NodeProto]:
    step, zero, quantized = f"{prefix}_step", f"{prefix}_zero", f"{prefix}_quantized"
    weight, scale, bias = f"{prefix}_weight", f"{prefix}_scale", f"{prefix}_bias"
    return [
        helper.make_node("QuantizeLinear", [value, step, zero], [quantized]),
        helper.make_node(
            "MatMulIntegerToFloat",
            [quantized, weight, step, scale, zero, "", bias],
            [output],
            domain="com.microsoft",
        ),
    ]


def _static_scale(rows: Array, weight: Array, restored: Array) -> tuple[float, int]:
    """Choose the range of the inputs (T, K) whose product is nearest; its step and zero."""
    exact = rows @ weight
    cuts = list(itertools.product(CUTS, CUTS))
    errors = [np.square(_as_8bit(rows, *cut) @ restored - exact).sum() for cut in cuts]
    return _step_and_zero(rows, *cuts[int(np.argmin(errors))])


def _smoothing_factors(inputs: list[Array], weight: Array, recipe: Int8Recipe) -> Array:
    """Choose the strength whose quantised product is nearest to the exact one; (K,)."""
    largest_input = np.maximum(np.abs(np.concatenate(inputs)).max(axis=0), _TINY)  # (K,)
    largest_weight = np.maximum(np.abs(weight).max(axis=1), _TINY)  # (K,)
    exact = [rows @ weight for rows in inputs]
    cuts = CUTS if recipe.input_scales == "static" else (1.0,)
    best, chosen = np.inf, np.ones(len(weight), dtype=np.float32)
    for strength in recipe.strengths:
        factors = np.ones(len(weight), dtype=np.float32)
        if strength:
            factors = largest_input**strength / largest_weight ** (1 - strength)
            factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
        smooth = weight * factors[:, None]
        scales = _column_scales(smooth, recipe)
        restored = _round(smooth, scales, recipe) * scales
        error = min(
            sum(
                float(np.square(_as_8bit(rows / factors, cut, cut) @ restored - wanted).sum())
                for rows, wanted in zip(inputs, exact, strict=True)
            )
            for cut in cuts
        )
        if error < best:
            best, chosen = error, factors
    return chosen


def _column_scales(weight: Array, recipe: Int8Recipe) -> Array:
    """Smallest scales, (N,), at which a (K, N) weight keeps to the recipe's limits."""
    scales = np.abs(weight).max(axis=0) / recipe.largest_weight
    if recipe.largest_pair is not None:
        padding = -len(weight) % WEIGHTS_THAT_MEET
        padded = np.pad(weight, ((0, padding), (0, 0)))
        groups = padded.reshape(-1, WEIGHTS_THAT_MEET, weight.shape[1])  # (K / 4, 4, N)
        for sign in (1, -1):
            two_largest = np.sort(np.maximum(sign * groups, 0), axis=1)[:, -2:]
            largest_sum = two_largest.sum(axis=1).max(axis=0)  # (N,)
            scales = np.maximum(scales, largest_sum / recipe.largest_pair)
    positive: Array = np.maximum(scales, _TINY / 127).astype(np.float32)
    return positive


def _round(weight: Array, scales: Array, recipe: Int8Recipe) -> NDArray[np.int8]:
    limit = recipe.largest_weight
    rounded: NDArray[np.int8] = np.clip(np.rint(weight / scales), -limit, limit).astype(np.int8)
    return rounded


def _as_8bit(rows: Array, low_cut: float = 1.0, high_cut: float = 1.0) -> Array:
    """What a product sees of an input whose range is cut to these shares of its ends."""
    step, zero = _step_and_zero(rows, low_cut, high_cut)
    quantized = np.clip(np.rint(rows / step) + zero, 0, 255)
    restored: Array = ((quantized - zero) * step).astype(np.float32)
    return restored


def _step_and_zero(rows: Array, low_cut: float, high_cut: float) -> tuple[float, int]:
    low, high = low_cut * min(float(rows.min()), 0.0), high_cut * max(float(rows.max()), 0.0)
    step = float(np.float32((high - low) / 255)) or 1.0
    return step, round(-low / step)


def _quantize_table(
    node: onnx.NodeProto, table: Array
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Gather 8-bit rows and their scales instead of fp32 rows."""
    prefix = f"int8_{node.output[0]}"
    scales = (np.maximum(np.abs(table).max(axis=1, keepdims=True), _TINY) / 127).astype(np.float32)
    rows = np.clip(np.rint(table / scales), -127, 127).astype(np.int8)
    names = [f"{prefix}_{part}" for part in ("rows", "row", "cast", "scales", "scale")]
    nodes = [
        helper.make_node("Gather", [names[0], node.input[1]], [names[1]]),
        helper.make_node("Cast", [names[1]], [names[2]], to=TensorProto.FLOAT),
        helper.make_node("Gather", [names[3], node.input[1]], [names[4]]),
        helper.make_node("Mul", [names[2], names[4]], [node.output[0]]),
    ]
    return nodes, [
        numpy_helper.from_array(rows, names[0]),
        numpy_helper.from_array(scales, names[3]),
    ]


def _rebuild(
    model: onnx.ModelProto,
    before: dict[str, list[onnx.NodeProto]],
    replaced: set[str],
    added: list[onnx.TensorProto],
) -> None:
    """Put new nodes where the old stood, and drop the nodes and constants no longer read."""
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes += before.get(node.output[0], [])
        if node.output[0] not in replaced:
            nodes.append(node)
    model.graph.initializer.extend(added)
    set_nodes(model.graph, nodes)
    if not any(opset.domain == "com.microsoft" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
