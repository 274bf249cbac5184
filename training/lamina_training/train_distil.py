"""`task = "distil"`: texts and a teacher -> a trainer of an encoder that embeds as the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
from accelerate import PartialState
from sentence_transformers import SentenceTransformerTrainingArguments
from torch import Tensor
from transformers import TrainerCallback

from lamina_training.attention_dropout import attention_dropout
from lamina_training.build_encoder import layers_of
from lamina_training.dev_scores import DevScores, read_dev
from lamina_training.distil_loss import DistilLoss, Teacher
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.prompt_tokens import PromptTokens, default_prompt, is_read_apart
from lamina_training.run_rows import plan_rows
from lamina_training.run_trainer import EncoderTrainer
from lamina_training.starting_encoder import starting_encoder
from lamina_training.teacher_embeddings import teacher_embeddings
from lamina_training.text_sources import read_sources, read_texts
from lamina_training.train_config import DistilConfig, TrainConfigError
from lamina_training.training_arguments import Setting, make_arguments
from lamina_training.training_data import KEY_COLUMN

PROBED_ROWS = 100
"""Of each source, to see whether the teacher's prompt can stand before the student's tokens."""


def distil_trainer(
    config: DistilConfig, setting: Setting, callbacks: Sequence[TrainerCallback]
) -> EncoderTrainer:
    """Read the data, have the teacher embed it, build the student and make ready to train it.

    Raises:
        LaminaError: If data, teacher or base cannot be read, or do not fit the configuration.
    """
    dev = read_dev(config.dev, config.data.folder, seed=config.seed)
    distil = config.distil
    if distil.together:
        sources = read_sources(config.data)
    else:
        sources = [datasets.Dataset.from_dict({"text": read_texts(config.data)})]
    model = starting_encoder(config, cache=setting.cache)
    beside = _teacher_beside(config, model, setting, sources)
    texts: list[str] = []
    if beside is None:
        sources, texts = _with_places(sources)
    plan = plan_rows(config, sources, processes=setting.processes)
    arguments = make_arguments(
        SentenceTransformerTrainingArguments,
        config,
        setting,
        steps=plan.steps,
        score=config.dev.deciding,
    )
    model.to(arguments.device)
    teacher: Teacher | Tensor
    if beside is not None:
        beside.model.to(arguments.device)
        teacher = beside
    else:
        with PartialState().main_process_first():  # the others read what it has kept
            teacher = teacher_embeddings(
                distil.teacher,
                texts,
                cache=setting.cache,
                device=arguments.device,
                precision=config.run.precision,
            )
    loss = DistilLoss(
        model,
        teacher,
        **distil.model_dump(exclude={"teacher", "token_layers", "together"}),
        gather_across_devices=setting.processes > 1,
    )
    return EncoderTrainer(
        max_tokens=config.encoder.max_tokens,
        rows=plan,
        dropout=attention_dropout(model, config.attention_dropout),
        model=model,
        args=arguments,
        train_dataset=sources[0],
        loss=loss,
        evaluator=DevScores(dev) if config.dev.deciding else None,
        callbacks=list(callbacks),
    )


def _with_places(
    sources: Sequence[datasets.Dataset],
) -> tuple[list[datasets.Dataset], list[str]]:
    """Give the sources with where each row's texts (columns,) stand in the list of all of them."""
    places: dict[str, int] = {}
    placed = []
    for source in sources:
        texts = source.select_columns([name for name in source.column_names if name != KEY_COLUMN])
        of_rows = [[places.setdefault(t, len(places)) for t in row.values()] for row in texts]
        placed.append(texts.add_column(KEY_COLUMN, of_rows))
    return placed, list(places)


def _teacher_beside(
    config: DistilConfig, model: Any, setting: Setting, sources: Sequence[datasets.Dataset]
) -> Teacher | None:
    """Load the teacher, if it is to read each batch beside the student and can.

    Returns:
        None if its embeddings suffice, and the texts of a batch need not come from one row or it
        cannot read the student's tokens.

    Raises:
        TrainConfigError: If the states of tokens are asked of a teacher that cannot read them.
    """
    distil = config.distil
    if not (distil.token_weight or distil.together):
        return None
    teacher = load_encoder(find_encoder(distil.teacher, cache=setting.cache))
    apart = _why_apart(config, model, teacher, sources)
    if apart and distil.token_weight:
        raise TrainConfigError(f"distil: {apart}; or set token_weight to 0")
    if apart:
        return None
    own, its = (len(layers_of(encoder[0].auto_model)) for encoder in (model, teacher))
    layers = distil.token_layers or (its - 1,) if distil.token_weight else ()
    if layers and (max(layers) >= its or len(layers) not in (1, own)):
        raise TrainConfigError(
            f"distil.token_layers: {list(layers)}; expected one layer, or {own}, one for each of "
            f"the student's, from 0 to {its - 1}, the teacher's last"
        )
    return Teacher(teacher, layers, precision=config.run.precision)


def _why_apart(
    config: DistilConfig, model: Any, teacher: Any, sources: Sequence[datasets.Dataset]
) -> str | None:
    """Tell why a teacher cannot read the student's tokens as it reads their texts, if so."""
    name, given = config.distil.teacher, config.encoder.max_tokens
    if teacher.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        return (
            f"the tokenizer of teacher {name} has other tokens than the student's, so it cannot "
            "read beside it; take one that has the same"
        )
    prompt = PromptTokens.of(teacher)
    length = len(prompt.ids) if prompt else 0
    longest = teacher.max_seq_length
    if longest is not None and given + length > longest:
        return (
            f"encoder.max_tokens is {given}, and teacher {name} reads {longest} tokens, {length} "
            f"of them its prompt's; lower it to {longest - length}"
        )
    some = [
        text
        for source in sources
        for column, texts in source[:PROBED_ROWS].items()
        if column != KEY_COLUMN
        for text in texts
    ]
    if not is_read_apart(teacher, some):
        return (
            f"the tokenizer of teacher {name} joins the end of its prompt "
            f"{default_prompt(teacher)!r} to the first word of a text, so it cannot read the "
            "prompt before the student's tokens; take another"
        )
    return None
