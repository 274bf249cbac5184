"""`metrics.jsonl`: one line for each log and each evaluation of a run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

TRAINING_LOSS = "training_loss"
"""Measured in an evaluation, as `dev_loss` is, on the rows trained on."""
_TIMINGS = ("_runtime", "_per_second", "_preparation_time")


class MetricsLog(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Appends lines while training; a resumed run first drops those that it will write again.

    A line has `step`, `seconds` of training so far, and `loss`, `learning_rate` and
    `gradient_norm`, or the scores of an evaluation under `dev_...` and its `training_loss` if
    there is one. A resumed run counts on from the seconds of the last line that it keeps.
    """

    def __init__(self, path: Path, more: Callable[[], Mapping[str, Any]] = dict) -> None:
        """Prepare the log.

        Args:
            path: The file.
            more: Gives what is to be added to a line with a loss, such as drop rates.
        """
        self._path = path
        self._more = more
        self._start = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._start = time.monotonic()
        if state.is_world_process_zero:
            kept = [line for line in read_metrics(self._path) if line["step"] <= state.global_step]
            if state.global_step == 0:
                kept = []  # not resumed: the evaluation before the first step comes again
            if kept:
                self._start -= kept[-1]["seconds"]
            text = "".join(json.dumps(line) + "\n" for line in kept)
            self._path.write_text(text, encoding="utf-8")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or "train_runtime" in logs:
            return
        line: dict[str, Any] = {
            "step": state.global_step,
            "seconds": round(time.monotonic() - self._start, 3),
        }
        if "loss" in logs:
            line |= {name: logs[name] for name in ("loss", "learning_rate")}
            line["gradient_norm"] = logs.get("grad_norm")
            line |= self._more()
        else:
            line |= {
                "dev_" + name.removeprefix("eval_"): value
                for name, value in logs.items()
                if name.startswith("eval_") and not name.endswith(_TIMINGS)
            }
            if TRAINING_LOSS in logs:
                line[TRAINING_LOSS] = logs[TRAINING_LOSS]
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a log; a last line that was cut off by a kill is left out."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines
