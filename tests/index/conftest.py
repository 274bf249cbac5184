from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from lamina_index.corpus import Document
from lamina_index.encoder import Encoded
from lamina_index.manifest import CollectionManifest, EncoderReference, FieldType, Metadata
from lamina_index.snapshot import write_snapshot
from lamina_index.snapshot_files import Snapshot
from lamina_index.store import DocumentStore
from lamina_index.text import TEXT_VERSION


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


@pytest.fixture(scope="session")
def word_encoder() -> WordEncoder:
    return WordEncoder()


@dataclass
class MadeCollection:
    """A collection of given vectors, written row by row as the tests need it."""

    folder: Path
    store: DocumentStore

    def put(
        self,
        ids: Sequence[str],
        embeddings: NDArray[np.float32],
        text: str = "{}",
        metadata: Sequence[Metadata] | None = None,
    ) -> None:
        """Store documents whose text names their id."""
        given = metadata or [{}] * len(ids)
        self.store.upsert(
            [Document(each, text.format(each), row) for each, row in zip(ids, given, strict=True)],
            embeddings,
        )

    def snapshot(self, factory: str = "auto") -> Snapshot:
        """Write a snapshot of what is stored."""
        return write_snapshot(self.folder, self.store, factory=factory, threads=1)


MakeCollection: TypeAlias = Callable[..., MadeCollection]


@pytest.fixture
def make_collection(tmp_path: Path, word_encoder: WordEncoder) -> Iterator[MakeCollection]:
    """Make empty collections that the word encoder could have built."""
    with ExitStack() as stack:

        def make(
            name: str = "collection",
            dimension: int = word_encoder.dimension,
            fields: dict[str, FieldType] | None = None,
        ) -> MadeCollection:
            folder = tmp_path / name
            folder.mkdir()
            reference = EncoderReference(
                name=word_encoder.name,
                precision=word_encoder.precision,
                fingerprint=word_encoder.fingerprint,
            )
            CollectionManifest(
                encoder=reference,
                dimension=dimension,
                text_version=TEXT_VERSION,
                fields=fields or {},
                created="2026-01-01T00:00:00+00:00",
            ).write(folder / "collection.json")
            store = stack.enter_context(DocumentStore.create(folder, dimension=dimension))
            return MadeCollection(folder, store)

        yield make
