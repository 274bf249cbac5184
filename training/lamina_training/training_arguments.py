"""A run's settings in the words of transformers' trainers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina_training.data_rows import TrainingDataError
from lamina_training.run_batches import RunBatches, batches_per_pass
from lamina_training.run_folder import RunFolder
from lamina_training.train_config import TrainConfig

_SCHEDULES = {"linear": "linear", "cosine": "cosine", "constant": "constant_with_warmup"}


@dataclass(frozen=True)
class Setting:
    """Where and on what a run goes on.

    Attributes:
        folder: Of the run.
        cache: Folder that keeps fetched weights.
        cpu: Whether to stay off any accelerator.
        processes: How many share each batch.
        resumed: Whether it goes on from a checkpoint.
    """

    folder: RunFolder
    cache: Path
    cpu: bool
    processes: int
    resumed: bool


def plan_batches(config: TrainConfig, sizes: Sequence[int], *, processes: int) -> RunBatches:
    """Plan all batches of a run over sources of so many rows.

    Raises:
        TrainingDataError: If there are too few rows, or the processes do not divide a batch.
    """
    run = config.run
    per_pass = batches_per_pass(sizes, run.batch_size)
    if not per_pass:
        raise TrainingDataError(
            f"data.train: {' and '.join(map(str, sizes))} rows give no batch of "
            f"{run.batch_size} (run.batch_size); lower it or give more rows"
        )
    if run.batch_size % processes:
        raise TrainingDataError(
            f"run.batch_size: {run.batch_size} rows cannot be shared evenly by {processes} "
            "processes; choose a multiple"
        )
    return RunBatches(
        sizes,
        batch_size=run.batch_size,
        processes=processes,
        batches=steps_of(config, sizes) * run.accumulate,
        seed=config.seed,
    )


def steps_of(config: TrainConfig, sizes: Sequence[int]) -> int:
    """Count the steps of a run; an epoch is one pass over the whole batches of all sources."""
    run = config.run
    if run.steps is not None:
        return run.steps
    assert run.epochs is not None  # checked by the configuration
    return max(1, math.ceil(run.epochs * batches_per_pass(sizes, run.batch_size) / run.accumulate))


def make_arguments(
    kind: type, config: TrainConfig, setting: Setting, *, steps: int, score: str | None, **more: Any
) -> Any:
    """Make the arguments of a trainer.

    Args:
        kind: `TrainingArguments` of transformers or sentence-transformers.
        config: Of the run.
        setting: Of the run.
        steps: Of the run.
        score: Name of the dev score, higher is better, that chooses the best checkpoint; None if
            nothing is measured.
        more: Further arguments.
    """
    run, optimizer = config.run, config.optimizer
    arguments = kind(
        output_dir=str(setting.folder.checkpoints),
        per_device_train_batch_size=run.batch_size // setting.processes,
        per_device_eval_batch_size=max(run.batch_size, 32),
        gradient_accumulation_steps=run.accumulate,
        max_steps=steps,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type=_SCHEDULES[optimizer.schedule],
        warmup_steps=round(optimizer.warmup * steps),
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_gradient_norm,
        optim="adamw_torch",
        seed=config.seed,
        bf16=run.precision == "bf16",
        use_cpu=setting.cpu,
        logging_steps=run.log_every,
        logging_nan_inf_filter=False,
        eval_strategy="no" if score is None else "steps",
        eval_steps=run.evaluate_every,
        eval_on_start=score is not None and not setting.resumed,
        save_strategy="steps",
        save_steps=run.evaluate_every,
        save_total_limit=run.keep_checkpoints + 1,  # at 1 the last would go if not the best
        metric_for_best_model=score,
        greater_is_better=True if score else None,
        disable_tqdm=True,
        report_to=[],
        **more,
    )
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one process a device; transformers would split each batch instead
    return arguments
