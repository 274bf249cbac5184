"""G-Net: the small network that says which attention links to drop."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class MaskGenerator(nn.Module):
    """Drop logits for every link of one layer, by attention of its own over the layer's input.

    Z = (X W_q)(X W_k)^T / sqrt(d_g) + b, each head on its own, with the gradient to X stopped, so
    that it does not bend what the encoder says. The projections start near 0 and b at
    logit(initial): a fresh generator is close to plain dropout at that rate.

    That G-Net uses self-attention is reported of AttendOut; this form of it is ours, after the
    mask generator of a later method by the same first author (docs/attention_dropout.md).
    """

    def __init__(
        self, hidden_size: int, heads: int, *, head_size: int, initial: float, cap: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.head_size = head_size
        self.highest = math.log(cap / (1 - cap))
        self.query = nn.Linear(hidden_size, heads * head_size, bias=False)
        self.key = nn.Linear(hidden_size, heads * head_size, bias=False)
        self.bias = nn.Parameter(torch.tensor(math.log(initial / (1 - initial))))
        for projection in (self.query, self.key):
            nn.init.normal_(projection.weight, std=0.02)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Give logit(P) = min(Z, logit(cap)).

        Args:
            hidden_states: (B, T, H), what the layer gets.

        Returns:
            (B, A, T, T), float32.
        """
        stopped = hidden_states.detach().to(self.query.weight.dtype)
        shape = (*stopped.shape[:2], self.heads, self.head_size)
        query = self.query(stopped).view(shape).transpose(1, 2)  # (B, A, T, d_g)
        key = self.key(stopped).view(shape).transpose(1, 2)
        scores = (query @ key.transpose(-1, -2)).to(torch.float32)  # (B, A, T, T)
        return _cap(scores / math.sqrt(self.head_size) + self.bias, self.highest)


def _cap(logits: Tensor, highest: float) -> Tensor:
    """Give min(logits, highest), with a gradient above the cap if a step would lower the logit.

    A plain minimum has none there, so links that reached the cap could never leave it, whatever
    the budget.
    """
    excess = (logits - highest).clamp(min=0).detach()
    capped = logits - excess
    if capped.requires_grad:
        capped.register_hook(  # type: ignore[no-untyped-call]  # torch leaves it untyped
            lambda grad: torch.where(excess > 0, grad.clamp(min=0), grad)
        )
    return capped
