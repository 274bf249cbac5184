"""What `metrics.jsonl` tells of a run: curves, rates and how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

POINTS = 200
"""Most points of a curve; longer ones are drawn as means of neighbours."""

_DEV = "dev_"


@dataclass(frozen=True)
class Series:
    """Values over the steps of a run.

    Attributes:
        steps: (P,), ascending.
        values: (P,), or (P, L) of each layer, lowest first.
    """

    steps: NDArray[np.float64]
    values: NDArray[np.float64]

    def thinned(self, points: int = POINTS) -> Series:
        """Take means of so many neighbours that at most `points` are left."""
        group = -(-len(self.steps) // points)
        starts = np.arange(0, len(self.steps), group)
        counts = np.diff([*starts, len(self.steps)])
        sums = np.add.reduceat(self.values, starts, axis=0)
        return Series(np.add.reduceat(self.steps, starts) / counts, (sums.T / counts).T)


@dataclass(frozen=True)
class History:
    """A run's log.

    Attributes:
        loss: The task's loss, in nats; None before the first line.
        scores: Each dev measure, by its name; step 0 is before any training.
        by_layer: Each quantity of attention dropout that is logged for every layer.
        last_step: The last one that is logged.
        seconds: To the last line, evaluations included; what a break lost is not.
        steps_per_second: Without evaluations; None before the first loss.
    """

    loss: Series | None
    scores: Mapping[str, Series]
    by_layer: Mapping[str, Series]
    last_step: int
    seconds: float
    steps_per_second: float | None


def read_history(lines: Sequence[Mapping[str, Any]]) -> History:
    """Sort the lines of a log.

    Args:
        lines: Of `read_metrics`, in their order.
    """
    training = [line for line in lines if "loss" in line]
    scores: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith(_DEV):
                scores.setdefault(name.removeprefix(_DEV), []).append((line["step"], value))
    layers = {name for line in training for name, value in line.items() if isinstance(value, list)}
    return History(
        loss=_series([(line["step"], line["loss"]) for line in training]),
        scores={name: found for name, points in scores.items() if (found := _series(points))},
        by_layer={
            name: found
            for name in sorted(layers)
            if (found := _series([(line["step"], line[name]) for line in training if name in line]))
        },
        last_step=max((line["step"] for line in lines), default=0),
        seconds=lines[-1]["seconds"] if lines else 0.0,
        steps_per_second=_steps_per_second(lines),
    )


def _series(points: Sequence[tuple[int, Any]]) -> Series | None:
    if not points:
        return None
    steps, values = zip(*points, strict=True)
    return Series(np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


def _steps_per_second(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """Divide the steps by the seconds between a line and the loss that is logged after it.

    What passes before the line of an evaluation is its own time, and is left out.
    """
    steps, seconds = 0, 0.0
    before: Mapping[str, Any] = {"step": 0, "seconds": 0.0}
    for line in lines:
        if "loss" in line:
            steps += line["step"] - before["step"]
            seconds += line["seconds"] - before["seconds"]
        before = line
    return steps / seconds if seconds else None
