"""Passes of a training step on a CPU that compute little on padding.

A batch is as wide as its longest text, so most of it is padding, and a CPU takes as long over that
as over the texts. So the texts go through the model sorted by length and a few at a time. What
comes out, and its gradients, are those of one pass over everything, but for rounding and which
random numbers dropout gives to which text. A GPU has better use for one large pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers.base.losses.merged_forward import embed_columns, merge_feature_batches
from torch import Tensor, nn

TEXTS_A_PASS = 16
"""Fewer have less padding, more have larger matrix products: docs/decisions.md has times."""


@dataclass(frozen=True, slots=True)
class ByLength:
    """A batch of N texts as several narrower ones."""

    _features: dict[str, Any]
    _lengths: Tensor
    _order: Tensor

    @classmethod
    def of(cls, features: dict[str, Any]) -> ByLength | None:
        """Sort a batch on a CPU, of tokens (N, T) with all padding on the right; else give None."""
        mask = features.get("attention_mask")
        if not isinstance(mask, Tensor) or mask.device.type != "cpu" or mask.ndim != 2:
            return None
        tensors = [value for value in features.values() if isinstance(value, Tensor)]
        if any(value.shape != mask.shape for value in tensors):
            return None
        if (mask[:, 0] == 0).any() or (mask.diff(dim=1) > 0).any():
            return None
        lengths = mask.sum(dim=1)
        return cls(features, lengths, torch.argsort(lengths, stable=True))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give the features of each pass, the shortest texts first."""
        for rows in torch.split(self._order, TEXTS_A_PASS):
            width = int(self._lengths[rows[-1]])
            yield {
                name: value[rows, :width] if isinstance(value, Tensor) else value
                for name, value in self._features.items()
            }

    def joined(self, outputs: Sequence[Tensor]) -> Tensor:
        """Put the outputs (n, ...) of all passes in the order of the batch: (N, ...)."""
        return torch.cat(list(outputs))[torch.argsort(self._order)]


def embed_by_length(model: nn.Module, columns: Sequence[dict[str, Any]]) -> list[Tensor]:
    """Embed columns of tokenised texts, in passes by length where that can be.

    Args:
        model: A SentenceTransformer.
        columns: C mappings of tokenised texts, each of B rows.

    Returns:
        (B, D) for each column.
    """
    merged = merge_feature_batches(columns) if len(columns) > 1 else columns[0]
    passes = None if merged is None else ByLength.of(merged)
    if passes is None:
        embeddings: list[Tensor] = embed_columns(model, columns)
        return embeddings
    joined = passes.joined([model(features)["sentence_embedding"] for features in passes])
    return list(joined.chunk(len(columns)))
