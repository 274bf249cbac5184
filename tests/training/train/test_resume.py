"""A run that was broken off and resumed ends as one that was not."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from transformers import TrainerCallback

from lamina_index.errors import ResumeError
from lamina_training.attention_dropout import write_rate_table
from lamina_training.metrics_log import read_metrics
from lamina_training.train import train
from lamina_training.train_config import TrainConfig

POLICY = {"kind": "attendout", "objective": "policy", "held_out": 0.3}  # learns from step 1 on


def weights(run: Path) -> dict[str, bytes]:
    """The bytes of all weights, and of the optimiser's last state."""
    last = run / "checkpoints" / "checkpoint-8"
    found = {
        str(path.relative_to(run)): path.read_bytes()
        for path in (*run.glob("*.safetensors"), *run.glob("1_*/*.safetensors"))
    }
    return found | {str(p.relative_to(run)): p.read_bytes() for p in last.rglob("*.safetensors")}


def lines(run: Path) -> list[dict[str, Any]]:
    """The log without what time adds to it."""
    kept = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name != "seconds"} for line in kept]


@pytest.mark.parametrize(
    ("task", "tables", "at"),
    [
        ("contrastive", {}, 6),  # step 5 is logged, and will be again
        ("contrastive", {}, 1),  # before the first checkpoint
        ("contrastive", {"pooling": {"mode": "layer_attention"}, "run": {"accumulate": 2}}, 7),
        ("contrastive", {"attention_dropout": {"kind": "attendout"}}, 5),
        ("contrastive", {"attention_dropout": {"kind": "scheduled_bernoulli"}}, 3),
        ("contrastive", {"attention_dropout": POLICY, "run": {"batch_size": 4}}, 5),
        ("contrastive", {"contrastive": {"mini_batch_size": 2}}, 5),
        ("distil", {}, 6),
        ("classification", {}, 6),
        ("classification", {"attention_dropout": {"kind": "attendout"}}, 3),
        ("classification", {"attention_dropout": POLICY, "run": {"accumulate": 2}}, 7),
    ],
    ids=str,
)
def test_resuming_gives_the_weights_of_an_unbroken_run(
    task: str,
    tables: dict[str, Any],
    at: int,
    make_config: Callable[..., TrainConfig],
    interrupt_at: Callable[[int], TrainerCallback],
    interrupted: type[Exception],
    tmp_path: Path,
) -> None:
    config = make_config(task, **tables)
    train(config, tmp_path / "whole", cache=tmp_path)
    with pytest.raises(interrupted):
        train(config, tmp_path / "broken", cache=tmp_path, callbacks=[interrupt_at(at)])
    torch.rand(3)  # the process's random state is another one than it was
    train(config, tmp_path / "broken", cache=tmp_path, resume=True)
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")


def test_a_resumed_run_counts_its_seconds_on(
    make_config: Callable[..., TrainConfig],
    interrupt_at: Callable[[int], TrainerCallback],
    interrupted: type[Exception],
    tmp_path: Path,
) -> None:
    with pytest.raises(interrupted):
        train(make_config(), tmp_path / "run", cache=tmp_path, callbacks=[interrupt_at(6)])
    path = tmp_path / "run" / "metrics.jsonl"
    later = [{**line, "seconds": line["seconds"] + 1000} for line in read_metrics(path)]
    path.write_text("".join(json.dumps(line) + "\n" for line in later))
    train(make_config(), tmp_path / "run", cache=tmp_path, resume=True)
    seconds = [line["seconds"] for line in read_metrics(path)]
    assert seconds == sorted(seconds)
    assert seconds[0] > 1000


def test_a_resumed_run_goes_on_from_its_last_checkpoint(
    make_config: Callable[..., TrainConfig],
    interrupt_at: Callable[[int], TrainerCallback],
    interrupted: type[Exception],
    tmp_path: Path,
) -> None:
    begun: list[int] = []

    class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
        def on_train_begin(self, args: Any, state: Any, *rest: Any, **more: Any) -> None:
            begun.append(state.global_step)

    with pytest.raises(interrupted):
        train(make_config(), tmp_path / "run", cache=tmp_path, callbacks=[interrupt_at(5)])
    train(make_config(), tmp_path / "run", cache=tmp_path, resume=True, callbacks=[Watch()])
    train(make_config(), tmp_path / "run", cache=tmp_path, resume=True, callbacks=[Watch()])
    assert begun == [4, 8]


def test_a_half_written_checkpoint_is_passed_over(
    make_config: Callable[..., TrainConfig],
    interrupt_at: Callable[[int], TrainerCallback],
    interrupted: type[Exception],
    tmp_path: Path,
) -> None:
    train(make_config(), tmp_path / "whole", cache=tmp_path)
    with pytest.raises(interrupted):
        train(make_config(), tmp_path / "broken", cache=tmp_path, callbacks=[interrupt_at(5)])
    half = tmp_path / "broken/checkpoints/checkpoint-6"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    (half / "trainer_state.json").write_text("{")
    train(make_config(), tmp_path / "broken", cache=tmp_path, resume=True)
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")


def test_a_finished_run_can_be_resumed_to_no_effect(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    first = train(make_config(), tmp_path / "run", cache=tmp_path)
    before = weights(tmp_path / "run")
    again = train(make_config(), tmp_path / "run", cache=tmp_path, resume=True)
    assert weights(tmp_path / "run") == before
    assert (again.best_step, again.score) == (first.best_step, first.score)


def test_another_seed_gives_other_weights(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    train(make_config(), tmp_path / "one", cache=tmp_path)
    train(make_config(seed=8), tmp_path / "other", cache=tmp_path)
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


@pytest.fixture
def placed(
    make_config: Callable[..., TrainConfig], base: Path, tmp_path: Path
) -> tuple[TrainConfig, Path]:
    """A run of a base, a teacher and a rate table whose files a test may replace."""
    for name in ("base", "teacher"):
        shutil.copytree(base, tmp_path / name)
    write_rate_table(tmp_path / "rates.json", [[0.1, 0.2]])
    config = make_config(
        "distil",
        encoder={"base": str(tmp_path / "base")},
        distil={"teacher": str(tmp_path / "teacher")},
        attention_dropout={"kind": "scheduled_bernoulli", "table": str(tmp_path / "rates.json")},
        run={"steps": 2},
    )
    train(config, tmp_path / "run", cache=tmp_path)
    return config, tmp_path / "run"


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("rates.json", "inputs.table.rates.json"),
        ("base/tokenizer.json", "inputs.base.tokenizer.json"),
        ("teacher/config.json", "inputs.teacher.config.json"),
    ],
)
def test_an_input_that_was_replaced_is_refused(
    file: str, changed: str, placed: tuple[TrainConfig, Path]
) -> None:
    config, run = placed
    path = run.parent / file
    path.write_text(path.read_text() + "\n")  # its hash alone tells
    with pytest.raises(ResumeError, match=f"was begun with {re.escape(changed)} = '"):
        train(config, run, cache=run.parent, resume=True)


def test_inputs_do_not_tell_where_they_lay(placed: tuple[TrainConfig, Path]) -> None:
    _, run = placed
    inputs = json.loads((run / "run.json").read_text())["inputs"]
    assert inputs.keys() == {"base", "teacher", "table"}
    assert str(run.parent) not in json.dumps(inputs)


def test_a_run_begun_before_inputs_were_written_down_is_resumed(
    placed: tuple[TrainConfig, Path],
) -> None:
    config, run = placed
    facts = json.loads((run / "run.json").read_text())
    del facts["inputs"]
    (run / "run.json").write_text(json.dumps(facts))
    assert train(config, run, cache=run.parent, resume=True).steps == 2
