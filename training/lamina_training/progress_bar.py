"""The bar of `lamina train`: step, loss, rate, time left; nothing where stderr is no terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from transformers import TrainerCallback

_SPEED_SECONDS = 60.0
"""Long enough to see past an evaluation."""


class _StepsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.2f} steps/s")


class ProgressBar(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Shows a bar from the first step to the last; resumed steps count as done."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: Progress | None = None
        self._task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not (self._console.is_terminal and state.is_world_process_zero):
            return
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            _StepsPerSecond(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            speed_estimate_period=_SPEED_SECONDS,
        )
        self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step)
        self._bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        if self._bar is not None and "loss" in logs:
            self._bar.update(self._task, description=f"loss {logs['loss']:.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar off the terminal; also needed after a run that failed."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
