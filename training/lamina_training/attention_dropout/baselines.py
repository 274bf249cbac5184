"""The baselines that drop whole units, by hooks alone: layers, their self-attention, heads.

A skipped unit is computed all the same and then replaced, so that every weight takes part in every
step: distributed training needs no search for unused ones. It saves no time. What is drawn for a
pass is drawn several times for a batch that goes through in several (`by_length`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lamina_training.attention_dropout.encoder_parts import EncoderParts
from lamina_training.attention_dropout.meter import RateMeter


@dataclass
class Switch:
    """On while a forward pass of the encoder is one of training."""

    on: bool = False


def skip_layers(
    parts: EncoderParts, rate: float, switch: Switch, meter: RateMeter
) -> list[RemovableHandle]:
    """Pass a layer's input on in its place, with probability `rate` for each layer and pass.

    Source: Fan et al. 2020, arXiv 1909.11556.
    """

    def hook_of(number: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if not switch.on:
                return None
            return torch.where(_draw_skip(output, rate, number, meter), args[0], output)

        return hook

    # First of the hooks, so that whoever records hidden states records what was passed on.
    return [
        layer.register_forward_hook(hook_of(number), prepend=True)
        for number, layer in enumerate(parts.layers)
    ]


def skip_self_attention(
    parts: EncoderParts, rate: float, switch: Switch, meter: RateMeter
) -> list[RemovableHandle]:
    """Add nothing to the residual, with probability `rate` for each layer and pass.

    The layer norm after the sum and the feed-forward part stay. The form follows the name that
    the AttendOut paper's summary gives the baseline; its definition there is not known.
    """

    def hook_of(number: int) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor | None]:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if not switch.on:
                return None
            skipped = _draw_skip(output, rate, number, meter)
            return output.masked_fill(skipped, 0.0)

        return hook

    return [
        projection.register_forward_hook(hook_of(number), prepend=True)
        for number, projection in enumerate(parts.projections)
    ]


def _draw_skip(output: Tensor, rate: float, layer: int, meter: RateMeter) -> Tensor:
    skipped = torch.rand((), device=output.device) < rate
    meter.add("dropped", layer, skipped, 1.0)
    return skipped


def drop_heads(
    parts: EncoderParts, rate: float, switch: Switch, meter: RateMeter
) -> list[RemovableHandle]:
    """Zero a head's output with probability `rate` for each text, layer and head.

    The heads that stay are scaled by A / (their number), so that the sum keeps its size; one
    always stays.

    Source: Zhou et al. 2020, arXiv 2004.13342; not confirmed as a baseline of AttendOut.
    """

    def hook_of(number: int) -> Callable[[nn.Module, tuple[Any, ...]], tuple[Tensor] | None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
            if not switch.on:
                return None
            heads = args[0].unflatten(-1, (parts.heads, -1))  # (B, T, A, d)
            uniform = torch.rand((len(heads), 1, parts.heads, 1), device=heads.device)
            luckiest = uniform == uniform.amax(dim=2, keepdim=True)
            kept = (uniform >= rate) | luckiest  # (B, 1, A, 1)
            meter.add("dropped", number, (~kept).sum(), kept.numel())
            scale = kept * (parts.heads / kept.sum(dim=2, keepdim=True))
            return ((heads * scale.to(heads.dtype)).flatten(-2),)

        return hook

    return [
        projection.register_forward_pre_hook(hook_of(number))
        for number, projection in enumerate(parts.projections)
    ]
