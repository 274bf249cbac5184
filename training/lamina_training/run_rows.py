"""Which rows a run is trained on, in which order, and which it holds out for rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from lamina_training.attention_dropout import AttendOut
from lamina_training.data_rows import TrainingDataError
from lamina_training.run_batches import RunBatches, batches_per_pass
from lamina_training.train_config import TrainConfig
from lamina_training.training_arguments import plan_batches, steps_of


class HeldOut:
    """One batch of held-out rows for each step: a function of seed and step alone."""

    def __init__(self, sources: Sequence[Any], batches: RunBatches) -> None:
        self._rows: ConcatDataset[Any] = ConcatDataset(sources)
        self._batches = batches

    def rows(self, step: int, *, process: int) -> list[Any]:
        """Give one process's part of a step's batch."""
        return [self._rows[place] for place in self._batches.parts(step)[process]]


@dataclass(frozen=True)
class RunRows:
    """The rows of a run.

    Attributes:
        sources: Data sets that are trained on.
        batches: Of these, for the whole run.
        steps: Of the run.
        held_out: Rows of the same sources that are not trained on; None if nothing needs them.
    """

    sources: list[Any]
    batches: RunBatches
    steps: int
    held_out: HeldOut | None


def plan_rows(config: TrainConfig, sources: Sequence[Any], *, processes: int) -> RunRows:
    """Hold out what the policy's reward is measured on, and plan the batches of the rest.

    Args:
        config: Of the run; with any other objective nothing is held out.
        sources: Data sets to train on.
        processes: How many share each batch.

    Raises:
        TrainingDataError: If there are too few rows, or the processes do not divide a batch.
    """
    dropout = config.attention_dropout
    share = None
    if isinstance(dropout, AttendOut) and dropout.objective == "policy":
        share = dropout.held_out
    trained, held_out = list(sources), []
    if share is not None:
        parts = [_split(s, share, (config.seed, number)) for number, s in enumerate(sources)]
        trained, held_out = [list(subsets) for subsets in zip(*parts, strict=True)]
    sizes, left = [list(map(len, part)) for part in (held_out, trained)]
    batch_size = config.run.batch_size
    enough = batches_per_pass(sizes, batch_size) and batches_per_pass(left, batch_size)
    if share is not None and not enough:
        raise TrainingDataError(
            f"attention_dropout.held_out: {share} keeps {sum(sizes)} of {sum(sizes) + sum(left)} "
            "rows from training, for the reward of objective policy, and either part needs a batch "
            f"of {batch_size} (run.batch_size); change one of the two, give more rows, or take "
            "objective adversarial"
        )
    batches = plan_batches(config, left, processes=processes)
    steps = steps_of(config, left)
    held = None
    if share is not None:
        held = HeldOut(
            held_out,
            RunBatches(
                sizes,
                batch_size=batch_size,
                processes=processes,
                batches=steps,
                seed=config.seed,
            ),
        )
    return RunRows(trained, batches, steps, held)


def _split(source: Any, share: float, seed: tuple[int, int]) -> tuple[Subset[Any], Subset[Any]]:
    """Draw a share of the rows; gives the others and those, each in the source's order."""
    order = np.random.default_rng((*seed, 1)).permutation(len(source))  # no batch's: (seed, pass)
    drawn = round(share * len(source))
    rest, held_out = (sorted(part.tolist()) for part in (order[drawn:], order[:drawn]))
    return Subset(source, rest), Subset(source, held_out)
