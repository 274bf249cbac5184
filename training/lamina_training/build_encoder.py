"""Pretrained transformer and layer pooling -> an encoder to train."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lamina_training.encoder_folder import (
    EncoderFolder,
    EncoderFolderError,
    check_max_tokens,
    find_encoder,
)
from lamina_training.layer_pooling import LayerPooling
from lamina_training.layer_pooling_config import LayerPoolingConfig


def build_encoder(
    base: str | Path,
    pooling: LayerPoolingConfig,
    *,
    cache: Path,
    seed: int,
    max_tokens: int | None = None,
    layers: Sequence[int] | None = None,
    reinitialize_top: int = 0,
) -> Any:
    """Build a `SentenceTransformer` of the base's transformer and a new pooling, on the CPU.

    The base's own pooling, if it has one, is left out.

    Args:
        base: A folder, a pinned model by name, or a model hub's id; safetensors weights only.
        pooling: How to pool.
        cache: Where pinned weights are kept.
        seed: Of the new weights; the process's own random state is left as it is.
        max_tokens: Longest text that it must be able to read, special tokens included: raises the
            base's own limit where that is lower, and never lowers it.
        layers: Keep only these layers, counted from 0, in this order; None keeps all.
        reinitialize_top: How many upper layers, of those kept, lose what they learnt: an honest
            stand-in for a base that no one has tuned for sentences, where only tuned ones are to
            be had.

    Raises:
        EncoderFolderError: If the base cannot be loaded, or has fewer layers or positions.
    """
    from sentence_transformers import SentenceTransformer

    folder = find_encoder(str(base), cache=cache)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # before loading, which draws what the base lacks
        transformer = _load_transformer(folder)
        config = transformer.model.config
        if layers is not None:
            keep_layers(transformer.model, layers)
        if reinitialize_top:
            reinitialize_layers(transformer.model, reinitialize_top)
        module = LayerPooling(
            config.hidden_size, config.num_hidden_layers + 1, **pooling.model_dump()
        )
    if max_tokens is not None:
        check_max_tokens(folder, config, max_tokens)
        transformer.max_seq_length = max(max_tokens, transformer.max_seq_length)
    return SentenceTransformer(modules=[transformer, module], device="cpu")


def _load_transformer(folder: EncoderFolder) -> Any:
    from sentence_transformers.sentence_transformer.modules import Transformer

    try:
        return Transformer.load(
            str(folder.root),
            subfolder=folder.modules[0][1] if folder.modules else "",
            local_files_only=True,
            trust_remote_code=False,
            model_kwargs={"dtype": "float32", "use_safetensors": True},
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EncoderFolderError(f"{folder.root}: cannot be loaded ({error})") from error


def keep_layers(model: Any, kept: Sequence[int]) -> None:
    """Take all other layers out of a transformers encoder.

    Raises:
        EncoderFolderError: If it has not these layers, or no list of them.
    """
    stack = layers_of(model)
    if not kept or not all(0 <= number < len(stack) for number in kept):
        raise EncoderFolderError(
            f"cannot keep layers {list(kept)}: {type(model).__name__} has 0 to {len(stack) - 1}"
        )
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is stack:
                setattr(parent, name, nn.ModuleList(stack[number] for number in kept))
    model.config.num_hidden_layers = len(kept)


def reinitialize_layers(model: Any, count: int) -> None:
    """Draw the top layers' weights anew by the rule that BERT's were drawn by before pre-training.

    Products are N(0, initializer_range^2), biases 0, norms the identity. Written out because
    transformers' own initialisation passes over weights that were loaded.

    Args:
        model: A transformers encoder.
        count: How many layers, from the last one downwards.

    Raises:
        EncoderFolderError: If there are fewer layers, or it has no list of them.
    """
    stack = layers_of(model)
    if not 0 <= count <= len(stack):
        raise EncoderFolderError(
            f"cannot re-initialise the top {count} layers: {type(model).__name__} has {len(stack)}"
        )
    deviation = float(getattr(model.config, "initializer_range", 0.02))
    top = list(stack)[len(stack) - count :]
    for module in (part for layer in top for part in layer.modules()):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=deviation)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            module.reset_parameters()


def layers_of(model: Any) -> nn.ModuleList:
    """Find the list of a transformers encoder's layers.

    Raises:
        EncoderFolderError: If it has none of as many as its configuration tells.
    """
    total = int(model.config.num_hidden_layers)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return module
    raise EncoderFolderError(f"{type(model).__name__}: has no list of its {total} layers")
