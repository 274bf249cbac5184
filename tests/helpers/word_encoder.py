"""An encoder whose vectors a test can count on, and that takes no time."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lamina_index.encoder import Encoded


class WordEncoder:
    """A tiny encoder: each word has a random direction, a text the sum of its words' directions."""

    name = "words"
    precision: Literal["fp32"] = "fp32"
    fingerprint = hashlib.sha256(b"words").hexdigest()
    dimension = 32
    max_tokens = 16

    def encode(self, texts: Sequence[str], *, role: Literal["query", "document"]) -> Encoded:
        words = [re.findall(r"\w+", text.lower()) for text in texts]
        counts = np.array([len(found) for found in words], dtype=np.int32)
        rows = [
            sum(map(self._direction, found[: self.max_tokens]), np.full(32, 1e-3))
            for found in words
        ]
        embeddings = np.array(rows, dtype=np.float32).reshape(len(texts), self.dimension)
        return Encoded(
            embeddings=embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True),
            token_counts=np.minimum(counts, self.max_tokens),
            full_token_counts=counts,
            blank=counts == 0,
        )

    def whole_text_tokenizer(self) -> Tokenizer:
        """What splitting needs: one token a word."""
        tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = Whitespace()
        return tokenizer

    def _direction(self, word: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8])
        return np.random.default_rng(seed).standard_normal(self.dimension)
