"""fp32 graph -> fp16 graph for GPUs, with fp32 where half precision is unsafe."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from lamina_training.graph import OUTPUTS

FP32_OPERATORS = ("LayerNormalization", "Softmax")
LARGEST_CONSTANT = 1e4
"""Masks add the most negative fp32, which would become -inf in fp16, and -inf rows NaN."""


def convert_fp16(source: Path, target: Path) -> None:
    """Write the fp16 form: weights and products in half precision, inputs and outputs as before.

    Norms and softmax stay fp32, and so does all that follows the token embeddings: a zero row's
    norm and the epsilon that guards it both vanish in fp16, and zero by zero is NaN.
    """
    model = onnx.load(source)
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"  # the converter goes by names, which may be missing
    converted = convert_float_to_float16(
        model,
        max_finite_val=LARGEST_CONSTANT,
        keep_io_types=True,
        op_block_list=[*DEFAULT_OP_BLOCK_LIST, *FP32_OPERATORS],
        node_block_list=_after_tokens(model.graph),
    )
    OnnxModel(converted).topological_sort(is_deterministic=True)  # its casts come last
    onnx.checker.check_model(converted)
    onnx.save(converted, target)


def _after_tokens(graph: onnx.GraphProto) -> list[str]:
    """Names of the nodes that the token embeddings do not need: pooling and norm."""
    makers = {name: node for node in graph.node for name in node.output}
    needed: set[str] = set()
    waiting = [OUTPUTS[0]]
    while waiting:
        node = makers.get(waiting.pop())
        if node is not None and node.name not in needed:
            needed.add(node.name)
            waiting += node.input
    return [node.name for node in graph.node if node.name not in needed]
