"""`task = "contrastive"`: pairs, triplets or single texts -> a trainer of an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainerCallback

from lamina_training.attention_dropout import attention_dropout
from lamina_training.dev_scores import DevScores, read_dev
from lamina_training.losses import CachedContrastiveLoss, ContrastiveLoss
from lamina_training.run_rows import plan_rows
from lamina_training.run_trainer import EncoderTrainer
from lamina_training.starting_encoder import starting_encoder
from lamina_training.text_sources import read_sources
from lamina_training.train_config import Contrastive, ContrastiveConfig
from lamina_training.training_arguments import Setting, make_arguments


def contrastive_trainer(
    config: ContrastiveConfig, setting: Setting, callbacks: Sequence[TrainerCallback]
) -> EncoderTrainer:
    """Read the data, build the encoder and make ready to train it.

    Raises:
        LaminaError: If data or base cannot be read, or do not fit the configuration.
    """
    dev = read_dev(config.dev, config.data.folder, seed=config.seed)
    sources = read_sources(config.data)
    plan = plan_rows(config, sources, processes=setting.processes)
    arguments = make_arguments(
        SentenceTransformerTrainingArguments,
        config,
        setting,
        steps=plan.steps,
        score=config.dev.deciding,
    )
    model = starting_encoder(config, cache=setting.cache)
    model.to(arguments.device)
    return EncoderTrainer(
        max_tokens=config.encoder.max_tokens,
        rows=plan,
        dropout=attention_dropout(model, config.attention_dropout),
        model=model,
        args=arguments,
        train_dataset=sources[0],
        loss=_loss(model, config.contrastive, several=setting.processes > 1),
        evaluator=DevScores(dev) if config.dev.deciding else None,
        callbacks=list(callbacks),
    )


def _loss(model: Any, settings: Contrastive, *, several: bool) -> ContrastiveLoss:
    options = settings.model_dump(exclude={"mini_batch_size"}) | {"gather_across_devices": several}
    if settings.mini_batch_size is not None:
        return CachedContrastiveLoss(model, mini_batch_size=settings.mini_batch_size, **options)
    return ContrastiveLoss(model, **options)
