"""Texts embedded once by a trained encoder, seen through each of its exits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lamina_training.embedding import Encode
from lamina_training.layer_pooling import first_tokens, token_means
from lamina_training.study.definition import Exit

_BATCH = 64


class ExitEmbeddings:
    """Distinct texts, each run through the transformer once, whatever number of exits is measured.

    Attributes:
        layer_weights: (N, L+1) effective layer distribution of each text; None without attention.
    """

    def __init__(
        self,
        model: Any,
        texts: Iterable[str],
        exits: Sequence[Exit],
        *,
        precision: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        """Embed.

        Args:
            model: A SentenceTransformer of a transformer and a pooling; left in evaluation mode.
            texts: Repeats are embedded once.
            exits: `kept` is the pooling's vector; `cls` and `mean` are the last layer's, as an
                export stripped of the pooling gives them.
            precision: bf16 computes under autocast.
        """
        distinct = list(dict.fromkeys(texts))
        order = sorted(range(len(distinct)), key=lambda row: len(distinct[row]))
        self._rows = {distinct[row]: place for place, row in enumerate(order)}
        parts: dict[Exit, list[NDArray[np.float32]]] = {name: [] for name in exits}
        weights: list[NDArray[np.float32]] = []
        for features in _outputs(model.eval(), [distinct[row] for row in order], precision):
            for name in exits:
                parts[name].append(_vector(features, name).float().cpu().numpy())
            if "layer_weights" in features:
                weights.append(features["layer_weights"].float().cpu().numpy())
        self._embeddings = {name: np.concatenate(blocks) for name, blocks in parts.items()}
        self.layer_weights = np.concatenate(weights) if weights else None

    def encode(self, name: Exit) -> Encode:
        """Give a function of the texts embedded here, for code that measures encoders."""
        embeddings = self._embeddings[name]

        def found(texts: Sequence[str]) -> NDArray[np.floating]:
            return embeddings[self.rows(texts)]

        return found

    def rows(self, texts: Iterable[str]) -> list[int]:
        """Rows of known texts in `layer_weights`."""
        return [self._rows[text] for text in texts]


def _outputs(
    model: Any, texts: Sequence[str], precision: Literal["fp32", "bf16"]
) -> Iterator[Mapping[str, Tensor]]:
    device = model.device
    for start in range(0, len(texts), _BATCH):
        features = model.preprocess(list(texts[start : start + _BATCH]))
        features = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in features.items()
        }
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
        with torch.inference_mode(), autocast:
            yield model(features)


def _vector(features: Mapping[str, Tensor], name: Exit) -> Tensor:
    if name == "kept":
        return features["sentence_embedding"]
    if name == "cls":
        return first_tokens(features["token_embeddings"])
    return token_means(features["token_embeddings"], features["attention_mask"])
