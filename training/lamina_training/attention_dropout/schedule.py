"""Drop rates that depend on layer and progress only: a ramp, or a recorded run replayed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lamina_training.attention_dropout.config import ScheduledBernoulli
from lamina_training.attention_dropout.errors import AttentionDropoutError

_ROUNDING = 1e-6
"""A step's share of the training, times the steps, may lie a little below the step's number."""


class RateSchedule(Protocol):
    """One drop rate for each layer, lowest first, at a progress from 0 (start) to 1 (end)."""

    def rates(self, progress: float) -> list[float]: ...


@dataclass(frozen=True)
class Ramp:
    """p_l(t) = start + (end_l - start) * min(1, t / ramp), a form of this project."""

    start: float
    ends: tuple[float, ...]
    ramp: float

    def rates(self, progress: float) -> list[float]:
        moved = 1.0 if progress >= self.ramp else progress / self.ramp
        return [(1 - moved) * self.start + moved * end for end in self.ends]


@dataclass(frozen=True)
class Replay:
    """Each row of a table for its share of the training, one after the other.

    With as many rows as steps, row i is exactly what step i gets; a row that a run noted for
    several steps is in force for those.
    """

    table: tuple[tuple[float, ...], ...]

    def rates(self, progress: float) -> list[float]:
        place = math.floor(progress * len(self.table) + _ROUNDING)
        return list(self.table[min(place, len(self.table) - 1)])


def make_schedule(config: ScheduledBernoulli, layers: int) -> RateSchedule:
    """Build the schedule of a configuration for an encoder of so many layers.

    Raises:
        AttentionDropoutError: If the table is not readable, or is for another number of layers.
    """
    if config.table is not None:
        return Replay(read_rate_table(config.table, layers=layers))
    span = max(layers - 1, 1)
    step = (config.high_layer - config.low_layer) / span
    return Ramp(
        config.start, tuple(config.low_layer + n * step for n in range(layers)), config.ramp
    )


def read_rate_table(path: Path, *, layers: int) -> tuple[tuple[float, ...], ...]:
    """Read a JSON list of rows, one a step, of drop rates, one a layer, lowest layer first.

    Of a run's `metrics.jsonl`, the drop probabilities that it noted.

    Raises:
        AttentionDropoutError: If there is no such file, or it is anything else than that.
    """
    try:
        text = path.read_text(encoding="utf-8")
        rows = _noted(text) if path.suffix == ".jsonl" else json.loads(text)
    except FileNotFoundError as error:
        raise AttentionDropoutError(
            f"{path}: no such file; give metrics.jsonl of a run, or write one with write_rate_table"
        ) from error
    except (OSError, ValueError) as error:
        raise AttentionDropoutError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(rows, list) or not rows:
        raise AttentionDropoutError(
            f"{path}: expected a list of rows of drop rates, one a step, or metrics.jsonl of a run "
            "that had them"
        )
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != layers:
            found = f"{len(row)} values" if isinstance(row, list) else repr(row)
            raise AttentionDropoutError(
                f"{path}: row {number} has {found}, expected {layers}, one a layer; "
                "a table fits encoders of the depth it was recorded on"
            )
        for rate in row:
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise AttentionDropoutError(
                    f"{path}: row {number} has {rate!r}, expected a probability from 0 to 1"
                )
    return tuple(tuple(float(rate) for rate in row) for row in rows)


def _noted(metrics: str) -> list[Any]:
    lines = [json.loads(line) for line in metrics.splitlines() if line.strip()]
    rates = [line.get("drop_probability") for line in lines if isinstance(line, dict)]
    return [each for each in rates if each is not None]


def write_rate_table(path: Path, rows: Sequence[Sequence[float]]) -> None:
    """Write the rates that a run used, one row each time it noted them, to replay them later."""
    path.write_text(json.dumps([list(row) for row in rows]) + "\n", encoding="utf-8")
