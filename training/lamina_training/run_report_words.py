"""A run's configuration in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lamina_training.layer_pooling_config import LayerPoolingConfig
from lamina_training.train_config import (
    ClassificationConfig,
    Dev,
    DistilConfig,
    Encoder,
    LabelledFile,
    TextFile,
    TrainConfig,
)

SCORE_NAMES = {
    "sts": "Spearman x 100",
    "retrieval": "MRR@10",
    "accuracy": "accuracy",
    "matthews": "Matthews correlation",
    "f1": "F1",
}


def config_in_words(config: TrainConfig) -> list[str]:
    """Say what was trained, on what, how and how it was measured: a sentence or two each."""
    return [
        _task(config),
        _data(config),
        _steps(config),
        *_dropout(config),
        _measured(config),
    ]


def _task(config: TrainConfig) -> str:
    base = f"`{config.encoder.base}`{_changes(config.encoder)}"
    if isinstance(config, ClassificationConfig):
        return f"Classification: a new head on {base}."
    if isinstance(config, DistilConfig):
        task = f"Distillation of `{config.distil.teacher}` into {base}"
    else:
        loss = config.contrastive
        scheme = f"{loss.scheme.replace('_', '-')}, temperature {loss.temperature:g}"
        task = f"Contrastive training ({scheme}) of {base}"
    return f"{task}, pooled by {_pooling(config.pooling)}."


def _changes(encoder: Encoder) -> str:
    parts = []
    if encoder.layers is not None:
        parts.append(f"layers {_listed(encoder.layers)} kept")
    if encoder.reinitialize_top:
        parts.append(f"upper {_count(encoder.reinitialize_top, 'layer')} re-initialised")
    return f" ({', '.join(parts)})" if parts else ""


def _pooling(pooling: LayerPoolingConfig) -> str:
    text = f"`{pooling.label}`"
    if pooling.mode == "layer_attention":
        text += f", towards being stripped to `{pooling.strip_to}`"
    return text


def _data(config: TrainConfig) -> str:
    train = config.data.train
    sources = train if isinstance(train, tuple) else (train,)
    return f"Trained on {'; '.join(_source(source) for source in sources)}."


def _source(source: TextFile | LabelledFile) -> str:
    notes = [f"columns {_listed(source.columns)}" if len(source.columns) > 1 else source.columns[0]]
    notes += [f"{name} {' or '.join(values)}" for name, values in source.where.items()]
    if isinstance(source, TextFile) and source.half:
        notes.append(f"{source.half} half")
    if source.limit:
        notes.append(f"the first {source.limit:,} rows")
    return f"`{source.file}` ({', '.join(notes)})"


def _steps(config: TrainConfig) -> str:
    run, optimizer = config.run, config.optimizer
    length = _count(run.steps, "step") if run.steps else f"{run.epochs:g} epochs"
    batch = f"{run.batch_size} rows"
    if run.accumulate > 1:
        batch = f"{run.accumulate} x {batch}"
    warmup = f"{optimizer.warmup:.0%} warm-up, then {optimizer.schedule}"
    return (
        f"{length} of {batch}, texts cut at {config.encoder.max_tokens} tokens, {run.precision}, "
        f"seed {config.seed}. AdamW at {optimizer.learning_rate:g}, {warmup}, weight decay "
        f"{optimizer.weight_decay:g}."
    )


def _dropout(config: TrainConfig) -> list[str]:
    settings: dict[str, Any] = config.attention_dropout.model_dump(mode="json", exclude_none=True)
    kind = settings.pop("kind")
    if kind == "none":
        return []
    told = ", ".join(f"{name} {value}" for name, value in settings.items())
    return [f"Attention dropout `{kind}`: {told}."]


def _measured(config: TrainConfig) -> str:
    every = f"every {_count(config.run.evaluate_every, 'step')}"
    if isinstance(config, ClassificationConfig):
        return (
            f"Measured {every} on `{config.data.dev.file}`; {SCORE_NAMES[config.score]} chose the "
            "checkpoint."
        )
    if config.dev.deciding is None:
        return "Nothing was measured; the weights are those of the last step."
    chosen = SCORE_NAMES[config.dev.deciding]
    return f"Measured {every}: {_dev(config.dev)}; {chosen} chose the checkpoint."


def _dev(dev: Dev) -> str:
    parts = []
    if dev.sts:
        parts.append(f"{SCORE_NAMES['sts']} on `{dev.sts.file}`")
    if dev.retrieval:
        limits = {"queries": dev.retrieval.query_limit, "documents": dev.retrieval.document_limit}
        told = [f"at most {most:,} {name}" for name, most in limits.items() if most]
        corpus = f"`{dev.retrieval.corpus}`" + (f" ({', '.join(told)})" if told else "")
        parts.append(f"{SCORE_NAMES['retrieval']} on {corpus}")
    return " and ".join(parts)


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))
