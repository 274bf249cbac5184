"""What the mask generators are trained for, from the draws of one training step.

Both objectives are this project's: how AttendOut trains its G-Net is not known for certain
(docs/attention_dropout.md). Minimising the training loss cannot be it, since dropping nothing
would be best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Draw:
    """One layer's masks in one forward pass.

    Attributes:
        logits: (B, A, T, T), logit of the drop probability, with the generator's gradient.
        real: (B, 1, T, T), boolean.
        dropped: (B, A, T, T), 1. where dropped, before the row guard.
    """

    logits: Tensor
    real: Tensor
    dropped: Tensor

    def links(self) -> Tensor:
        """Count the real links, over all heads; a scalar."""
        return self.real.sum() * self.logits.shape[1]

    def probability(self) -> Tensor:
        """Drop probability (B, A, T, T): 0 where query or key is padding."""
        return torch.sigmoid(self.logits) * self.real


Draws: TypeAlias = Mapping[int, Draw]
"""One forward pass: a draw for each layer, by its number."""


def budget_penalty(passes: Sequence[Draws], target: float | Sequence[float]) -> Tensor:
    """Squared distance of the mean drop probability from its budget.

    With one target, of the mean over all layers, so that these may differ; with one for each
    layer, the mean over the layers of each one's own squared distance. Means are over real links.

    Args:
        passes: At least one forward pass with a draw for each layer.
        target: p*, or one for each layer.
    """
    layers = sorted(passes[0])
    totals = [torch.stack([p[n].probability().sum() for p in passes]).sum() for n in layers]
    links = [torch.stack([p[n].links() for p in passes]).sum().clamp(min=1) for n in layers]
    if isinstance(target, int | float):
        return (torch.stack(totals).sum() / torch.stack(links).sum() - target) ** 2
    means = torch.stack(totals) / torch.stack(links)  # (L,)
    return ((means - means.new_tensor(list(target))) ** 2).mean()


def policy_loss(passes: Sequence[Draws], advantage: float, *, entropy_weight: float) -> Tensor:
    """REINFORCE for the masks: -(advantage * log prob(D) + weight * entropy) per real link.

    Source: Williams 1992, with a baseline already taken off the reward.
    """
    log_probability, entropy, links = [], [], []
    for draw in (draw for one_pass in passes for draw in one_pass.values()):
        z, real = draw.logits, draw.real
        crossed = functional.binary_cross_entropy_with_logits(
            z, draw.dropped.detach(), reduction="none"
        )
        log_probability.append(-(crossed * real).sum())
        entropy.append(((functional.softplus(z) - z * torch.sigmoid(z)) * real).sum())
        links.append(draw.links())
    gain = advantage * torch.stack(log_probability).sum()
    gain = gain + entropy_weight * torch.stack(entropy).sum()
    return -gain / torch.stack(links).sum().clamp(min=1)
