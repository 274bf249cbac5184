"""The graphs of an encoder folder: where they lie, how they are made, and run before it is done."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from tokenizers import Tokenizer

from lamina_index.manifest import Precision
from lamina_training.graph import GraphRunner
from lamina_training.int8 import Int8Recipe, quantize_int8
from lamina_training.source import Source

PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
GRAPH_FILES: dict[Precision, str] = {
    "fp32": "onnx/model.onnx",
    "fp16": "onnx/model_fp16.onnx",
    "int8": "onnx/model_int8.onnx",
}


def open_graph(folder: Path, source: Source, precision: Precision) -> GraphRunner:
    """Open one graph of a folder, with the source's tokenizer and limit."""
    tokenizer = Tokenizer.from_str(source.tokenizer_json)
    return GraphRunner(folder / GRAPH_FILES[precision], tokenizer, max_tokens=source.max_tokens)


def make_int8(folder: Path, source: Source, recipe: Int8Recipe) -> None:
    """Make the int8 graph of a folder from its fp32 graph, calibrated on Lamina's own texts."""
    fp32 = open_graph(folder, source, "fp32")
    texts = [fp32.token_ids(source.prompts.document + line) for line in calibration_texts()]
    quantize_int8(folder / GRAPH_FILES["fp32"], folder / GRAPH_FILES["int8"], texts, recipe=recipe)


def calibration_texts() -> list[str]:
    """Short and long texts of many kinds that show int8 what a model's inside looks like."""
    text = (
        importlib.resources.files("lamina_training").joinpath("calibration.txt").read_text("utf-8")
    )
    return [line for line in text.splitlines() if line.strip()]
