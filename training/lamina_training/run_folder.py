"""The folder of a training run: what it was started with, what it logs, its checkpoints, its end.

RUN/
  run.json        configuration, hashes of all that is read, versions
  metrics.jsonl   one line a log or evaluation
  checkpoints/checkpoint-<step>/
  result.json     written last: best step, scores
  ...             the best weights: a directory that sentence-transformers (or, of a classifier,
                  transformers) loads and `lamina export` takes
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lamina_index.errors import FormatError, LaminaError, ResumeError
from lamina_index.manifest import sha256_file
from lamina_training.train_config import TrainConfig, TrainConfigError, parse_train_config

FORMAT_VERSION = 1
RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
RESULT_FILE = "result.json"
CHECKPOINTS = "checkpoints"
STATE_FILE = "trainer_state.json"
"""What transformers writes last into a checkpoint; without it a checkpoint is not whole."""

DATA_FOLDER = "config.data.folder"
INPUTS = "inputs"
_PACKAGES = ("torch", "transformers", "sentence-transformers", "accelerate", "datasets", "numpy")


class RunExistsError(LaminaError):
    """A folder is in the way of a new training run."""


class RunFolder:
    """One run on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.metrics = folder / METRICS_FILE
        self.result = folder / RESULT_FILE
        self._made = False

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Make the folder and write what the run is started with.

        Args:
            facts: From `run_facts`.

        Raises:
            RunExistsError: If something lies there.
        """
        if self.folder.exists() and any(self.folder.iterdir()):
            remedy = "name another one or remove it"
            if (self.folder / RUN_FILE).is_file():
                remedy = "continue it with --resume, name another one, or remove it"
            raise RunExistsError(f"{self.folder}: exists; {remedy}")
        self._made = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / RUN_FILE, facts)

    def take_back(self) -> None:
        """Undo `begin` where no training came of it, so that the run can be begun anew.

        Goes: what was written, the folders around it that are empty, and the run's own only if it
        was made for it. Whatever else lies there stays.
        """
        folders = [self.checkpoints, *([self.folder] if self._made else [])]
        with suppress(OSError):  # what made the training fail is to be told, not this
            (self.folder / RUN_FILE).unlink()
        for folder in folders:
            with suppress(OSError):  # not there, or not empty
                folder.rmdir()

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Make sure that a resumed run is the one that was begun.

        Raises:
            ResumeError: If no run was begun there, or one of something else.
            FormatError: If what was written about it cannot be read.
        """
        path = self.folder / RUN_FILE
        if not path.is_file():
            raise ResumeError(f"{self.folder}: no run to resume; start it without --resume")
        begun = read_json(path)
        for part in ("config", "data", INPUTS, "processes"):
            if part == INPUTS and part not in begun:
                continue  # begun before it was written down
            then = _with_new_settings(begun.get(part)) if part == "config" else begun.get(part)
            before, now = _flat(then, part), _flat(facts[part], part)
            changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
            for key in changed:
                if key == DATA_FOLDER:  # the files may lie elsewhere; their hashes are compared
                    continue
                raise ResumeError(
                    f"{self.folder}: was begun with {key} = {before.get(key)!r}, now it is "
                    f"{now.get(key)!r}; resume with what it was begun with, or start a new run"
                )

    def last_checkpoint(self) -> Path | None:
        """Find the newest checkpoint that is whole; what a killed run left half-written is not."""
        found = [
            (int(path.parent.name.rpartition("-")[2]), path.parent)
            for path in self.checkpoints.glob(f"checkpoint-*/{STATE_FILE}")
            if _is_json(path)
        ]
        return max(found)[1] if found else None

    def remove_unfinished(self) -> None:
        """Remove checkpoints that are not whole."""
        for folder in self.checkpoints.glob("checkpoint-*"):
            if not _is_json(folder / STATE_FILE):
                shutil.rmtree(folder, ignore_errors=True)


def run_facts(
    config: TrainConfig,
    *,
    processes: int,
    data: Mapping[str, Path],
    inputs: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Say what a run is started with.

    Args:
        config: The whole configuration.
        processes: How many share each batch.
        data: Each data file that is read, by its name in the configuration.
        inputs: What else is read, such as the base: hex sha256 by file name, without its place.

    Raises:
        LaminaError: If a data file cannot be read.
    """
    hashes = {}
    for name, path in data.items():
        try:
            hashes[name] = sha256_file(path)
        except OSError as error:
            raise LaminaError(
                f"{path}: cannot be read ({error.strerror}); the files of a training "
                "configuration are looked for in data.folder, which --data replaces"
            ) from error
    return {
        "format_version": FORMAT_VERSION,
        "config": config.model_dump(mode="json"),
        "data": hashes,
        INPUTS: inputs,
        "processes": processes,
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _PACKAGES},
        },
    }


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a run.

    Raises:
        FormatError: If it is none.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read ({error}); start a new run") from error
    if not isinstance(content, dict):
        raise FormatError(f"{path}: expected a JSON object; start a new run")
    return content


def _with_new_settings(config: Any) -> Any:
    """Add to a configuration, as an older Lamina wrote it, the settings that there are since."""
    try:
        return parse_train_config(config, origin=RUN_FILE).model_dump(mode="json")
    except TrainConfigError:
        return config  # to be told what differs


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return True


def _flat(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{name}.{key}").items()}
