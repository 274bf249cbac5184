"""Make padding cost next to nothing: rows of tokens run packed, without those of the padding.

Much of a transformer's work on a batch of texts of unlike length is done on padding. But attention
alone looks at more than one token; products, norms and activations treat each row for itself. So
attention becomes one `MultiHeadAttention` of ONNX Runtime, and all between two of them runs on an
(N, H) matrix of the N rows that the mask keeps. They are spread out over (B, T) for attention and
pooling, and gathered again behind it. This is for CPUs what "unpadding" is on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx_ir.passes.common import ShapeInferencePass
from onnxscript.optimizer import optimize
from onnxscript.rewriter.ort_fusions.mha import fuse_mha1, fuse_mha2
from onnxscript.rewriter.ort_fusions.sdpa import fuse_sdpa

from lamina_training.graph import open_session

ATTENTION = "MultiHeadAttention"
_MASK, _KEPT, _PLACES = "attention_mask", "packed_kept", "packed_places"
_LARGEST_DIFFERENCE = 1e-4
_KEY_PADDING_MASK, _BIAS = 4, 5
"""Places among the inputs of `MultiHeadAttention`."""
_ROW_BY_ROW = {
    *("Add", "Mul", "Div", "Gelu", "Erf", "Tanh", "Relu", "LayerNormalization"),
    *("QuantizeLinear", "MatMulIntegerToFloat"),
}
_WEIGHT_OF = {"MatMulIntegerToFloat": 1}
"""Which input may be a constant of two dimensions; others broadcast along the last axis only."""


def fuse_attention(model: onnx.ModelProto, token_ids: Sequence[Sequence[int]]) -> onnx.ModelProto:
    """Make each layer's attention one node that reads the mask.

    Gives the model back unchanged where that is not the same: where more than the mask is added to
    the scores, say, as with relative positions.

    Args:
        model: A graph with inputs input_ids and attention_mask.
        token_ids: Some texts, of unlike length, to try both forms on.
    """
    graph = ir.from_proto(model)
    ShapeInferencePass()(graph)
    optimize(graph)
    fuse_sdpa(graph, apply_shape_inference=True)
    fuse_mha1(graph)
    fuse_mha2(graph)
    optimize(graph)
    fused: onnx.ModelProto = ir.to_proto(graph)
    attentions = [node for node in fused.graph.node if node.op_type == ATTENTION]
    if not attentions or any(len(node.input) <= _BIAS for node in attentions):
        return model
    mask = f"{_MASK}_int32"
    for node in attentions:
        del node.input[_BIAS:]
        node.input[_KEY_PADDING_MASK] = mask
    cast = helper.make_node("Cast", [_MASK], [mask], to=TensorProto.INT32)
    set_nodes(fused.graph, [cast, *fused.graph.node])
    return fused if _agree(model, fused, token_ids) else model


def pack_tokens(model: onnx.ModelProto) -> bool:
    """Run what treats each token for itself on packed rows; tell whether there is any.

    Args:
        model: A graph after `fuse_attention`, in topological order. What comes out of its first
            layer norm and of its attentions must be of shape (B, T, H), as in BERT and its kin.
    """
    graph = model.graph
    constants = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    spread: set[str] = set()  # values of shape (B, T, ...)
    packed: set[str] = set()  # values of shape (N, ...)
    for node in graph.node:
        given = [name for name in node.input if name and name not in constants]
        if node.op_type == ATTENTION or (node.op_type == "LayerNormalization" and not spread):
            spread.add(node.output[0])
        elif (
            node.op_type in _ROW_BY_ROW
            and given
            and spread | packed >= set(given)
            and all(
                constants.get(name, 0) <= 1 + (position == _WEIGHT_OF.get(node.op_type))
                for position, name in enumerate(node.input)
            )
            and all(attribute.i == -1 for attribute in node.attribute if attribute.name == "axis")
        ):
            packed.update(node.output)
    if not packed:
        return False
    nodes = _row_numbers(graph)
    moved: set[str] = set()

    def move(name: str, *, inside: bool) -> str:
        """Name a value in the form that is wanted, made where it is first asked for."""
        wanted = f"{name}_packed" if inside else f"{name}_spread"
        if wanted not in moved:
            moved.add(wanted)
            operator, rows = ("GatherND", _KEPT) if inside else ("Gather", _PLACES)
            nodes.append(helper.make_node(operator, [name, rows], [wanted]))
        return wanted

    for node in graph.node:
        inside = node.output[0] in packed
        for position, name in enumerate(node.input):
            if name in (spread if inside else packed):
                node.input[position] = move(name, inside=inside)
        nodes.append(node)
    for output in graph.output:
        if output.name in packed:
            rename = {output.name: f"{output.name}_rows", f"{output.name}_spread": output.name}
            move(output.name, inside=False)
            for node in nodes:
                node.input[:] = [rename.get(name, name) for name in node.input]
                node.output[:] = [rename.get(name, name) for name in node.output]
    set_nodes(graph, nodes)
    return True


def _row_numbers(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Nodes that give the places (N, 2) of the kept rows, and the row (B, T) of each place.

    A place of the padding gets the row before it, whose values are finite and go nowhere.
    """
    numbers = {"packed_all": [-1], "packed_axis": 0, "packed_one": 1, "packed_none": 0}
    graph.initializer.extend(
        numpy_helper.from_array(np.array(value, dtype=np.int64), name)
        for name, value in numbers.items()
    )
    steps = [
        ("NonZero", [_MASK], "packed_found"),
        ("Transpose", ["packed_found"], _KEPT),
        ("Reshape", [_MASK, "packed_all"], "packed_flat"),
        ("CumSum", ["packed_flat", "packed_axis"], "packed_counts"),
        ("Sub", ["packed_counts", "packed_one"], "packed_before"),
        ("Max", ["packed_before", "packed_none"], "packed_row"),
        ("Shape", [_MASK], "packed_shape"),
        ("Reshape", ["packed_row", "packed_shape"], _PLACES),
    ]
    return [helper.make_node(operator, inputs, [output]) for operator, inputs, output in steps]


def _agree(
    first: onnx.ModelProto, second: onnx.ModelProto, token_ids: Sequence[Sequence[int]]
) -> bool:
    """Whether two graphs give the same vectors of a padded batch."""
    width = max(map(len, token_ids))
    ids = np.array([[*text, *[0] * (width - len(text))] for text in token_ids])
    mask = np.array([[1] * len(text) + [0] * (width - len(text)) for text in token_ids])
    found = [
        open_session(model).run(["sentence_embedding"], {"input_ids": ids, _MASK: mask})[0]
        for model in (first, second)
    ]
    return bool(np.abs(found[0] - found[1]).max() <= _LARGEST_DIFFERENCE)


def set_nodes(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    """Keep those of the nodes, in order, that an output needs, and the constants that they read."""
    needed = {output.name for output in graph.output}
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(constants)
