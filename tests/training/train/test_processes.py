"""Two processes that share each batch train what one process trains."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from safetensors.torch import load_file

from lamina_training import train as train_module
from lamina_training.metrics_log import read_metrics
from lamina_training.run_folder import RunFolder
from lamina_training.train import train
from lamina_training.train_config import parse_train_config

SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from lamina_training.train import train
from lamina_training.train_config import parse_train_config
given, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
config = parse_train_config(given, origin="test")
train(config, folder, cache=folder.parent, resume=folder.exists())
"""


def train_in_two(given: dict[str, Any], run: Path) -> None:
    done = try_in_two(given, run)
    assert done.returncode == 0, done.stderr[-3000:]


def try_in_two(given: dict[str, Any], run: Path) -> subprocess.CompletedProcess[str]:
    script = run.parent / "script.py"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [sys.executable, *launcher, str(script), json.dumps(given), str(run)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    "task",
    [
        "contrastive",
        pytest.param("distil", marks=pytest.mark.slow),
        pytest.param("classification", marks=pytest.mark.slow),
    ],
)
def test_two_gloo_processes_train_what_one_trains(
    task: str, settings: Callable[..., dict[str, Any]], calm_base: Path, tmp_path: Path
) -> None:
    given = settings(task, encoder={"base": str(calm_base)}, run={"steps": 4})
    train(parse_train_config(given, origin="test"), tmp_path / "one", cache=tmp_path)
    train_in_two(given, tmp_path / "two")
    one, two = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for left, right in zip(one, two, strict=True):
        for name in left.keys() - {"seconds"}:
            assert right[name] == pytest.approx(left[name], rel=1e-3, abs=1e-5), (name, left)
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in left.items():
        # A key's bias shifts all scores of a row alike, so its gradient is rounding noise, which
        # AdamW blows up; an encoder's pooler is never used.
        if not name.endswith("key.bias") and ("pooler" not in name or task == "classification"):
            assert torch.allclose(tensor, right[name], atol=1e-4), name


POLICY = {"kind": "attendout", "objective": "policy", "held_out": 0.3}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "tables"),
    [
        ("contrastive", {}),
        ("contrastive", {"attention_dropout": {"kind": "attendout", "warmup": 0.0}}),
        ("contrastive", {"attention_dropout": POLICY}),
        ("classification", {"attention_dropout": POLICY}),
    ],
    ids=str,
)
def test_two_processes_resume_as_if_there_had_been_no_break(
    task: str, tables: dict[str, Any], settings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    given = settings(task, run={"steps": 4, "keep_checkpoints": 2}, **tables)
    train_in_two(given, tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    whole = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
    shutil.rmtree(last)
    train_in_two(given, tmp_path / "run")
    assert {path.name: path.read_bytes() for path in last.glob("*.safetensors")} == whole
    assert {"random_state_0.safetensors", "random_state_1.safetensors"} < whole.keys()


@pytest.mark.slow
def test_two_processes_that_cannot_start_leave_no_folder(
    settings: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    done = try_in_two(settings(run={"batch_size": 64}), tmp_path / "run")
    assert done.returncode != 0
    assert "32 rows give no batch of 64" in done.stderr
    assert not (tmp_path / "run").exists()


def test_another_process_waits_for_the_main_one_to_take_the_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    run.begin({})
    waits: list[float] = []

    def sleep(seconds: float) -> None:  # meanwhile the main process fails too
        waits.append(seconds)
        assert (tmp_path / "run" / "run.json").is_file()
        train_module._take_back(run, is_main=True)

    monkeypatch.setattr("lamina_training.train.time.sleep", sleep)
    train_module._take_back(run, is_main=False)
    assert len(waits) == 1
    assert not (tmp_path / "run").exists()
