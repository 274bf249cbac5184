"""Does a graph give the vectors it should: fp32 against torch, other precisions against fp32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lamina_training.graph import GraphRunner
from lamina_training.known_items import KnownItems
from lamina_training.source import ExportError, Source

BATCHES = (1, 2, 5, 16, 64)
LENGTHS = (1, 2, 7, 16, 31, 64, 128, 256, 512)
MOST_TOKENS = 2048
"""Cells with more are left out, but for the largest: 39 cells of MiniLM take half a minute."""
MAX_ABSOLUTE_DIFFERENCE = 1e-4
K = 10


@dataclass(frozen=True)
class Fidelity:
    """How near another precision is to fp32, both sides encoded by it."""

    cosine_mean: float
    cosine_min: float
    top10_overlap: float
    mrr10: float
    mrr10_fp32: float
    mrr10_difference: float

    def as_dict(self) -> dict[str, float]:
        """Rounded for the manifest."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def check_parity(source: Source, runner: GraphRunner) -> dict[str, Any]:
    """Compare torch and ONNX on every (batch, length) cell, with ragged padding.

    Returns:
        The number of cells, the smallest and largest, the worst difference over all outputs and
        its cell; padded positions of the token embeddings do not count.

    Raises:
        ExportError: If any value differs by more than `MAX_ABSOLUTE_DIFFERENCE`, or is NaN.
    """
    return check_cells(
        partial(_difference, source, runner),
        origin=source.folder,
        vocabulary=source.vocabulary,
        max_positions=source.max_positions,
    )


def check_cells(
    difference: Callable[[NDArray[np.int64], NDArray[np.int64]], float],
    *,
    origin: Path,
    vocabulary: int,
    max_positions: int | None,
) -> dict[str, Any]:
    """Compare torch and ONNX on random ids of every (batch, length) cell, with ragged padding.

    Args:
        difference: The largest one for input_ids and attention_mask, (B, T) each.
        origin: The model's folder, for the message of an error.
        vocabulary: Number of token ids.
        max_positions: Longest input; None where unbounded.

    Returns:
        As `check_parity`.

    Raises:
        ExportError: If any value differs by more than `MAX_ABSOLUTE_DIFFERENCE`, or is NaN.
    """
    generator = np.random.default_rng(0)
    cells = _cells(max_positions)
    differences = []
    for batch, length in cells:
        ids = generator.integers(0, vocabulary, (batch, length))
        used = generator.integers(1, length + 1, batch)
        used[0] = length
        mask = (np.arange(length) < used[:, None]).astype(np.int64)  # (B, T)
        differences.append(difference(ids, mask))
    place = int(np.argmax(differences))  # of a NaN, if there is one
    worst, worst_cell = differences[place], cells[place]
    if not worst <= MAX_ABSOLUTE_DIFFERENCE:
        raise ExportError(
            f"{origin}: torch and ONNX differ by {worst:.2g} at batch {worst_cell[0]}, "
            f"length {worst_cell[1]}; expected at most {MAX_ABSOLUTE_DIFFERENCE:.0e}, not exported"
        )
    return {
        "cells": len(cells),
        "smallest": list(cells[0]),
        "largest": list(cells[-1]),
        "max_absolute_difference": float(f"{worst:.3g}"),
        "worst_cell": list(worst_cell),
    }


def _cells(max_positions: int | None) -> list[tuple[int, int]]:
    """(batch, length) pairs, lengths clipped to the model's positions, the largest pair last."""
    lengths = sorted({min(length, max_positions or length) for length in LENGTHS})
    cells = [(b, n) for b in BATCHES for n in lengths if b * n <= MOST_TOKENS]
    largest = (BATCHES[-1], lengths[-1])
    return cells if largest in cells else [*cells, largest]


def _difference(
    source: Source, runner: GraphRunner, ids: NDArray[np.int64], mask: NDArray[np.int64]
) -> float:
    with torch.inference_mode():
        expected = source.model(torch.from_numpy(ids), torch.from_numpy(mask))
    pairs = [(a.numpy(), b) for a, b in zip(expected, runner.run(ids, mask), strict=True)]
    kept = mask.astype(bool)
    pairs[0] = (pairs[0][0][kept], pairs[0][1][kept])  # of tokens
    return float(np.max([np.abs(a - b).max() for a, b in pairs]))  # keeps NaN


def compare(
    reference: tuple[NDArray[np.float32], NDArray[np.float32]],
    found: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> Fidelity:
    """Compare (query, document) embeddings of one precision with those of fp32.

    Row i of the queries is answered by row i of the documents.
    """
    cosines = np.concatenate([np.vecdot(a, b) for a, b in zip(reference, found, strict=True)])
    top, top_reference = _top(*found), _top(*reference)
    overlap = [
        len(set(a) & set(b)) / len(b)
        for a, b in zip(top.tolist(), top_reference.tolist(), strict=True)
    ]
    mrr, mrr_reference = _reciprocal_rank(top), _reciprocal_rank(top_reference)
    return Fidelity(
        cosine_mean=float(cosines.mean()),
        cosine_min=float(cosines.min()),
        top10_overlap=float(np.mean(overlap)),
        mrr10=mrr,
        mrr10_fp32=mrr_reference,
        mrr10_difference=mrr - mrr_reference,
    )


def _top(queries: NDArray[np.float32], documents: NDArray[np.float32]) -> NDArray[np.intp]:
    return np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :K]  # (Q, K)


def _reciprocal_rank(top: NDArray[np.intp]) -> float:
    hits = top == np.arange(len(top))[:, None]
    return float((hits / np.arange(1, top.shape[1] + 1)).sum(axis=1).mean())


def encode_items(
    runner: GraphRunner, items: KnownItems, source: Source
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed queries and documents with their prompts, each text alone."""
    queries = runner.encode([source.prompts.query + text for text in items.queries])
    documents = runner.encode([source.prompts.document + text for text in items.documents])
    return queries, documents
