"""fp32 graph -> fp16 graph for GPUs, with fp32 where half precision is unsafe."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import onnx
import onnx.compose
from onnx.shape_inference import infer_shapes
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from lamina_training.graph import values_leading_to

FP32_OPERATORS = ("LayerNormalization", "Softmax")
LARGEST_CONSTANT = 1e4
"""Masks add the most negative fp32, which would become -inf in fp16, and -inf rows NaN."""


def convert_fp16(source: Path, target: Path) -> None:
    """Write the fp16 form: weights and products in half precision, inputs and outputs as before.

    Norms and softmax stay fp32, and so does all that the token embeddings do not depend on, which
    is pooling: a zero row's norm and the epsilon that guards it both vanish in fp16, and zero by
    zero is NaN. That part is taken off and put back, since the converter rounds whatever passes
    between two nodes.
    """
    model = infer_shapes(onnx.load(source))  # for the types of what passes between the parts
    tokens, *pooled = (value.name for value in model.graph.output)
    of_trunk = values_leading_to(model.graph, [tokens])
    behind = [node for node in model.graph.node if node.output[0] not in of_trunk]
    passed = {name for node in behind for name in node.input if name in of_trunk} | {tokens}
    trunk = _part_of(model, sorted(passed), given=())
    converted = convert_float_to_float16(
        trunk,
        max_finite_val=LARGEST_CONSTANT,
        keep_io_types=True,
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *FP32_OPERATORS],
    )
    OnnxModel(converted).topological_sort(is_deterministic=True)  # its casts come last
    head = _part_of(model, pooled, given=passed)
    kept = {*passed, *pooled, *(value.name for value in model.graph.input)}
    onnx.compose.add_prefix(head, "head_", inplace=True)
    _rename(head.graph, {f"head_{name}": name for name in kept})
    converted.graph.node.extend(head.graph.node)
    converted.graph.initializer.extend(head.graph.initializer)
    outputs = [value for value in converted.graph.output if value.name == tokens]
    del converted.graph.output[:]
    converted.graph.output.extend([*outputs, *head.graph.output])
    onnx.checker.check_model(converted)
    onnx.save(converted, target)


def _part_of(
    model: onnx.ModelProto, outputs: Collection[str], *, given: Collection[str]
) -> onnx.ModelProto:
    """Copy what computes some values from the inputs and the given values."""
    needed = values_leading_to(model.graph, outputs, given=given)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    del (
        part.graph.node[:],
        part.graph.initializer[:],
        part.graph.output[:],
        part.graph.value_info[:],
    )
    for number, node in enumerate(model.graph.node):
        if node.output[0] in needed:
            part.graph.node.add().CopyFrom(node)
            part.graph.node[-1].name = f"{node.op_type}_{number}"  # the converter goes by names
    read = {name for node in part.graph.node for name in node.input}
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    known = {value.name: value for value in [*model.graph.value_info, *model.graph.output]}
    part.graph.output.extend(known[name] for name in outputs)
    return part


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in graph.output:
        value.name = names.get(value.name, value.name)
