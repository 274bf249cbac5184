"""Does the runs of a study that have no result yet; may be stopped and started at any time."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.metrics_log import TRAINING_LOSS, read_metrics
from lamina_training.run_folder import INPUTS, METRICS_FILE, RUN_FILE, read_json
from lamina_training.starting_encoder import starting_encoder
from lamina_training.study.definition import Cell, Study, cells_of
from lamina_training.study.measures import StudyTasks, measure_encoder, read_tasks
from lamina_training.study.results import append_result, is_of, read_results
from lamina_training.train import train
from lamina_training.train_config import ClassificationConfig

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a study's runs read and write.

    Attributes:
        results: Lines of the runs that have ended.
        work: Folder for runs in progress; emptied as they end.
        cache: Folder that keeps fetched weights and teachers' embeddings.
    """

    results: Path
    work: Path
    cache: Path


def run_study(
    study: Study,
    place: Place,
    *,
    origin: str,
    data: Path | None = None,
    arms: Sequence[str] = (),
    most: int | None = None,
    tell: Tell = print,
) -> int:
    """Do the missing runs, in the order of `cells_of`.

    Several runners may work on one study, each on runs that no other has begun. A run that was
    broken off goes on from its last checkpoint.

    Args:
        study: Which.
        place: Where.
        origin: Begins the message of an error.
        data: Takes the place of the recipe's `data.folder`, not of one that an arm has for itself.
        arms: Only these; all if empty.
        most: So many runs at most.
        tell: Is given a line for each run.

    Returns:
        Runs done.

    Raises:
        LaminaError: If data or base cannot be read, or training fails; runs that ended stay.
    """
    cells = [
        cell for cell in cells_of(study, origin=origin, data=data) if not arms or cell.arm in arms
    ]
    tasks: StudyTasks | None = None
    done = 0
    for place_in_line, cell in enumerate(cells, start=1):
        if done == most:
            break
        with _claimed(place, cell) as ours:
            if not ours or is_of(cell, read_results(place.results).get(cell.fingerprint)):
                continue
            if tasks is None and not isinstance(cell.config, ClassificationConfig):
                tasks = read_tasks(study.measure, data or _data_folder(study))  # once for all
            started = time.monotonic()
            line = _run(cell, study, tasks, place)
            append_result(place.results, line)
            shutil.rmtree(_folder(place, cell), ignore_errors=True)
            done += 1
            minutes = (time.monotonic() - started) / 60
            tell(f"{cell.name}: done in {minutes:.1f} min ({place_in_line} of {len(cells)})")
    return done


def _data_folder(study: Study) -> Path:
    """Where the recipe's data lie, and so what is measured; an arm may train on data elsewhere."""
    return Path(study.recipe.get("data", {}).get("folder", ""))


def _run(cell: Cell, study: Study, tasks: StudyTasks | None, place: Place) -> dict[str, Any]:
    folder = _folder(place, cell)
    line: dict[str, Any] = {
        "arm": cell.arm,
        "seed": cell.seed,
        "fingerprint": cell.fingerprint,
        "config": cell.settings,
        "machine": _machine(),
        "commit": _commit(),
    }
    cpu = time.process_time()
    log: list[dict[str, Any]] = []
    if cell.trains:
        begun = (folder / RUN_FILE).is_file()
        ended = train(cell.config, folder, cache=place.cache, resume=begun)
        log = read_metrics(folder / METRICS_FILE)
        begun_with = read_json(folder / RUN_FILE)
        line |= {
            **{part: begun_with[part] for part in ("data", INPUTS) if part in begun_with},
            "steps": ended.steps,
            "best_step": ended.best_step,
            "resumed": begun,
            "seconds": ended.seconds,
            "train_cpu_seconds": round(time.process_time() - cpu, 1),
        }
    line["dev"] = _dev_curve(log, _deciding(cell))
    line["drop_rates"] = _by_layer(log, "dropped")
    if spread := _by_layer(log, "drop_spread"):
        line["drop_spread"] = spread
    if tasks is None:
        line["exits"] = {"kept": _of_classifier(log, line["dev"])}
    else:
        model = _encoder(cell, folder, place.cache)
        line["exits"] = measure_encoder(model, tasks, cell.exits, study.measure)
    line["cpu_seconds"] = round(time.process_time() - cpu, 1)
    return line


def _encoder(cell: Cell, folder: Path, cache: Path) -> Any:
    if isinstance(cell.config, ClassificationConfig):
        raise TypeError("a classifier is no encoder")
    if cell.trains:
        return load_encoder(find_encoder(str(folder), cache=cache))
    return starting_encoder(cell.config, cache=cache)


def _deciding(cell: Cell) -> str | None:
    config = cell.config
    return config.score if isinstance(config, ClassificationConfig) else config.dev.deciding


def _dev_curve(log: Sequence[Mapping[str, Any]], name: str | None) -> list[tuple[int, float]]:
    """Steps and deciding dev scores, the first before any training."""
    key = f"dev_{name}"
    return [(line["step"], round(line[key], 6)) for line in log if key in line]


def _of_classifier(
    log: Sequence[Mapping[str, Any]], dev: Sequence[tuple[int, float]]
) -> dict[str, float]:
    """Give the last and the best of a classifier's dev scores, and its losses at the last step."""
    scores = [score for _, score in dev]
    last = next(line for line in reversed(log) if "dev_loss" in line)
    numbers = {
        "dev_last": scores[-1],
        "dev_best": max(scores),
        "dev_loss": last["dev_loss"],
    }
    if TRAINING_LOSS in last:
        numbers["training_loss"] = last[TRAINING_LOSS]
        numbers["loss_gap"] = last["dev_loss"] - last[TRAINING_LOSS]
    return {measure: round(value, 6) for measure, value in numbers.items()}


def _by_layer(log: Sequence[Mapping[str, Any]], measure: str) -> list[tuple[int, list[float]]]:
    """Steps and a measure of attention dropout at each, lowest layer first."""
    found = [(line["step"], line[measure]) for line in log if line.get(measure)]
    return [(step, [round(value, 4) for value in layers]) for step, layers in found]


def _folder(place: Place, cell: Cell) -> Path:
    return place.work / f"{cell.name}-{cell.fingerprint[:8]}"


@contextmanager
def _claimed(place: Place, cell: Cell) -> Iterator[bool]:
    """Hold a run for this process; false if another one has it."""
    place.work.mkdir(parents=True, exist_ok=True)
    path = place.work / f"{cell.name}-{cell.fingerprint[:8]}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = True
    except BlockingIOError:
        ours = False
    try:
        yield ours
    finally:
        os.close(descriptor)


def _machine() -> dict[str, Any]:
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of this code and whether it was changed since; None outside a repository."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "..", ":(top)index")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
