"""What can be chosen, one class a kind: the `[attention_dropout]` table of a training file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lamina_training.idle_settings import refuse_idle

Rate: TypeAlias = Annotated[float, Field(ge=0, le=0.9)]
"""A drop probability. Above 0.9 hardly a link is left, and AttendOut was never seen there."""


class _Kind(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NoChange(_Kind):
    """Leave the encoder as it is, its own dropout included."""

    kind: Literal["none"] = "none"


class PlainDropout(_Kind):
    """The encoder's own dropout of attention weights, survivors scaled by 1 / (1 - rate)."""

    kind: Literal["plain"] = "plain"
    rate: Rate = 0.1


class LayerDrop(_Kind):
    """Skip a whole layer (Fan et al. 2020, arXiv 1909.11556)."""

    kind: Literal["layer_drop"] = "layer_drop"
    rate: Rate = 0.1


class AttentionLayerDrop(_Kind):
    """Skip only the self-attention of a layer; its residual, norm and feed-forward stay."""

    kind: Literal["attention_layer_drop"] = "attention_layer_drop"
    rate: Rate = 0.1


class DropHead(_Kind):
    """Drop whole heads of a text, and scale the others up (Zhou et al. 2020, arXiv 2004.13342)."""

    kind: Literal["drop_head"] = "drop_head"
    rate: Rate = 0.1


class ScheduledBernoulli(_Kind):
    """Drop links at a rate set by layer and progress alone, blind to the text.

    Attributes:
        start: Rate of all layers at the start.
        low_layer, high_layer: Rate of the first and the last layer after the ramp; the layers
            between lie on a line. For some thousand examples try `low_layer` up to 0.9.
        ramp: Share of the training over which the rates move; 0 sets them at once.
        table: A file of rates to replay instead of all these: `metrics.jsonl` of a run that had
            them, or one that `write_rate_table` wrote.
    """

    kind: Literal["scheduled_bernoulli"] = "scheduled_bernoulli"
    start: Rate = 0.1
    low_layer: Rate = 0.3
    high_layer: Rate = 0.1
    ramp: float = Field(default=0.5, ge=0, le=1)
    table: Path | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.table is not None:
            idle = ("start", "low_layer", "high_layer", "ramp")
            refuse_idle(self, idle, "a table has all rates; leave it out or them")
        return self


class AttendOut(_Kind):
    """AttendOut-style: a small network for each layer chooses the links to drop.

    Attributes:
        objective: `adversarial` (R1): drop what the loss leans on most, within a budget.
            `policy` (R2): drop what helps on held-out rows, by `PolicyGradient`.
        initial: Mean drop probability at the start, and through the warm-up.
        target: Budget p*: one number for the mean over all layers, so that layers may differ,
            or one for each layer, lowest first. Adversarial only.
        budget_weight: Lambda, the weight of the squared distance to the budget. Adversarial only.
        cap: Largest drop probability.
        temperature: Of the relaxed sample that carries the gradient. Adversarial only.
        head_size: d_g, the width of the generator's queries and keys.
        warmup: Share of the training for which the generators stay as they are.
        learning_rate: Of the generators, for the trainer's second optimiser group. At a tenth of
            the default they stay as blind as they start (docs/attention_dropout.md).
        entropy_weight, baseline_momentum: Policy only: weight of the entropy bonus, and how slowly
            the running mean of the reward follows.
        held_out: Policy only: share of the training rows that is never trained on, and whose loss
            is the reward. They are not those of `data.dev`, which choose the best checkpoint.
    """

    kind: Literal["attendout"] = "attendout"
    objective: Literal["adversarial", "policy"] = "adversarial"
    initial: Annotated[float, Field(gt=0, le=0.9)] = 0.1
    target: Rate | tuple[Rate, ...] = 0.1
    budget_weight: float = Field(default=10.0, ge=0)
    cap: Annotated[float, Field(gt=0, lt=1)] = 0.9
    temperature: float = Field(default=0.66, gt=0)
    head_size: int = Field(default=16, ge=1)
    warmup: float = Field(default=0.1, ge=0, le=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    entropy_weight: float = Field(default=1e-3, ge=0)
    baseline_momentum: float = Field(default=0.9, ge=0, lt=1)
    held_out: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.objective == "policy":
            only, idle = "adversarial", ("target", "budget_weight", "temperature")
        else:
            only, idle = "policy", ("entropy_weight", "baseline_momentum", "held_out")
        refuse_idle(self, idle, f"only objective {only} has that, objective is {self.objective}")
        if self.objective == "adversarial" and self.budget_weight == 0:
            refuse_idle(self, ["target"], "budget_weight is 0; raise it or leave the target out")
        return self


AttentionDropoutConfig: TypeAlias = Annotated[
    NoChange
    | PlainDropout
    | LayerDrop
    | AttentionLayerDrop
    | DropHead
    | ScheduledBernoulli
    | AttendOut,
    Field(discriminator="kind"),
]
