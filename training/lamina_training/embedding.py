"""Unit embeddings from anything that encodes texts: a SentenceTransformer or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina_index.errors import EncoderOutputError

Encode: TypeAlias = Callable[[Sequence[str]], NDArray[np.floating]]
"""N texts to (N, D) embeddings of any length."""


def encode_with(
    model: Any, *, role: Literal["query", "document"] | None = None, batch_size: int = 64
) -> Encode:
    """Make a function of a SentenceTransformer; during a call the model is in evaluation mode.

    Args:
        model: A SentenceTransformer.
        role: Which of the model's prompts stands before each text; None for the default prompt.
        batch_size: Texts encoded together; they are sorted by length first.
    """
    methods = {None: "encode", "query": "encode_query", "document": "encode_document"}
    encode_texts = getattr(model, methods[role])

    def encode(texts: Sequence[str]) -> NDArray[np.floating]:
        training = model.training
        try:
            embeddings: NDArray[np.floating] = encode_texts(
                list(texts), batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        finally:
            model.train(training)  # encoding leaves it in evaluation mode
        return embeddings

    return encode


def unit_embeddings(encode: Encode, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts to (N, D) rows of length 1.

    Raises:
        ValueError: If the function gives another shape.
        EncoderOutputError: If an embedding is not finite, or zero and so without direction.
    """
    embeddings = np.asarray(encode(texts), dtype=np.float64)
    if embeddings.ndim != 2 or len(embeddings) != len(texts):
        raise ValueError(f"{len(texts)} texts gave embeddings of shape {embeddings.shape}")
    lengths = np.linalg.norm(embeddings, axis=1)
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        raise EncoderOutputError(
            f"the encoder gave no finite direction for {len(bad)} of {len(texts)} texts, first for "
            f"{texts[int(bad[0])][:60]!r}; its weights are likely damaged, take an earlier "
            "checkpoint",
            items=tuple(bad.tolist()),
        )
    unit: NDArray[np.float32] = (embeddings / lengths[:, np.newaxis]).astype(np.float32)
    return unit


class EmbeddedTexts:
    """Distinct texts, each encoded once, found by their text."""

    def __init__(self, encode: Encode, texts: Iterable[str]) -> None:
        distinct = list(dict.fromkeys(texts))
        self._rows = {text: row for row, text in enumerate(distinct)}
        self.embeddings = unit_embeddings(encode, distinct)

    def __call__(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """Give the (N, D) unit rows of texts, all of them known."""
        return self.embeddings[[self._rows[text] for text in texts]]
