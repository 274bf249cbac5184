"""`objective = "policy"` in a run: held-out rows, rewards, and a step that is tried and undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

from lamina_index.errors import LaminaError
from lamina_training.attention_dropout import PolicyGradient, attention_dropout
from lamina_training.metrics_log import read_metrics
from lamina_training.run_rows import plan_rows
from lamina_training.train import train
from lamina_training.train_classification import Collator
from lamina_training.train_config import TrainConfig, TrainConfigError, parse_train_config
from lamina_training.training_data import LabelledExample, read_labelled

POLICY = {"kind": "attendout", "objective": "policy", "warmup": 0.25, "held_out": 0.25}
STEPS = 8


class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Keeps the weights that a run starts from, and sets the seed of its masks."""

    def on_train_begin(self, *given: Any, model: Any, optimizer: Any, **more: Any) -> None:
        self.model = {name: value.clone() for name, value in model.state_dict().items()}
        self.generators = [p.detach().clone() for p in optimizer.param_groups[-1]["params"]]

    def on_step_begin(self, args: Any, state: Any, *given: Any, **more: Any) -> None:
        if state.global_step == 0:
            torch.manual_seed(0)


def labelled_rows(data: Path) -> list[LabelledExample]:
    path = data / "labelled.tsv"
    return list(read_labelled(path, columns=["sentence"], label="label", labels=("0", "1")))


def trained_by_hand(config: TrainConfig, data: Path, base: Path, start: Watch) -> tuple[Any, Any]:
    """The loop that the trainer should amount to, with the same start; model and generators."""
    plan = plan_rows(config, [labelled_rows(data)], processes=1)
    held = plan.held_out
    assert held is not None
    rows = plan.sources[0]
    collate = Collator(AutoTokenizer.from_pretrained(base), 16)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2).train()
    model.load_state_dict(start.model)
    dropout = attention_dropout(model, config.attention_dropout)
    for parameter, value in zip(dropout.parameters(), start.generators, strict=True):
        parameter.data.copy_(value)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    generators = torch.optim.AdamW(dropout.parameters(), lr=0.02, weight_decay=0.0)
    policy = PolicyGradient(dropout, model, optimizer, generators)
    torch.manual_seed(0)
    for step in range(STEPS):
        batch = collate([rows[place] for place in plan.batches.parts(step)[0]])
        unseen = collate(held.rows(step, process=0))

        def update(batch: dict[str, Any] = batch) -> Any:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        def loss_on(unseen: dict[str, Any] = unseen) -> Any:
            return model(**unseen).loss

        dropout.step(step / STEPS)
        policy.step(update, loss_on)
    return model, dropout


def test_a_run_trains_what_a_loop_by_hand_trains(
    make_config: Callable[..., TrainConfig], data: Path, calm_base: Path, tmp_path: Path
) -> None:
    config = make_config(
        "classification",
        encoder={"base": str(calm_base)},
        attention_dropout={**POLICY, "learning_rate": 0.02},
        optimizer={"schedule": "constant", "warmup": 0.0},
        run={"batch_size": 4, "evaluate_every": 8},
    )
    watch = Watch()
    train(config, tmp_path / "run", cache=tmp_path, callbacks=[watch])
    model, dropout = trained_by_hand(config, data, calm_base, watch)
    found = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").state_dict()
    for name, value in model.state_dict().items():
        if not name.endswith("key.bias"):  # its gradient is rounding noise, which AdamW blows up
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    saved = load_file(tmp_path / "run/checkpoints/checkpoint-8/training_only.safetensors")
    for name, value in dropout.state_dict().items():
        torch.testing.assert_close(saved[f"dropout.{name}"], value, rtol=1e-4, atol=1e-6)
    moved = [
        not torch.equal(a, b) for a, b in zip(watch.generators, dropout.parameters(), strict=True)
    ]
    assert all(moved)


@pytest.mark.parametrize("task", ["contrastive", "distil", "classification"])
def test_rewards_are_logged_once_the_warm_up_is_over(
    task: str, make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run = {"batch_size": 4, "log_every": 1}
    config = make_config(task, attention_dropout=POLICY, run=run)
    train(config, tmp_path / "run", cache=tmp_path)
    lines = [m for m in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in m]
    assert ["reward" in line for line in lines] == [False] * 2 + [True] * 6
    assert all(len(line["drop_probability"]) == 2 for line in lines)
    means = [line["reward_baseline"] for line in lines[2:]]
    rewards = [line["reward"] for line in lines[2:]]
    assert means[0] == rewards[0]
    assert means[1] == pytest.approx(0.9 * rewards[0] + 0.1 * rewards[1])
    assert any(rewards)


@pytest.mark.parametrize("task", ["contrastive", "distil", "classification"])
def test_masks_that_drop_nothing_earn_exactly_nothing(
    task: str, make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config(
        task,
        attention_dropout={**POLICY, "initial": 1e-7},
        run={"batch_size": 4, "log_every": 1, "accumulate": 2},
    )
    train(config, tmp_path / "run", cache=tmp_path)
    lines = [m for m in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in m]
    assert [line.get("reward") for line in lines] == [None] * 2 + [0.0] * 6


def test_held_out_rows_are_drawn_by_the_seed_and_never_trained_on(
    make_config: Callable[..., TrainConfig], data: Path
) -> None:
    rows = labelled_rows(data)
    drawn = []
    for seed in (7, 7, 8):
        config = make_config("classification", seed=seed, attention_dropout=POLICY)
        plan = plan_rows(config, [rows], processes=2)
        held = plan.held_out
        assert held is not None
        trained = {row.texts for row in plan.sources[0]}
        unseen = {
            row.texts
            for step in range(8)
            for process in (0, 1)
            for row in held.rows(step, process=process)
        }
        assert (len(trained), len(unseen)) == (24, 8)
        assert trained | unseen == {row.texts for row in rows}
        assert held.rows(0, process=0) != held.rows(0, process=1)
        drawn.append(unseen)
    assert drawn[0] == drawn[1] != drawn[2]


def test_nothing_is_held_out_for_other_objectives(
    make_config: Callable[..., TrainConfig], data: Path
) -> None:
    rows = labelled_rows(data)
    config = make_config("classification", attention_dropout={"kind": "attendout"})
    plan = plan_rows(config, [rows], processes=1)
    assert plan.held_out is None
    assert plan.sources == [rows]


@pytest.mark.parametrize("held_out", [0.1, 0.9])
def test_too_few_rows_for_a_reward_or_for_training_are_told(
    held_out: float, make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    table = {**POLICY, "held_out": held_out}
    config = make_config("classification", attention_dropout=table)
    message = rf"attention_dropout\.held_out: {held_out} keeps .* of 32 rows .* batch of 8"
    with pytest.raises(LaminaError, match=message):
        train(config, tmp_path / "run", cache=tmp_path)


@pytest.mark.parametrize("scheme", ["self_supervised", "hybrid"])
def test_a_reward_needs_pairs(scheme: str, settings: Callable[..., dict[str, Any]]) -> None:
    given = settings(attention_dropout=POLICY, contrastive={"scheme": scheme})
    columns = ["anchor"] if scheme == "self_supervised" else ["anchor", "positive"]
    given["data"]["train"][0]["columns"] = columns
    message = rf"^F: attention_dropout\.objective policy: not with scheme {scheme}, .*supervised"
    with pytest.raises(TrainConfigError, match=message):
        parse_train_config(given, origin="F")
