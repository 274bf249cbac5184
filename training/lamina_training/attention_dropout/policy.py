"""R2: the mask generators learn from a reward on held-out texts, by policy gradient.

From the same weights the encoder takes one step with the drawn masks and one without; the reward
is how much lower the step with masks leaves the loss on held-out texts. The step with masks is
kept. This is an inference: nothing that could be read confirms that AttendOut is trained so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
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
        advantage: The reward less its running mean.
    """

    loss: float
    reward: float
    advantage: float


class PolicyGradient:
    """Trains encoder and generators together, with two updates and two held-out losses a step.

    Costs about 2 to 3 times a plain step, and memory for a second copy of the weights and the
    optimiser's state.

    Args:
        dropout: Of kind `attendout` with objective `policy`.
        model: All that `optimizer` trains.
        optimizer: Of the model alone.
        generator_optimizer: Of `dropout.parameters()`.
    """

    def __init__(
        self,
        dropout: AttentionDropout,
        model: nn.Module,
        optimizer: Optimizer,
        generator_optimizer: Optimizer,
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
        self.baseline: float | None = None

    def step(self, update: Callable[[], Tensor], held_out: Callable[[], Tensor]) -> PolicyStep:
        """Take one step with the drawn masks, and teach the generators what it was worth.

        Args:
            update: Does a whole training step of the model on one batch (loss, backward, clip,
                `optimizer.step()`, zero gradients) and returns the loss. It is called twice, so
                a learning-rate schedule is to be stepped outside.
            held_out: The loss on a batch that is not trained on.
        """
        if not self._dropout.is_learning:
            loss = float(update().detach())
            self._dropout.take_passes()
            return PolicyStep(loss, 0.0, 0.0)
        weights = [parameter.detach().clone() for parameter in self._model.parameters()]
        state = copy.deepcopy(self._optimizer.state_dict())
        with self._dropout.suspended():
            update()
        plain = self._evaluate(held_out)
        with torch.no_grad():
            for parameter, before in zip(self._model.parameters(), weights, strict=True):
                parameter.copy_(before)
        self._optimizer.load_state_dict(state)
        loss = float(update().detach())
        passes = self._dropout.take_passes()
        reward = plain - self._evaluate(held_out)
        known = reward if self.baseline is None else self.baseline
        advantage = reward - known
        momentum = self._config.baseline_momentum
        self.baseline = momentum * known + (1 - momentum) * reward
        self._learn(policy_loss(passes, advantage, entropy_weight=self._config.entropy_weight))
        return PolicyStep(loss, reward, advantage)

    def _learn(self, objective: Tensor) -> None:
        self._generator_optimizer.zero_grad()
        objective.backward()  # type: ignore[no-untyped-call]  # torch's own annotation lacks it
        self._dropout.average_gradients()
        nn.utils.clip_grad_norm_(self._dropout.parameters(), 1.0)
        self._generator_optimizer.step()

    def _evaluate(self, held_out: Callable[[], Tensor]) -> float:
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                return float(held_out())
        finally:
            self._model.train(was_training)
