"""Which rows each step of a run is trained on: a function of seed and step alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.base.sampler import DefaultBatchSampler


class RunBatches(DefaultBatchSampler):  # type: ignore[misc]  # sentence-transformers is untyped
    """All batches of a run in order, as if it were one epoch, so that resuming only skips some.

    Each pass over the data shuffles the rows of every source, cuts them into batches (the rows left
    over sit this pass out) and shuffles the batches: a batch is of one source, and sources come in
    proportion to their size. With several processes a batch is cut into one part a process, which
    follow each other; so the same rows meet in a step however many processes share it.
    """

    def __init__(
        self, sizes: Sequence[int], *, batch_size: int, processes: int, batches: int, seed: int
    ) -> None:
        """Prepare the batches.

        Args:
            sizes: Rows of each source; the sources are laid end to end.
            batch_size: Rows of a batch, over all processes; a multiple of their number.
            processes: How many share each batch.
            batches: Of the whole run.
            seed: Of the order.

        Raises:
            ValueError: If no source has a whole batch, or the processes do not divide it.
        """
        if batch_size % processes:
            raise ValueError(f"batch size {batch_size} cannot be shared by {processes} processes")
        if not (per_pass := batches_per_pass(sizes, batch_size)):
            raise ValueError(f"sources of {list(sizes)} rows have no batch of {batch_size}")
        super().__init__(range(sum(sizes)), batch_size=batch_size // processes, drop_last=True)
        self._sizes = tuple(sizes)
        self._whole = batch_size
        self._per_pass = per_pass
        self._batches = batches
        self._processes = processes
        self._seed = seed
        self._current: tuple[int, list[NDArray[np.int64]]] = (-1, [])

    def __len__(self) -> int:
        return self._batches * self._processes

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self._batches):
            yield from self.parts(number)

    def parts(self, number: int) -> list[list[int]]:
        """Give the rows of one batch of the run, a part for each process."""
        passed, place = divmod(number, self._per_pass)
        if self._current[0] != passed:
            self._current = (passed, self._pass(passed))
        return [part.tolist() for part in np.split(self._current[1][place], self._processes)]

    def _pass(self, number: int) -> list[NDArray[np.int64]]:
        generator = np.random.default_rng((self._seed, number))
        batches: list[NDArray[np.int64]] = []
        start = 0
        for size in self._sizes:
            rows = start + generator.permutation(size)
            whole = size // self._whole
            batches.extend(rows[: whole * self._whole].reshape(whole, self._whole))
            start += size
        return [batches[place] for place in generator.permutation(len(batches))]


def batches_per_pass(sizes: Sequence[int], batch_size: int) -> int:
    """Count the whole batches in one pass over all sources."""
    return sum(size // batch_size for size in sizes)
