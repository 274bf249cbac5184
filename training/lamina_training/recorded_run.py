"""A run on disk, read again: what it was begun with, its weights, its dev data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lamina_index.errors import FormatError, LaminaError
from lamina_index.manifest import sha256_file
from lamina_training.dev_scores import DevTasks, dev_files, read_dev
from lamina_training.final_scores import FinalTasks, final_files, read_final
from lamina_training.run_folder import CHECKPOINTS, RUN_FILE, STATE_FILE, RunFolder, read_json
from lamina_training.train_config import (
    ClassificationConfig,
    ContrastiveConfig,
    DistilConfig,
    TrainConfig,
    parse_train_config,
)


@dataclass(frozen=True)
class RecordedRun:
    """What a run's folder tells.

    Attributes:
        run: The folder.
        facts: Of `run.json`: hashes of the data, versions, number of processes.
        config: What it was begun with.
        result: Of `result.json`; None if it was broken off, or still goes on.
    """

    run: RunFolder
    facts: Mapping[str, Any]
    config: TrainConfig
    result: Mapping[str, Any] | None

    @property
    def score_name(self) -> str | None:
        """The dev score that chooses the best checkpoint, higher is better."""
        if isinstance(self.config, ClassificationConfig):
            return self.config.score
        return self.config.dev.deciding

    def best_weights(self) -> Path | None:
        """Find the best weights so far: the run's own, or of a run without an end a checkpoint's.

        Returns:
            A folder; None before the first checkpoint.
        """
        if self.result is not None:
            return self.run.folder
        last = self.run.last_checkpoint()
        if last is None:
            return None
        step = read_json(last / STATE_FILE).get("best_global_step")
        best = self.run.folder / CHECKPOINTS / f"checkpoint-{step}"
        return best if (best / STATE_FILE).is_file() else last

    def dev_tasks(self, config: ContrastiveConfig | DistilConfig, data: Path | None) -> DevTasks:
        """Read the dev data, if they are those that the run was measured on.

        Args:
            config: The run's own.
            data: Their folder, if it is another one now.

        Raises:
            LaminaError: If a file cannot be read, or is another one.
        """
        folder = data or config.data.folder
        self._check_same(dev_files(config.dev), folder)
        return read_dev(config.dev, folder, seed=config.seed)

    def final_tasks(
        self, config: ContrastiveConfig | DistilConfig, data: Path | None
    ) -> FinalTasks:
        """Read the test sets, if they are those that the run was begun with; as `dev_tasks`."""
        folder = data or config.data.folder
        self._check_same(final_files(config.test), folder)
        return read_final(config.test, folder, seed=config.seed)

    def _check_same(self, files: Iterable[Path], folder: Path) -> None:
        for file in files:
            try:
                found = sha256_file(folder / file)
            except OSError as error:
                raise LaminaError(
                    f"{folder / file}: data that the run is measured on cannot be read "
                    f"({error.strerror}); name their folder with --data"
                ) from error
            if found != self.facts["data"].get(str(file)):
                raise LaminaError(
                    f"{folder / file}: not the file that the run was measured on (sha256 "
                    f"{found[:12]}); name the folder of that one with --data"
                )


def read_run(folder: Path) -> RecordedRun:
    """Read what a run was begun with, and how it ended.

    Raises:
        FormatError: If the folder is no run, or its files cannot be read.
        TrainConfigError: If another version of Lamina wrote its configuration.
    """
    path = folder / RUN_FILE
    if not path.is_file():
        raise FormatError(f"{path}: no such file; name a folder that `lamina train` made")
    facts = read_json(path)
    missing = [name for name in ("config", "data", "processes", "versions") if name not in facts]
    if missing:
        raise FormatError(f"{path}: has no {', '.join(missing)}; not what `lamina train` writes")
    run = RunFolder(folder)
    return RecordedRun(
        run=run,
        facts=facts,
        config=parse_train_config(facts["config"], origin=str(path)),
        result=read_json(run.result) if run.result.is_file() else None,
    )
