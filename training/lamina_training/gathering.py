"""Rows of all processes in one tensor, with gradients that come back to whom they belong."""

from __future__ import annotations

from sentence_transformers.util import all_gather_with_grad
from torch import Tensor


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate every process's (B, ...) rows in the order of the processes.

    The gradient of each row is the sum over the processes. torch 2.13 sends it through gloo as raw
    memory, whatever the strides: a gradient that comes back transposed would be dealt to the wrong
    rows, its sum still right. So it is laid out in order first.
    """
    gathered: Tensor = all_gather_with_grad(rows)
    if gathered.requires_grad:
        gathered.register_hook(lambda gradient: gradient.contiguous())  # type: ignore[no-untyped-call]  # torch's own
    return gathered
