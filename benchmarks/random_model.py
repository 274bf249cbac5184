"""A BERT with random weights and texts of random words, for what depends on shapes alone."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from harness import ENCODER
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel


def known_words() -> list[str]:
    """List words that are one token each."""
    vocabulary = Tokenizer.from_file(str(ENCODER / "tokenizer.json")).get_vocab()
    return sorted(word for word in vocabulary if word.isascii() and word.isalpha())


def random_texts(words: Sequence[str], count: int, *, tokens: int, seed: int) -> list[str]:
    """Make texts of so many tokens, special ones included."""
    generator = random.Random(seed)
    return [" ".join(generator.choices(words, k=tokens - 2)) for _ in range(count)]


def random_bert(
    folder: Path, *, layers: int, width: int, heads: int, inner: int, positions: int
) -> Path:
    """Write a Hugging Face folder with random weights and the bundled encoder's tokenizer.

    Args:
        folder: To write.
        layers, width, heads, inner: Of the model; `inner` is the feed-forward width.
        positions: Longest text.
    """
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(ENCODER / "tokenizer.json"))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=positions,
    )
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    shutil.copy(ENCODER / "tokenizer.json", folder)
    settings = json.loads((ENCODER / "tokenizer_config.json").read_text("utf-8"))
    settings["model_max_length"] = positions
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return folder


def write_pairs(path: Path, words: Sequence[str], count: int, *, tokens: int) -> Path:
    """Write pairs of texts with the same words in another order, as a TSV file."""
    anchors = random_texts(words, count, tokens=tokens, seed=1)
    generator = random.Random(2)
    lines = ["anchor\tpositive"]
    for anchor in anchors:
        other = anchor.split()
        generator.shuffle(other)
        lines.append(f"{anchor}\t{' '.join(other)}")
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path
