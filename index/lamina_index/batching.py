"""Many inputs of a graph -> padded batches of like length, run on some threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from lamina_index.onnx_session import CPU_PROVIDER, CUDA_PROVIDER

BATCH_TOKENS = {CPU_PROVIDER: 256, CUDA_PROVIDER: 8192}
"""Tokens of one call, padding included, past which more bring nothing: docs/int8.md."""


def length_batches(counts: NDArray[np.int32], *, batch_tokens: int) -> list[list[int]]:
    """Group rows for a graph, longest first, so that little of a batch is padding.

    Args:
        counts: (N,) tokens of each row.
        batch_tokens: Of a batch, padding included; a longer row is a batch of its own.

    Returns:
        Batches of positions in `counts`; none is empty.
    """
    batches: list[list[int]] = []
    room = 0
    for row in np.argsort(-counts, kind="stable").tolist():
        if room == 0:
            batches.append([])
            room = max(1, batch_tokens // int(counts[row]))
        batches[-1].append(row)
        room -= 1
    return batches


def padded(rows: Sequence[Sequence[int]], width: int) -> NDArray[np.int64]:
    """Lay B rows of at most `width` numbers out as (B, width), zeros after each."""
    laid = np.zeros((len(rows), width), dtype=np.int64)
    for place, row in enumerate(rows):
        laid[place, : len(row)] = row
    return laid


def run_batches(
    run: Callable[[list[int]], None],
    batches: Sequence[list[int]],
    pool: ThreadPoolExecutor | None,
    threads: int,
) -> None:
    """Run all batches: one right here, many dealt out to the threads of a pool, if there is one."""

    def run_share(share: Sequence[list[int]]) -> None:
        for rows in share:
            run(rows)

    if pool is None or len(batches) == 1:
        run_share(batches)
        return
    shares = [batches[start::threads] for start in range(threads)]
    for future in [pool.submit(run_share, share) for share in shares]:
        future.result()
