"""What our runs add to the trainers of transformers and sentence-transformers.

Both trainers do the loop: batches, autocast, accumulation, clipping, schedule, several processes.
Added are a fixed plan of batches, attention dropout with its own optimiser group and its objective,
a stop before a loss or gradient that is not finite reaches the weights, and checkpoints without
pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformerTrainer
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback

from lamina_index.errors import DamagedError, LaminaError
from lamina_training.attention_dropout import AttendOut, AttentionDropout, PolicyGradient
from lamina_training.by_length import ByLength
from lamina_training.metrics_log import TRAINING_LOSS
from lamina_training.run_rows import RunRows
from lamina_training.training_state import (
    load_optimizer,
    load_random_state,
    random_state_file,
    save_optimizer,
    save_random_state,
)

TRAINING_ONLY = "training_only.safetensors"
"""Weights that training has and the trained model does not: G-Nets, a distillation's projection."""


class DivergedError(LaminaError):
    """A loss or gradient is not a finite number, so training cannot go on."""


class RunTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped to mypy
    """The additions, as a mixin that comes before one of the two trainers."""

    def __init__(
        self,
        *,
        rows: RunRows,
        dropout: AttentionDropout,
        **options: Any,
    ) -> None:
        """Prepare a run.

        Args:
            rows: Of the whole run.
            dropout: On the model already.
            options: Of the trainer.
        """
        self._rows = rows
        self.dropout = dropout
        self._budget: Tensor | None = None
        self._policy: PolicyGradient | None = None
        self._step_batches: list[Any] = []
        super().__init__(**options)
        # Transformers' classifiers take the number of a step's rows and divide by that of a batch,
        # so their loss would count once a process and batch. Batches are equal here: means do.
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)  # which prints each log; ours go to metrics.jsonl
        self.add_callback(_DropoutSteps(self))

    # Data

    def get_train_dataloader(self) -> Any:
        rows: ConcatDataset[Any] = ConcatDataset(self._rows.sources)
        loader = DataLoader(
            rows,
            batch_sampler=self._rows.batches,
            collate_fn=self.data_collator,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)

    def get_batch_samples(self, *given: Any) -> Any:
        samples = super().get_batch_samples(*given)
        self._step_batches = samples[0]
        return samples

    # Steps

    def create_optimizer(self, model: Any = None) -> Any:
        if self.optimizer is not None:
            return self.optimizer
        optimizer = super().create_optimizer(model)
        config = self.dropout.config
        if isinstance(config, AttendOut):
            generators = self.dropout.parameters()
            optimizer.add_param_group(
                {"params": generators, "lr": config.learning_rate, "weight_decay": 0.0}
            )
            if config.objective == "policy":
                self._policy = PolicyGradient(
                    self.dropout,
                    self.model,
                    optimizer,
                    optimizer,
                    max_gradient_norm=self.args.max_grad_norm,
                )
        return optimizer

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any
    ) -> Any:
        found = super().compute_loss(model, inputs, return_outputs=return_outputs, **options)
        if return_outputs or not model.training:
            return found
        budget = self.dropout.budget_loss().to(found.device)
        self._budget = budget.detach() / self.current_gradient_accumulation_steps
        return found + budget

    def training_step(self, model: Any, inputs: Any, *given: Any, **options: Any) -> Tensor:
        loss: Tensor = super().training_step(model, inputs, *given, **options)
        if self._budget is not None:  # the log tells the task's loss alone
            loss = loss - self._budget
        self._check_finite(loss, "loss")
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        longest = self.args.max_grad_norm
        self.dropout.average_gradients()
        own = self._own_of_loss()
        if distributed.is_available() and distributed.is_initialized():
            for parameter in own:
                if parameter.grad is not None:
                    distributed.all_reduce(parameter.grad)
                    parameter.grad /= distributed.get_world_size()
        for parameters in (self.dropout.parameters(), own):
            if parameters:
                nn.utils.clip_grad_norm_(parameters, longest)
        norm = super()._clip_grad_norm(model)
        self._check_finite(torch.as_tensor(norm), "gradient")
        return norm

    def begin_step(self) -> None:
        """Tell attention dropout of the step, and let its policy try the step without masks."""
        self.dropout.step(self.state.global_step / self.state.max_steps)
        if self._policy is not None:
            self._policy.try_without_masks(self._whole_update, self._held_out_loss)

    def end_update(self) -> None:
        """Let the policy see what the update with masks was worth, at the rate that it had."""
        if self._policy is not None:
            self._policy.learn(self._held_out_loss)

    def end_step(self) -> None:
        """Clear the generators' gradients, which `model.zero_grad()` does not reach."""
        for parameter in self.dropout.parameters():
            parameter.grad = None

    def statistics(self) -> dict[str, Any]:
        """Give what attention dropout has to tell about the steps since the last call."""
        rewards = self._policy.statistics() if self._policy is not None else {}
        return {**self.dropout.statistics(), **rewards}

    def _whole_update(self) -> Tensor:
        """Do on our own, over the batches that come next, what the loop does in a step."""
        model, optimizer = self.model_wrapped, self.optimizer.optimizer  # not accelerate's, which
        losses = [self.training_step(model, batch) for batch in self._step_batches]
        self._clip_grad_norm(model)
        optimizer.step()  # would wait for the last batch of the loop's own step
        optimizer.zero_grad()
        return torch.stack(losses).sum()

    def _held_out_loss(self) -> Tensor:
        """Compute the loss on this step's held-out rows."""
        assert self._rows.held_out is not None  # planned with the policy
        rows = self._rows.held_out.rows(self.state.global_step, process=self.args.process_index)
        inputs = self._prepare_inputs(self.data_collator(rows))
        with self.compute_loss_context_manager():
            loss: Tensor = super().compute_loss(self.model_wrapped, inputs)
        self._check_finite(loss, "held-out loss")
        return loss

    def _check_finite(self, value: Tensor, name: str) -> None:
        if bool(torch.isfinite(value)):
            return
        raise DivergedError(
            f"step {self.state.global_step + 1}: the {name} is {float(value)}; stopped at once. "
            f"The last checkpoint in {self.args.output_dir} is sound; start a new run with a "
            "lower learning rate, more warm-up or precision fp32"
        )

    def _own_of_loss(self) -> list[nn.Parameter]:
        """Weights that belong to the loss alone."""
        loss = getattr(self, "loss", None)
        if loss is None:
            return []
        of_model = {id(parameter) for parameter in self.model.parameters()}
        return [p for p in loss.parameters() if id(p) not in of_model]

    # Checkpoints

    def save_weights(self, folder: Path) -> None:
        """Write the model as its library loads it."""
        raise NotImplementedError

    def load_weights(self, folder: Path) -> None:
        """Take up the weights of a checkpoint.

        Raises:
            DamagedError: If its files are not whole.
        """
        try:
            super()._load_from_checkpoint(str(folder))
        except Exception as error:  # whatever the libraries find wrong with it
            raise DamagedError(
                f"{folder}: cannot be loaded ({error}); delete it, and --resume takes the "
                "checkpoint before it"
            ) from error

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self.save_weights(folder)
        extra = {f"dropout.{name}": value for name, value in self.dropout.state_dict().items()}
        extra |= {f"loss.{n}": p.detach() for n, p in enumerate(self._own_of_loss())}
        save_file(
            {name: tensor.contiguous() for name, tensor in extra.items()}, folder / TRAINING_ONLY
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        self.load_weights(folder)
        extra = load_file(folder / TRAINING_ONLY)
        prefix = "dropout."
        self.dropout.load_state_dict(
            {n.removeprefix(prefix): v for n, v in extra.items() if n.startswith(prefix)}
        )
        with torch.no_grad():
            for number, parameter in enumerate(self._own_of_loss()):
                parameter.copy_(extra[f"loss.{number}"])

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            save_optimizer(Path(output_dir), self.optimizer, self.lr_scheduler)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_optimizer(Path(checkpoint), self.optimizer, self.lr_scheduler)

    def _save_rng_state(self, output_dir: str) -> None:
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)  # another process may not have made it yet
        save_random_state(folder / random_state_file(self.args.process_index))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_random_state(Path(checkpoint) / random_state_file(self.args.process_index))


class EncoderTrainer(RunTrainer, SentenceTransformerTrainer):  # type: ignore[misc]  # untyped
    """Trains a `SentenceTransformer`."""

    def __init__(self, *, max_tokens: int, **options: Any) -> None:
        """Prepare a run.

        Args:
            max_tokens: Longest training text; the encoder itself keeps its own, longer limit, so
                that neither evaluation nor what is exported cuts texts there.
            options: Of `RunTrainer`.
        """
        super().__init__(**options)
        self.data_collator.max_length = max_tokens

    def add_model_card_callback(self, default_args_dict: Any) -> None:
        """Leave the library's card out: it asks the hub, and a run has its report."""

    def save_weights(self, folder: Path) -> None:
        self.model.save_pretrained(str(folder), create_model_card=False)


class LossByLength(Trainer):  # type: ignore[misc]  # transformers is untyped to mypy
    """Trains a classifier with passes by length, where that can be."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any
    ) -> Any:
        features = {name: value for name, value in inputs.items() if name != "labels"}
        passes = ByLength.of(features)
        if passes is None or return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs=return_outputs, **options)
        logits = passes.joined([model(**each).logits for each in passes])  # (B, classes)
        return functional.cross_entropy(logits, inputs["labels"])


class ClassifierTrainer(RunTrainer, LossByLength):
    """Trains a classifier of transformers."""

    def __init__(self, *, training_loss: bool = False, **options: Any) -> None:
        """Prepare a run.

        Args:
            training_loss: Whether each evaluation measures the loss on the rows trained on too.
            options: Of `RunTrainer`.
        """
        super().__init__(**options)
        self._training_loss = training_loss

    def evaluation_loop(self, *given: Any, **options: Any) -> Any:
        found = super().evaluation_loop(*given, **options)
        if self._training_loss:
            other = super().evaluation_loop(
                self.get_eval_dataloader(ConcatDataset(self._rows.sources)),
                description="Rows trained on",
                prediction_loss_only=True,
                metric_key_prefix="training",  # which makes it TRAINING_LOSS
            )
            found.metrics[TRAINING_LOSS] = other.metrics[TRAINING_LOSS]
        return found

    def save_weights(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.processing_class.save_pretrained(folder)


class _DropoutSteps(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    def __init__(self, trainer: RunTrainer) -> None:
        self._trainer = trainer

    def on_step_begin(self, *given: Any, **kwargs: Any) -> None:
        self._trainer.begin_step()

    def on_optimizer_step(self, *given: Any, **kwargs: Any) -> None:
        self._trainer.end_update()

    def on_step_end(self, *given: Any, **kwargs: Any) -> None:
        self._trainer.end_step()
