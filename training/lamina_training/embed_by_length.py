"""Embedding the texts of a training step without computing much on padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.base.losses.merged_forward import embed_columns, merge_feature_batches
from torch import Tensor, nn

TEXTS_A_PASS = 16
"""Fewer have less padding, more have larger matrix products: docs/decisions.md has times."""


def embed_by_length(model: nn.Module, columns: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Embed columns of tokenised texts; on a CPU the shortest first, a few at a time.

    A batch is as wide as its longest text, so most of it is padding, and a CPU takes as long over
    that as over the texts. Embeddings and gradients are those of one pass over everything, but for
    rounding and which random numbers dropout gives to which text. A GPU has better use for one
    large pass, which is what it gets; so have features that are more than right-padded tokens.

    Args:
        model: A SentenceTransformer.
        columns: C mappings of tokenised texts, each of B rows; they are not written into on a CPU.

    Returns:
        (B, D) for each column.
    """
    merged = merge_feature_batches(columns) if len(columns) > 1 else columns[0]
    if merged is None or not _can_be_cut(merged):
        embeddings: list[Tensor] = embed_columns(model, columns)
        return embeddings
    lengths = merged["attention_mask"].sum(dim=1)
    order = torch.argsort(lengths, stable=True)
    passes = []
    for rows in torch.split(order, TEXTS_A_PASS):
        width = int(lengths[rows[-1]])
        cut = {
            name: value[rows, :width] if isinstance(value, Tensor) else value
            for name, value in merged.items()
        }
        passes.append(model(cut)["sentence_embedding"])
    in_order = torch.cat(passes)[torch.argsort(order)]  # (C * B, D)
    return list(in_order.chunk(len(columns)))


def _can_be_cut(features: dict[str, Any]) -> bool:
    """Tell whether these are tokens on a CPU, (B, T) each, with all padding on the right."""
    mask = features.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.device.type != "cpu" or mask.ndim != 2:
        return False
    tensors = [value for value in features.values() if isinstance(value, Tensor)]
    return all(value.shape == mask.shape for value in tensors) and bool(
        (mask[:, 0] == 1).all() and (mask.diff(dim=1) <= 0).all()
    )
