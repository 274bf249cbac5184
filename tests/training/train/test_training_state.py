"""Optimiser, schedule and random generators come back to the last bit, without pickle."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.errors import DamagedError
from lamina_training.training_state import (
    load_optimizer,
    load_random_state,
    save_optimizer,
    save_random_state,
)


def train(model: Any, optimizer: Any, scheduler: Any, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(steps)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 3, generator=generator)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    return [value for p in model.parameters() for value in p.detach().flatten().tolist()]


def make() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.1}])
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    parts = make()
    train(*parts, 3)
    save_optimizer(tmp_path, *parts[1:])
    other = make()
    other[0].load_state_dict(parts[0].state_dict())
    load_optimizer(tmp_path, *other[1:])
    assert other[1].state_dict()["param_groups"] == parts[1].state_dict()["param_groups"]
    assert train(*other, 4) == train(*parts, 4)


def test_the_files_are_safetensors_and_json(tmp_path: Path) -> None:
    parts = make()
    train(*parts, 1)
    save_optimizer(tmp_path, *parts[1:])
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


def draw() -> list[float]:
    return [random.gauss(0, 1), random.random(), np.random.normal(), float(torch.rand(()))]


def test_all_generators_go_on_from_where_they_were(tmp_path: Path) -> None:
    draw()  # leaves the second of a pair of Gaussians behind
    save_random_state(tmp_path / "state.safetensors")
    first = draw()
    draw()
    load_random_state(tmp_path / "state.safetensors")
    assert draw() == first


def test_damage_is_told_with_the_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    parts = make()
    train(*parts, 1)
    save_optimizer(folder, *parts[1:])
    path = folder / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(
        DamagedError, match=r"optimizer\.safetensors: .*delete the folder checkpoin"
    ):
        load_optimizer(folder, *parts[1:])
    with pytest.raises(DamagedError, match=r"no\.safetensors"):
        load_random_state(folder / "no.safetensors")
