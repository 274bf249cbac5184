"""What a training loop holds while attention dropout is on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, distributed, nn

from lamina_training.attention_dropout.baselines import Switch
from lamina_training.attention_dropout.config import AttendOut, AttentionDropoutConfig
from lamina_training.attention_dropout.errors import AttentionDropoutError
from lamina_training.attention_dropout.mask_sources import GeneratedMasks, MaskSource
from lamina_training.attention_dropout.meter import RateMeter
from lamina_training.attention_dropout.objectives import Draws, budget_penalty

_REWARDS = ("reward_baseline", "reward_variance")


class AttentionDropout:
    """Attention dropout on one encoder, until it is removed.

    A training loop calls `step(progress)` before each step, adds `budget_loss()` to the loss and
    gives `parameters()` to the optimiser as a group of their own; all three do nothing for the
    kinds that learn nothing. It ends by itself in evaluation mode, and with a `with` block.

    Attributes:
        config: What was asked for.
        reward_baseline, reward_variance: Running means, under the policy objective, of the rewards
            and of their squared distance from it; None before the first one. They are kept here
            because a run that is resumed needs them with the weights.
    """

    def __init__(
        self, config: AttentionDropoutConfig, meter: RateMeter, masks: MaskSource | None = None
    ) -> None:
        self.config = config
        self.switch = Switch()
        self.undo = ExitStack()
        self.reward_baseline: float | None = None
        self.reward_variance: float | None = None
        self._meter = meter
        self._masks = masks
        self._suspended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Leave the encoder as it was found; its weights stay as they were trained."""
        self.undo.close()

    def begin_pass(self, *, training: bool) -> bool:
        """Tell whether a forward pass that starts now gets masks, even if they drop nothing."""
        self.switch.on = training and (self._masks is not None or not self._suspended)
        if training and self._masks is not None and not self._suspended:
            self._masks.begin_pass()
        return self.switch.on

    @property
    def is_suspended(self) -> bool:
        """Whether masks on links drop nothing for now."""
        return self._suspended

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Drop nothing for a while; the encoder's own attention dropout stays off too.

        Masks on links are drawn all the same, at rate 0: from the same state of torch's random
        generators a pass has the same other dropout as with masks, and computes in the same way.
        So a pass that is suspended equals one whose masks happen to drop nothing, bit for bit.
        """
        self._suspended = True
        try:
            yield
        finally:
            self._suspended = False

    def step(self, progress: float) -> None:
        """Say how much of the training is done, before each step.

        Args:
            progress: 0 before the first step; step / steps in general.

        Raises:
            ValueError: If it is not from 0 to 1.
            AttentionDropoutError: If the loop lets the generators' objective out.
        """
        if not 0 <= progress <= 1:
            raise ValueError(f"progress is {progress}, expected a share from 0 to 1")
        if self._masks is None:
            return
        if isinstance(self._masks, GeneratedMasks) and self._masks.passes and self.is_learning:
            remedy = "add budget_loss() to each loss that is propagated back"
            if self.config.kind == "attendout" and self.config.objective == "policy":
                remedy = "train through PolicyGradient.step"
            raise AttentionDropoutError(
                f"{len(self._masks.passes)} forward passes drew masks, but nothing was learnt from "
                f"them, and without its objective the generator drops ever more; {remedy}"
            )
        self.take_passes()
        self._masks.set_progress(progress)

    @property
    def is_learning(self) -> bool:
        """Whether there are generators and their warm-up is over."""
        return isinstance(self._masks, GeneratedMasks) and not self._masks.frozen

    def take_passes(self) -> list[Draws]:
        """Give the draws of the forward passes since the last call, for `policy_loss`."""
        return self._masks.take_passes() if isinstance(self._masks, GeneratedMasks) else []

    def budget_loss(self) -> Tensor:
        """Weighted distance of the drop probability from its budget; a scalar to add to the loss.

        It covers the forward passes since the last call, so call it once for each `backward()`,
        before it. 0 for all other kinds and for the policy objective, and without such passes.

        Raises:
            AttentionDropoutError: If the passes left no gradients for the generators.
        """
        config = self.config
        if not isinstance(config, AttendOut) or config.objective != "adversarial":
            return torch.zeros(())
        passes = self.take_passes()
        if not passes:
            return torch.zeros(())
        if not all(passes):
            raise AttentionDropoutError(
                "a forward pass of the encoder drew no masks, since its self-attention modules "
                "were not called; use BERT, RoBERTa or DistilBERT"
            )
        penalty = budget_penalty(passes, config.target)
        if self.is_learning and not penalty.requires_grad:
            raise AttentionDropoutError(
                "the masks carry no gradient, as under reentrant gradient checkpointing; make it "
                "non-reentrant, or do without"
            )
        return config.budget_weight * penalty

    def parameters(self) -> list[nn.Parameter]:
        """List the generators' weights; none for the kinds that learn nothing."""
        if not isinstance(self._masks, GeneratedMasks):
            return []
        return list(self._masks.generators.parameters())

    def average_gradients(self) -> None:
        """Average the generators' gradients over processes, before they are clipped.

        The generators stand outside the model, so what wraps the model does not do this.
        """
        if not distributed.is_available() or not distributed.is_initialized():
            return
        for parameter in self.parameters():
            if parameter.grad is not None:
                distributed.all_reduce(parameter.grad)
                parameter.grad /= distributed.get_world_size()

    def state_dict(self) -> dict[str, Tensor]:
        """Give the generators' weights and the rewards' running means, to resume from.

        Empty for kinds that learn nothing.
        """
        if not isinstance(self._masks, GeneratedMasks):
            return {}
        state: dict[str, Tensor] = self._masks.generators.state_dict()
        for name in _REWARDS:
            if (mean := getattr(self, name)) is not None:
                state[name] = torch.tensor(mean, dtype=torch.float64)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take what `state_dict` gave up again.

        Raises:
            AttentionDropoutError: If they belong to other generators.
        """
        if not isinstance(self._masks, GeneratedMasks):
            if state:
                raise AttentionDropoutError(
                    f"attention dropout of kind {self.config.kind!r} has no weights, found "
                    f"{len(state)}; resume with the configuration the run was started with"
                )
            return
        weights = {name: value for name, value in state.items() if name not in _REWARDS}
        for name in _REWARDS:
            setattr(self, name, state[name].item() if name in state else None)
        try:
            self._masks.generators.load_state_dict(weights)
        except RuntimeError as error:
            raise AttentionDropoutError(
                "the saved generators do not fit this encoder and configuration; resume with "
                f"those the run was started with ({error})"
            ) from error

    def statistics(self) -> dict[str, list[float]]:
        """Give means since the last call, one for each layer, lowest first.

        `drop_probability` is P over real links, `drop_spread` the standard deviation of P over
        the links of a row, which is 0 for generators that choose none before others, `dropped` the
        share of links (or heads, or layers) that were dropped, `guarded` the share of rows that
        the row guard saved. Only those that the kind has, and none without a forward pass in
        between.
        """
        return self._meter.take()
