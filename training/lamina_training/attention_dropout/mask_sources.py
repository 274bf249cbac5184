"""Where the masks on attention links come from: a schedule of rates, or generators."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from lamina_training.attention_dropout.config import AttendOut
from lamina_training.attention_dropout.encoder_parts import EncoderParts
from lamina_training.attention_dropout.errors import AttentionDropoutError
from lamina_training.attention_dropout.generator import MaskGenerator
from lamina_training.attention_dropout.masks import (
    draw_hard,
    draw_straight_through,
    reverse_gradient,
)
from lamina_training.attention_dropout.meter import RateMeter
from lamina_training.attention_dropout.objectives import Draw, Draws
from lamina_training.attention_dropout.schedule import RateSchedule


class MaskSource(Protocol):
    """Draws the masks of one encoder, layer by layer."""

    def begin_pass(self) -> None:
        """Hear that a forward pass of the encoder starts."""

    def draw(self, layer: int, hidden_states: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Draw D (B, A, T, T) and the rank by which `guard_rows` picks the key to keep.

        Args:
            layer: From 0, the lowest.
            hidden_states: (B, T, H), the layer's input.
            real: (B, 1, T, T), boolean.
        """

    def set_progress(self, progress: float) -> None:
        """Move to this share of the training, from 0 to 1."""


class ScheduledMasks:
    """Bernoulli masks with the same rate for all links of a layer."""

    def __init__(self, schedule: RateSchedule, heads: int, meter: RateMeter) -> None:
        self._schedule = schedule
        self._heads = heads
        self._meter = meter
        self.set_progress(0.0)

    def begin_pass(self) -> None:
        pass

    def draw(self, layer: int, hidden_states: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        self._meter.add("drop_probability", layer, self._rates[layer], 1.0)
        return draw_hard(self._rates[layer], real, self._heads)

    def set_progress(self, progress: float) -> None:
        self._rates = self._schedule.rates(progress)


class GeneratedMasks:
    """AttendOut-style masks: a generator for each layer, and what its objective needs to know.

    Attributes:
        generators: Lowest layer first. They are no part of the encoder, so it is saved without.
        passes: The draws of each forward pass under gradients since they were last taken. A pass
            without gradients, such as the first one of gradient caching, trains nothing.
    """

    def __init__(self, config: AttendOut, parts: EncoderParts, meter: RateMeter) -> None:
        if not isinstance(config.target, float) and len(config.target) != len(parts.layers):
            raise AttentionDropoutError(
                f"attention_dropout.target has {len(config.target)} budgets, the encoder "
                f"{len(parts.layers)} layers; give one number, or one for each layer"
            )
        self._config = config
        self._meter = meter
        self.passes: list[Draws] = []
        self.generators = nn.ModuleList(
            MaskGenerator(
                parts.hidden_size,
                parts.heads,
                head_size=config.head_size,
                initial=min(config.initial, config.cap),
                cap=config.cap,
            )
            for _ in parts.layers
        ).to(parts.encoder.device)
        self._current: dict[int, Draw] = {}
        self.set_progress(0.0)

    @property
    def frozen(self) -> bool:
        """Whether the warm-up lasts."""
        return not next(self.generators.parameters()).requires_grad

    def begin_pass(self) -> None:
        # A layer that gradient checkpointing runs again falls into the pass it belongs to, or,
        # once that was taken, into one that nobody reads.
        self._current = {}
        if torch.is_grad_enabled():
            self.passes.append(self._current)

    def draw(self, layer: int, hidden_states: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        generator = self.generators[layer].to(hidden_states.device)  # the encoder may have moved
        logits = generator(hidden_states)  # (B, A, T, T)
        probability = torch.sigmoid(logits.detach()) * real
        if self._config.objective == "adversarial":
            sampled = draw_straight_through(logits, real, temperature=self._config.temperature)
            dropped = reverse_gradient(sampled)
        else:
            dropped, _ = draw_hard(probability, real, logits.shape[1])
        draw = Draw(logits, real, dropped.detach())
        self._current[layer] = draw
        self._meter.add("drop_probability", layer, probability.sum(), draw.links())
        rows = real.any(dim=-1).sum() * probability.shape[1]
        self._meter.add("drop_spread", layer, _spread(probability, real).sum(), rows)
        return dropped, probability

    def take_passes(self) -> list[Draws]:
        taken, self.passes = self.passes, []
        return taken

    def set_progress(self, progress: float) -> None:
        self.generators.requires_grad_(progress >= self._config.warmup)


def _spread(probability: Tensor, real: Tensor) -> Tensor:
    """Standard deviation (B, A, T) of P over the real links of each row; 0 where there are none."""
    count = real.sum(dim=-1, keepdim=True).clamp(min=1)
    mean = (probability * real).sum(dim=-1, keepdim=True) / count
    squares = ((probability - mean) * real).square().sum(dim=-1)
    return (squares / count.squeeze(-1)).sqrt()
