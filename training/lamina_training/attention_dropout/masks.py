"""Which attention links are dropped, and attention without them.

The form is this project's, made to fit what is known of AttendOut (docs/attention_dropout.md):
the weights after the softmax are multiplied by 1 - D and each row is divided by its sum, which
equals -infinity on the dropped scores before the softmax but has a gradient in D.

Shapes: B texts, A heads, T tokens. Masks are drawn from torch's global generator, because that is
what gradient checkpointing, gradient caching and a resumed run put back.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0
"""A dropped link counts at most e^10 times the heaviest kept one in the gradient of its mask."""


def real_pairs(attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor:
    """Tell where query and key are both tokens of the text, not padding.

    Args:
        attention_mask: (B, 1, T, T), boolean with True for links that exist, or additive with
            the dtype's minimum for those that do not; None where nothing is padded.
        hidden_states: (B, T, H).

    Returns:
        (B, 1, T, T), boolean.
    """
    B, T, _ = hidden_states.shape
    if attention_mask is None:
        return torch.ones((B, 1, T, T), dtype=torch.bool, device=hidden_states.device)
    linked = attention_mask
    if linked.dtype != torch.bool:
        linked = linked > torch.finfo(linked.dtype).min / 2
    token = linked.any(dim=-2, keepdim=True)  # (B, 1, 1, T)
    return (linked & token.transpose(-1, -2)).expand(B, 1, T, T)


def draw_hard(rate: Tensor | float, real: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Drop each real link of each text and head with probability `rate`, independently.

    Args:
        rate: A probability, or one for each link: (B, A, T, T).
        real: (B, 1, T, T), boolean.

    Returns:
        D (B, A, T, T) in {0., 1.}, and a rank for `guard_rows` that picks a random key.
    """
    B, _, T, _ = real.shape
    uniform = torch.rand((B, heads, T, T), device=real.device)
    return ((uniform < rate) & real).to(torch.float32), -uniform


def draw_straight_through(logits: Tensor, real: Tensor, *, temperature: float) -> Tensor:
    """Drop each real link with probability sigmoid(logits); differentiable in the logits.

    Forward an exact Bernoulli sample, backward the gradient of the relaxed sample
    y = sigmoid((logits + logistic noise) / temperature).

    Args:
        logits: (B, A, T, T), float32.
        real: (B, 1, T, T), boolean.
        temperature: Positive; lower is closer to the hard sample, with steeper gradients.

    Returns:
        D (B, A, T, T), exactly 0. or 1., and 0. where `real` is False.

    Source: Maddison et al. 2017 (arXiv 1611.00712) for the relaxation, Bengio et al. 2013
    (arXiv 1308.3432) for the straight-through gradient.
    """
    noise = torch.logit(torch.rand_like(logits), eps=1e-7)
    noisy = logits + noise
    soft = torch.sigmoid(noisy / temperature)
    hard = (noisy > 0).to(soft.dtype)
    return (hard + (soft - soft.detach())) * real  # the bracket is exactly 0 forward


def reverse_gradient(values: Tensor) -> Tensor:
    """Return the values unchanged; their gradient comes back with the opposite sign.

    Source: Ganin and Lempitsky 2015 (arXiv 1409.7495).
    """
    return 2 * values.detach() - values


def guard_rows(dropped: Tensor, real: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """Give a row that lost all its real keys the one of lowest rank back.

    Args:
        dropped: (B, A, T, T), 1. where dropped.
        real: (B, 1, T, T), boolean.
        rank: (B, A, T, T); the drop probability, or anything random where that is constant.

    Returns:
        The guarded D, and (B, A, T, 1), True for rows that were empty.
    """
    emptied = ((dropped > 0.5) | ~real).all(dim=-1, keepdim=True) & real.any(-1, keepdim=True)
    spared = rank.masked_fill(~real, torch.inf).argmin(dim=-1, keepdim=True)  # (B, A, T, 1)
    is_spared = torch.zeros_like(dropped, dtype=torch.bool).scatter(-1, spared, emptied)
    return dropped.masked_fill(is_spared, 0.0), emptied


def masked_softmax(scores: Tensor, dropped: Tensor) -> Tensor:
    """Attention weights without the dropped links: softmax, times 1 - D, each row to sum 1.

    The softmax's own denominator cancels, so a row is exp(score - largest kept score), masked and
    divided by its sum: that is at least 1, where softmax first could leave 0/0 behind a very
    heavy dropped link.

    Args:
        scores: (B, A, T, T), float32, with the padding bias.
        dropped: (B, A, T, T), 1. where dropped; every row keeps a key.
    """
    kept = scores.detach().masked_fill(dropped.detach() > 0.5, torch.finfo(scores.dtype).min)
    shifted = scores - kept.amax(dim=-1, keepdim=True)
    weights = shifted.clamp(max=MAX_LOG_RATIO).exp() * (1 - dropped)
    return weights / weights.sum(dim=-1, keepdim=True)


def masked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropped: Tensor,
    *,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention without the dropped links.

    Args:
        query, key, value: (B, A, T, d).
        attention_mask: As for `real_pairs`.
        dropped: (B, A, T, T), 1. where dropped.

    Returns:
        (B, T, A, d), the layout that transformers expects, and the weights (B, A, T, T).
    """
    scores = (query @ key.transpose(-1, -2)).to(torch.float32) * scaling  # (B, A, T, T)
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = masked_softmax(scores, dropped)
    mixed = weights.to(value.dtype) @ value  # (B, A, T, d)
    return mixed.transpose(1, 2).contiguous(), weights
