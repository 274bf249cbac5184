"""`task = "distil"`: texts and a teacher -> a trainer of an encoder that embeds as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import torch
from accelerate import PartialState
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import TrainerCallback

from lamina_training.attention_dropout import attention_dropout
from lamina_training.dev_scores import DevScores, read_dev
from lamina_training.distil_loss import DistilLoss
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.run_rows import plan_rows
from lamina_training.run_trainer import EncoderTrainer
from lamina_training.starting_encoder import starting_encoder
from lamina_training.teacher_embeddings import teacher_embeddings
from lamina_training.text_sources import read_texts
from lamina_training.train_config import DistilConfig, TrainConfigError
from lamina_training.training_arguments import Setting, make_arguments


def distil_trainer(
    config: DistilConfig, setting: Setting, callbacks: Sequence[TrainerCallback]
) -> EncoderTrainer:
    """Read the data, have the teacher embed it, build the student and make ready to train it.

    Raises:
        LaminaError: If data, teacher or base cannot be read, or do not fit the configuration.
    """
    dev = read_dev(config.dev, config.data.folder, seed=config.seed)
    texts = read_texts(config.data)
    source = datasets.Dataset.from_dict({"text": texts, "label": list(range(len(texts)))})
    plan = plan_rows(config, [source], processes=setting.processes)
    arguments = make_arguments(
        SentenceTransformerTrainingArguments,
        config,
        setting,
        steps=plan.steps,
        score=config.dev.deciding,
    )
    with PartialState().main_process_first():  # the others read what it has kept
        teacher = teacher_embeddings(
            config.distil.teacher, texts, cache=setting.cache, device=arguments.device
        )
    model = starting_encoder(config, cache=setting.cache)
    model.to(arguments.device)
    loss = DistilLoss(
        model,
        teacher,
        **config.distil.model_dump(exclude={"teacher"}),
        token_teacher=_token_teacher(config, model, setting)
        if config.distil.token_weight
        else None,
        gather_across_devices=setting.processes > 1,
    )
    return EncoderTrainer(
        max_tokens=config.encoder.max_tokens,
        rows=plan,
        dropout=attention_dropout(model, config.attention_dropout),
        model=model,
        args=arguments,
        train_dataset=source,
        loss=loss,
        evaluator=DevScores(dev) if config.dev.deciding else None,
        callbacks=list(callbacks),
    )


def _token_teacher(config: DistilConfig, model: Any, setting: Setting) -> Any:
    """The teacher's transformer, frozen, on the student's device."""
    teacher = load_encoder(find_encoder(config.distil.teacher, cache=setting.cache))
    if teacher.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise TrainConfigError(
            f"distil.token_weight: the tokenizer of teacher {config.distil.teacher} has other "
            "tokens than the student's, so their states are not of the same tokens; set it to 0"
        )
    transformer = teacher[0].requires_grad_(False).eval().to(model.device)
    if config.run.precision == "bf16":  # the trainer's own autocast ends at the student
        autocast = torch.autocast(model.device.type, torch.bfloat16)
        transformer.forward = autocast(transformer.forward)
    return transformer
