"""fp32 graph -> int8 graph: fast on CPUs with VNNI, right on those without.

Each matrix product with constant weights becomes one `DynamicQuantizeMatMul` of ONNX Runtime:
unsigned 8-bit inputs whose scale is found at run time over the whole call, signed 8-bit weights
with a scale per output column. Products of one input (query, key, value) become one. Three things
keep the vectors near fp32's, and the same on every x86 CPU:

- Smoothing (Xiao et al. 2022, arXiv 2211.10438): a few input channels of a transformer are far
  larger than the rest and would take the whole 8-bit range. Each channel is divided by a factor
  that its weights are multiplied by. Departs from it: the strength is searched for each product,
  and the division is a node of its own, since BERT's layer norms feed the residual too.
- Limited pairs: without VNNI, x86 adds two neighbouring products in 16 bits, where two large
  weights saturate (255 * (127 + 127) > 32767). Halving all weights, the usual remedy, doubles
  their rounding error; here a column's scale grows only until no two of its weights that can meet
  exceed 128 together (255 * 128 < 32767).
- Token embeddings have a scale per row, not one for the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from lamina_training.source import ExportError

Array = NDArray[np.float32]

SMALLEST_TABLE = 1024
"""Gathered tables with fewer rows (positions, token types) stay fp32."""
WEIGHTS_THAT_MEET = 4
"""x86 kernels lay out this many consecutive weights of a column together and add them in pairs."""
_TINY = np.float32(1e-5)


@dataclass(frozen=True)
class Int8Recipe:
    """How to quantise.

    Attributes:
        strengths: Smoothing strengths to choose from; (0,) turns smoothing off.
        largest_weight: Largest absolute value of a rounded weight, at most 127.
        largest_pair: The same for the sum of two weights of one sign that meet, before rounding,
            which can add 1; None does not limit it, which is right on CPUs with VNNI only.
    """

    strengths: tuple[float, ...] = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
    largest_weight: int = 127
    largest_pair: int | None = 127


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
    model = onnx.load(source)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    products = _find_products(model.graph, constants)
    if not products:
        raise ExportError(f"{source}: no matrix product with constant weights to quantise")
    inputs = _record_inputs(source, [product.source for product in products], token_ids)
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
    onnx.checker.check_model(model)
    onnx.save(model, target)


def _find_products(
    graph: onnx.GraphProto, constants: dict[str, onnx.TensorProto]
) -> list[_Product]:
    """Group products by input and take in the bias that is added right after, if any."""
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    found: dict[str, _Product] = {}
    for node in graph.node:
        weight = constants.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2:
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
    path: Path, names: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> list[list[Array]]:
    """Run the fp32 graph and keep each named tensor: for each name, one (T, K) array a text."""
    model = onnx.load(path)
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
    )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
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
    nodes.append(
        helper.make_node(
            "DynamicQuantizeMatMul",
            [value, f"{prefix}_weight", f"{prefix}_scale", "", f"{prefix}_bias"],
            [joined],
            domain="com.microsoft",
        )
    )
    if len(product.outputs) > 1:
        sizes = np.array([part.shape[1] for part in product.weights], dtype=np.int64)
        tensors.append(numpy_helper.from_array(sizes, f"{prefix}_sizes"))
        nodes.append(
            helper.make_node("Split", [joined, f"{prefix}_sizes"], product.outputs, axis=-1)
        )
    return nodes, tensors


def _smoothing_factors(inputs: list[Array], weight: Array, recipe: Int8Recipe) -> Array:
    """Choose the strength whose quantised product is nearest to the exact one; (K,)."""
    largest_input = np.maximum(np.abs(np.concatenate(inputs)).max(axis=0), _TINY)  # (K,)
    largest_weight = np.maximum(np.abs(weight).max(axis=1), _TINY)  # (K,)
    exact = [rows @ weight for rows in inputs]
    best, chosen = np.inf, np.ones(len(weight), dtype=np.float32)
    for strength in recipe.strengths:
        factors = np.ones(len(weight), dtype=np.float32)
        if strength:
            factors = largest_input**strength / largest_weight ** (1 - strength)
            factors = (factors / np.exp(np.log(factors).mean())).astype(np.float32)
        smooth = weight * factors[:, None]
        scales = _column_scales(smooth, recipe)
        restored = _round(smooth, scales, recipe) * scales
        error = sum(
            float(np.square(_as_8bit(rows / factors) @ restored - wanted).sum())
            for rows, wanted in zip(inputs, exact, strict=True)
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


def _as_8bit(rows: Array) -> Array:
    """What `DynamicQuantizeMatMul` sees of one call's input."""
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    scale = (high - low) / 255 or 1.0
    zero = round(-low / scale)
    quantized = np.clip(np.rint(rows / scale) + zero, 0, 255)
    restored: Array = ((quantized - zero) * scale).astype(np.float32)
    return restored


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
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    kept = [tensor for tensor in [*model.graph.initializer, *added] if tensor.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    del model.graph.value_info[:]
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
