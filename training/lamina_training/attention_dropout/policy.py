"""R2: the mask generators learn from a reward on held-out rows, by policy gradient.

From the same weights the encoder takes one step with the drawn masks and one without; the reward
is how much lower the step with masks leaves the loss on held-out rows. The step with masks is
kept. This is an inference: nothing that could be read confirms that AttendOut is trained so.

Both steps have the same random numbers, so they differ by the dropped links alone. Other dropout
drawn anew would change the held-out loss as much as the links do, and where none is dropped the
generators would learn from its noise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from lamina_training.attention_dropout.config import AttendOut
from lamina_training.attention_dropout.handle import AttentionDropout
from lamina_training.attention_dropout.objectives import policy_loss


@dataclass(frozen=True)
class PolicyStep:
    """One step's numbers.

    Attributes:
        loss: Training loss under the masks.
        reward: Held-out loss after the plain step less that after the masked one; 0 in warm-up.
        advantage: The reward less its running mean, over the running size of that difference.
    """

    loss: float
    reward: float
    advantage: float


class PolicyGradient:
    """Trains encoder and generators together, with two updates and two held-out losses a step.

    Costs about 2 to 3 times a plain step, and memory for a second copy of the weights and the
    optimiser's state. With several processes all share one reward, the mean of theirs.

    Args:
        dropout: Of kind `attendout` with objective `policy`.
        model: What is put into evaluation mode for held-out losses.
        optimizer: Of the model; all that it trains is put back after the step without masks.
        generator_optimizer: Of `dropout.parameters()`; may be the same, with a group for them.
        max_gradient_norm: Longer gradients of the generators are cut to it.
    """

    def __init__(
        self,
        dropout: AttentionDropout,
        model: nn.Module,
        optimizer: Optimizer,
        generator_optimizer: Optimizer,
        *,
        max_gradient_norm: float = 1.0,
    ) -> None:
        config = dropout.config
        if not isinstance(config, AttendOut) or config.objective != "policy":
            raise ValueError(
                f"attention dropout of kind {config.kind!r} has no policy; choose "
                "kind = 'attendout' with objective = 'policy'"
            )
        self._dropout = dropout
        self._config = config
        self._model = model
        self._optimizer = optimizer
        self._generator_optimizer = generator_optimizer
        self._max_gradient_norm = max_gradient_norm
        self._plain: float | None = None
        self._rewards: list[float] = []

    def step(self, update: Callable[[], Tensor], held_out: Callable[[], Tensor]) -> PolicyStep:
        """Take one step with the drawn masks, and teach the generators what it was worth.

        Args:
            update: Does a whole training step of the model on one batch (loss, backward, clip,
                `optimizer.step()`, zero gradients) and returns the loss. It is called twice, so
                a learning-rate schedule is to be stepped outside. Its random numbers, such as
                those of dropout, come from torch's global generators.
            held_out: The loss on a batch that is not trained on.
        """
        self.try_without_masks(update, held_out)
        loss = float(update().detach())
        reward, advantage = self.learn(held_out)
        return PolicyStep(loss, reward, advantage)

    def try_without_masks(
        self, update: Callable[[], Tensor], held_out: Callable[[], Tensor]
    ) -> None:
        """Begin a step: measure what an update without masks leads to, and undo it.

        For loops that do the update with masks themselves, between this and `learn`. Torch's
        random generators are left as they were found, so that the other update draws the same.

        Args:
            update, held_out: As for `step`.
        """
        if not self._dropout.is_learning:
            return
        trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        weights = [parameter.detach().clone() for parameter in trained]
        state = copy.deepcopy(self._optimizer.state_dict())
        devices = {p.device.index for p in trained if p.device.type == "cuda"}
        with torch.random.fork_rng(sorted(devices)):  # the update with masks gets the same numbers
            with self._dropout.suspended():
                update()
            self._plain = self._evaluate(held_out)
        with torch.no_grad():
            for parameter, before in zip(trained, weights, strict=True):
                parameter.copy_(before)
        self._optimizer.load_state_dict(state)

    def learn(self, held_out: Callable[[], Tensor]) -> tuple[float, float]:
        """End a step after the update with masks: teach the generators what that was worth.

        Args:
            held_out: As for `step`, over the same rows as in `try_without_masks`.

        Returns:
            Reward and advantage, both 0 in warm-up.
        """
        passes = self._dropout.take_passes()
        if self._plain is None:
            return 0.0, 0.0
        reward = self._plain - self._evaluate(held_out)
        self._plain = None
        self._rewards.append(reward)
        advantage = self._advantage(reward)
        self._descend(policy_loss(passes, advantage, entropy_weight=self._config.entropy_weight))
        return reward, advantage

    def statistics(self) -> dict[str, float]:
        """Give the mean reward since the last call, and its running mean; nothing in warm-up."""
        rewards, self._rewards = self._rewards, []
        if not rewards or self._dropout.reward_baseline is None:
            return {}
        return {
            "reward": sum(rewards) / len(rewards),
            "reward_baseline": self._dropout.reward_baseline,
        }

    def _advantage(self, reward: float) -> float:
        """Compare a reward with those before, and add it to their running means.

        One step changes a loss by as little as 1e-4, in proportion to the learning rate. Over its
        size, what is left has one scale in all runs; else the entropy bonus alone would decide.
        """
        dropout, momentum = self._dropout, self._config.baseline_momentum
        if dropout.reward_baseline is None:
            dropout.reward_baseline = reward
            return 0.0
        surprise = reward - dropout.reward_baseline
        dropout.reward_baseline += (1 - momentum) * surprise
        known = surprise**2 if dropout.reward_variance is None else dropout.reward_variance
        dropout.reward_variance = momentum * known + (1 - momentum) * surprise**2
        return surprise / math.sqrt(dropout.reward_variance) if surprise else 0.0

    def _descend(self, objective: Tensor) -> None:
        self._optimizer.zero_grad()  # else a shared optimiser would take the model's step again
        self._generator_optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]  # torch's own annotation lacks it
        self._dropout.average_gradients()
        nn.utils.clip_grad_norm_(self._dropout.parameters(), self._max_gradient_norm)
        self._generator_optimizer.step()

    def _evaluate(self, held_out: Callable[[], Tensor]) -> float:
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                loss = held_out().detach().clone()
        finally:
            self._model.train(was_training)
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(loss)
            loss /= distributed.get_world_size()
        return float(loss)
