"""Means over the forward passes since the last look, without a device's wait in each of them."""

from __future__ import annotations

from torch import Tensor


class RateMeter:
    """Sums a quantity and its count for each layer, on the device where they arise."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._sums: dict[str, list[tuple[Tensor | float, Tensor | float]]] = {}

    def add(self, name: str, layer: int, total: Tensor | float, count: Tensor | float) -> None:
        """Add `total`, a sum over `count` things, to what layer `layer` has under `name`."""
        sums = self._sums.setdefault(name, [(0.0, 0.0)] * self._layers)
        if isinstance(total, Tensor):
            total = total.detach()
        sums[layer] = (sums[layer][0] + total, sums[layer][1] + count)

    def take(self) -> dict[str, list[float]]:
        """Give the mean of each quantity for each layer, lowest first, and start anew."""
        taken, self._sums = self._sums, {}
        return {
            name: [float(total) / max(float(count), 1.0) for total, count in sums]
            for name, sums in taken.items()
        }
