"""One configuration -> one trained encoder or classifier, in a run folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accelerate import PartialState
from rich.console import Console
from safetensors import SafetensorError
from transformers import TrainerCallback, set_seed

from lamina_index.disk import disk_errors_told
from lamina_index.errors import DeviceError, LaminaError, StorageFullError
from lamina_index.manifest import sha256_file
from lamina_training.attention_dropout import ScheduledBernoulli
from lamina_training.dev_scores import dev_files
from lamina_training.encoder_folder import find_encoder
from lamina_training.encoder_hashes import hash_encoder
from lamina_training.final_scores import final_files, read_final
from lamina_training.metrics_log import MetricsLog
from lamina_training.progress_bar import ProgressBar
from lamina_training.run_folder import CHECKPOINTS, RUN_FILE, RunFolder, run_facts, write_json
from lamina_training.run_trainer import RunTrainer
from lamina_training.text_sources import text_files
from lamina_training.train_classification import classification_trainer
from lamina_training.train_config import (
    ClassificationConfig,
    ContrastiveConfig,
    DistilConfig,
    TrainConfig,
)
from lamina_training.train_contrastive import contrastive_trainer
from lamina_training.train_distil import distil_trainer
from lamina_training.training_arguments import Setting

_logger = logging.getLogger(__name__)

_NO_SPACE = ("os error 28)", "os error 122)")
"""How safetensors, in whose errors there is no errno, says ENOSPC and EDQUOT."""

_PATIENCE_SECONDS = 10.0
"""How long a process that failed at the start waits for the main one to fail too."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        folder: The run's folder.
        steps: Of the run.
        best_step: Whose weights the folder has; the last one where nothing was measured.
        score_name: The dev score that chose it, None where nothing was measured.
        score: Its value.
        seconds: That this process trained, evaluations included; not those before a resumption.
    """

    folder: str
    steps: int
    best_step: int
    score_name: str | None
    score: float | None
    seconds: float


def train(
    config: TrainConfig,
    folder: Path,
    *,
    cache: Path,
    resume: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    console: Console | None = None,
) -> TrainResult:
    """Train, and leave the best weights in the run's folder.

    With several processes (torchrun) each calls this with the same arguments; the batch is shared.

    Args:
        config: What to train, on what, how long.
        folder: Of the run; must not exist, or with `resume` be that of the same run.
        cache: Folder that keeps fetched weights and teachers' embeddings.
        resume: Go on from the last whole checkpoint, or from the start if there is none. On the
            same machine with the same versions the weights are those of a run without a break.
        callbacks: Told what happens, as transformers' trainer does.
        console: Where the progress bar is drawn, if that is a terminal; standard error by default.

    Raises:
        LaminaError: If the configuration does not fit the data, the folder or the machine, a loss
            is not finite (DivergedError), or no space is left (StorageFullError). The checkpoints
            written before stay whole. A run that fails before its training begins takes its folder
            back.
    """
    cpu = _stay_on_cpu(config)
    config = _with_precision(config, cpu=cpu)
    processes = PartialState(cpu=cpu)
    run = RunFolder(folder)
    with processes.main_process_first():  # the others find what it has fetched
        inputs = _inputs(config, cache)
    facts = run_facts(config, processes=processes.num_processes, data=_files(config), inputs=inputs)
    processes.wait_for_everyone()  # all have found what they read, before anything is written
    with _disk_told(run):
        if resume:
            run.check_same(facts)
        elif processes.is_main_process:
            run.begin(facts)
        if processes.is_main_process:
            run.remove_unfinished()
    bar = ProgressBar(console)
    with ExitStack() as undo:
        if not resume:
            undo.callback(_take_back, run, is_main=processes.is_main_process)
        processes.wait_for_everyone()
        checkpoint = run.last_checkpoint() if resume else None
        setting = Setting(run, cache, cpu, processes.num_processes, checkpoint is not None)
        if not isinstance(config, ClassificationConfig):  # what cannot be read shows before hours
            read_final(config.test, config.data.folder, seed=config.seed)
        set_seed(config.seed)
        trainer = _make_trainer(config, setting, [bar, *callbacks])
        trainer.add_callback(MetricsLog(run.metrics, more=trainer.statistics))
        undo.pop_all()  # from here on there is something to resume
    started = time.monotonic()
    try:
        with _disk_told(run):
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            return _finish(trainer, run, seconds=time.monotonic() - started)
    except StorageFullError:
        run.remove_unfinished()
        raise
    finally:
        bar.close()
        trainer.dropout.remove()


def _make_trainer(
    config: TrainConfig, setting: Setting, callbacks: list[TrainerCallback]
) -> RunTrainer:
    makers: dict[type, Callable[..., RunTrainer]] = {
        ContrastiveConfig: contrastive_trainer,
        DistilConfig: distil_trainer,
        ClassificationConfig: classification_trainer,
    }
    return makers[type(config)](config, setting, callbacks)


def _take_back(run: RunFolder, *, is_main: bool) -> None:
    """Let the main process remove what it has begun and cannot train.

    torchrun ends all processes once one has ended in an error. What others fail of the main one
    mostly fails of too, so they give it the time to get there.
    """
    if is_main:
        run.take_back()
        return
    until = time.monotonic() + _PATIENCE_SECONDS
    while (run.folder / RUN_FILE).exists() and time.monotonic() < until:
        time.sleep(0.05)


def _finish(trainer: RunTrainer, run: RunFolder, *, seconds: float) -> TrainResult:
    """Write the best weights and the result."""
    state = trainer.state
    best = state.best_global_step or state.global_step
    if best != state.global_step:
        trainer.load_weights(run.checkpoints / f"checkpoint-{best}")
    result = TrainResult(
        folder=str(run.folder),
        steps=state.global_step,
        best_step=best,
        score_name=trainer.args.metric_for_best_model,
        score=state.best_metric,
        seconds=round(seconds, 3),
    )
    if state.is_world_process_zero:
        with suppress(OSError):
            (run.checkpoints / "eval").rmdir()  # sentence-transformers makes it and leaves it empty
        trainer.save_weights(run.folder)
        write_json(run.result, {name: v for name, v in asdict(result).items() if name != "folder"})
    trainer.accelerator.wait_for_everyone()
    return result


def _files(config: TrainConfig) -> dict[str, Path]:
    if isinstance(config, ClassificationConfig):
        files = [config.data.train.file, config.data.dev.file]
    else:
        files = [*text_files(config.data), *dev_files(config.dev), *final_files(config.test)]
    return {str(file): config.data.folder / file for file in files}


def _inputs(config: TrainConfig, cache: Path) -> dict[str, dict[str, str]]:
    """Hash what is read beside the data, under names that do not tell where it lies."""
    inputs = {"base": hash_encoder(find_encoder(config.encoder.base, cache=cache))}
    if isinstance(config, DistilConfig):
        inputs["teacher"] = hash_encoder(find_encoder(config.distil.teacher, cache=cache))
    dropout = config.attention_dropout
    if isinstance(dropout, ScheduledBernoulli) and (table := dropout.table) is not None:
        try:
            inputs["table"] = {table.name: sha256_file(table)}
        except OSError as error:
            raise LaminaError(
                f"{table}: cannot be read ({error.strerror}); attention_dropout.table is "
                "metrics.jsonl of a run, or a file that write_rate_table wrote, looked for from "
                "the working directory"
            ) from error
    return inputs


def _stay_on_cpu(config: TrainConfig) -> bool:
    found = torch.cuda.is_available()
    if config.run.device == "cuda" and not found:
        raise DeviceError(
            "run.device is cuda, but torch finds no CUDA device here; use auto or cpu, or install "
            "a CUDA build of torch"
        )
    return config.run.device == "cpu" or not found


def _with_precision(config: TrainConfig, *, cpu: bool) -> TrainConfig:
    """Settle `auto`, so that the run's folder tells what it was trained in."""
    native = computes_in_bf16(cpu=cpu)
    if config.run.precision == "bf16" and not native:
        _logger.warning(
            "run.precision is bf16, which this %s only emulates, many times slower than fp32; "
            "use auto or fp32",
            "processor" if cpu else "GPU",
        )
    if config.run.precision != "auto":
        return config
    run = config.run.model_copy(update={"precision": "bf16" if native else "fp32"})
    return config.model_copy(update={"run": run})


def computes_in_bf16(*, cpu: bool) -> bool:
    """Whether the processor, or the GPU, has instructions for bfloat16."""
    if cpu:  # torch has no public name for these
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@contextmanager
def _disk_told(run: RunFolder) -> Iterator[None]:
    """Tell a full disk as such, whichever library met it; whole checkpoints stay."""
    advice = (
        f"the checkpoints in {CHECKPOINTS} that were whole before are untouched; make room and "
        "continue with --resume"
    )
    with disk_errors_told(run.folder, when_full=advice):
        try:
            yield
        except SafetensorError as error:
            if any(sign in str(error) for sign in _NO_SPACE):
                raise StorageFullError(
                    f"{run.folder}: no space left on the device; {advice}"
                ) from error
            raise
