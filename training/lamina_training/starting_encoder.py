"""The encoder that a configuration starts to train from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lamina_training.build_encoder import build_encoder
from lamina_training.train_config import ContrastiveConfig, DistilConfig


def starting_encoder(config: ContrastiveConfig | DistilConfig, *, cache: Path) -> Any:
    """Build a `SentenceTransformer` of the base's transformer and the configured pooling.

    Raises:
        EncoderFolderError: If the base cannot be loaded, or lacks layers to keep.
    """
    return build_encoder(
        config.encoder.base,
        config.pooling,
        cache=cache,
        seed=config.seed,
        max_tokens=config.encoder.max_tokens,
        layers=config.encoder.layers,
        reinitialize_top=config.encoder.reinitialize_top,
    )
