"""`task = "classification"`: labelled texts or pairs -> a trainer of a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
    TrainingArguments,
)

from lamina_training.attention_dropout import attention_dropout
from lamina_training.build_encoder import keep_layers, reinitialize_layers
from lamina_training.classification_scores import score_predictions
from lamina_training.encoder_folder import (
    EncoderFolderError,
    check_max_tokens,
    find_encoder,
)
from lamina_training.run_rows import plan_rows
from lamina_training.run_trainer import ClassifierTrainer
from lamina_training.text_sources import read_labelled_data
from lamina_training.train_config import ClassificationConfig
from lamina_training.training_arguments import Setting, make_arguments
from lamina_training.training_data import LabelledExample


def classification_trainer(
    config: ClassificationConfig, setting: Setting, callbacks: Sequence[TrainerCallback]
) -> ClassifierTrainer:
    """Read the data, put a classification head on the base and make ready to train both.

    Raises:
        LaminaError: If data or base cannot be read, or do not fit the configuration.
    """
    labels, rows, dev = read_labelled_data(config.data)
    plan = plan_rows(config, [rows], processes=setting.processes)
    arguments = make_arguments(
        TrainingArguments,
        config,
        setting,
        steps=plan.steps,
        score=config.score,
        remove_unused_columns=False,  # the rows are our own, read by the collator below
        label_names=["labels"],
    )
    model, tokenizer = _classifier(config, setting.cache, labels)
    model.to(arguments.device)
    return ClassifierTrainer(
        rows=plan,
        training_loss=config.training_loss,
        dropout=attention_dropout(model, config.attention_dropout),
        model=model,
        args=arguments,
        data_collator=Collator(tokenizer, config.encoder.max_tokens),
        eval_dataset=dev,
        processing_class=tokenizer,
        compute_metrics=score_predictions,
        callbacks=list(callbacks),
    )


class Collator:
    """Labelled texts -> a padded batch; of a pair that is too long the longer text is cut."""

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        self.tokenizer = tokenizer
        self._max_tokens = max_tokens

    def __call__(self, rows: Sequence[LabelledExample]) -> dict[str, Any]:
        columns = [list(column) for column in zip(*(row.texts for row in rows), strict=True)]
        batch: dict[str, Any] = self.tokenizer(
            *columns,
            truncation=True,
            max_length=self._max_tokens,
            padding=True,
            return_tensors="pt",
        )
        batch["labels"] = torch.tensor([row.label for row in rows])
        return batch


def _classifier(
    config: ClassificationConfig, cache: Path, labels: Sequence[str]
) -> tuple[Any, Any]:
    found = find_encoder(config.encoder.base, cache=cache)
    folder = found.transformer
    try:
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            folder,
            id2label=dict(enumerate(labels)),
            label2id={label: number for number, label in enumerate(labels)},
            problem_type="single_label_classification",  # the base's may be another
            dtype="float32",
            ignore_mismatched_sizes=True,  # a head of other labels, which is replaced below
            output_loading_info=True,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise EncoderFolderError(f"{folder}: cannot be loaded ({error})") from error
    check_max_tokens(found, model.config, config.encoder.max_tokens)
    _renew_head(model, loading, folder=folder, seed=config.seed)
    if config.encoder.layers is not None:
        keep_layers(model.base_model, config.encoder.layers)
    if config.encoder.reinitialize_top:
        reinitialize_layers(model.base_model, config.encoder.reinitialize_top)
    return model, tokenizer


def _renew_head(model: Any, loading: dict[str, Any], *, folder: Path, seed: int) -> None:
    """Draw the head anew where the base brought one, which knows other labels.

    A head that the base lacked was drawn as it was loaded, and stays.

    Args:
        model: A sequence classifier of transformers.
        loading: What transformers tells of the loading.
        folder: Where the base lies, for the message of an error.
        seed: Of the new weights; the process's own random state is left as it is.

    Raises:
        EncoderFolderError: If weights below the head have other shapes than the configuration says.
    """
    below = f"{model.base_model_prefix}."
    for name, found, expected in loading["mismatched_keys"]:
        if name.startswith(below):
            raise EncoderFolderError(
                f"{folder}: {name} is {tuple(found)}, its config.json says {tuple(expected)}; "
                "fetch the base again"
            )
    head = {name for name in model.state_dict() if not name.startswith(below)}
    if head <= loading["missing_keys"]:
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = AutoModelForSequenceClassification.from_config(model.config).state_dict()
    model.load_state_dict({name: drawn[name] for name in head}, strict=False)
