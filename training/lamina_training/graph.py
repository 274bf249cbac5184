"""Torch encoder -> ONNX graph in fp32, and a thin runner that texts go through one by one."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from lamina_index.text import normalize_text
from lamina_training.source import Source

OPSET = 20
INPUTS = ("input_ids", "attention_mask")


def export_fp32(source: Source, path: Path) -> None:
    """Write an encoder's graph: INPUTS int64 (B, T) to what `source.outputs` names."""
    export_graph(
        source.model,
        path,
        inputs=INPUTS,
        outputs=source.outputs,
        vocabulary=source.vocabulary,
        max_positions=source.max_positions,
    )


def export_graph(
    model: torch.nn.Module,
    path: Path,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    vocabulary: int,
    max_positions: int | None,
) -> None:
    """Write the graph of a model that reads token ids, both dimensions dynamic.

    Args:
        model: Takes `inputs` in their order, int64 (B, T).
        path: File to write.
        inputs: input_ids, attention_mask and perhaps token_type_ids.
        outputs: Names of what the model returns.
        vocabulary: Number of token ids.
        max_positions: Longest input; None where unbounded.
    """
    mask = torch.ones((2, 7), dtype=torch.int64)
    mask[1, 4:] = 0
    examples = {
        "input_ids": torch.full((2, 7), min(5, vocabulary - 1), dtype=torch.int64),
        "attention_mask": mask,
        "token_type_ids": torch.zeros((2, 7), dtype=torch.int64),
    }
    batch = torch.export.Dim("batch", min=1)
    length = torch.export.Dim("length", min=1, max=max_positions)
    with _quiet():
        program = torch.onnx.export(
            model,
            tuple(examples[name] for name in inputs),
            dynamo=True,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes={name: {0: batch, 1: length} for name in inputs},
            verbose=False,
        )
    assert program is not None  # only without dynamo
    written = program.model_proto
    strip_trace_notes(written)
    onnx.save(written, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's notes about absent libraries and its own deprecations to itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def strip_trace_notes(model: onnx.ModelProto) -> None:
    """Drop stack traces and paths that the exporter leaves: they are private and change bytes."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        del value.metadata_props[:]
        value.doc_string = ""
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
        tensor.doc_string = ""
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    model.graph.doc_string = ""


def values_leading_to(
    graph: onnx.GraphProto, outputs: Collection[str], *, given: Collection[str] = ()
) -> set[str]:
    """Names of all values made by nodes on the way to some values, short of the given ones."""
    makers = {name: node for node in graph.node for name in node.output}
    needed: set[str] = set()
    waiting = [*outputs]
    while waiting:
        name = waiting.pop()
        if name in makers and name not in needed and name not in given:
            needed.update(makers[name].output)
            waiting += makers[name].input
    return needed


def open_session(
    model: Path | onnx.ModelProto, *, threads: int = 1
) -> onnxruntime.InferenceSession:
    """Open a graph on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


class GraphRunner:
    """One ONNX graph on the CPU, for the export's own checks.

    `lamina_index.OnnxEncoder` serves finished folders; this runs a graph that has none yet.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, *, max_tokens: int, threads: int = 1):
        self.session = open_session(path, threads=threads)
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def token_ids(self, text: str) -> list[int]:
        """Token ids of one text, normalised and cut as in service."""
        tokenizer = self._tokenizer
        tokenizer.enable_truncation(self._max_tokens)
        try:
            return list(tokenizer.encode(normalize_text(text)).ids)
        finally:
            tokenizer.no_truncation()

    def run(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], ...]:
        """All outputs for a padded batch: token embeddings (B, T, H), rows (B, D), weights."""
        return tuple(self.session.run(None, {"input_ids": ids, "attention_mask": mask}))

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Sentence embeddings (N, D), each text run alone."""
        rows = []
        for text in texts:
            ids = np.array([self.token_ids(text)], dtype=np.int64)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            rows.append(self.session.run(["sentence_embedding"], feed)[0][0])
        return np.stack(rows).astype(np.float32)
