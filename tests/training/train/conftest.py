"""A tiny base, small files of texts, and configurations over them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from transformers import TrainerCallback

from lamina_training.train_config import TrainConfig, parse_train_config

NOUNS = ("cat", "dog", "tree", "house")
VERBS = ("sits", "runs", "learn", "cook")
MANNERS = ("fast", "slow")

Rows = list[tuple[str, ...]]


class BrokenOffError(Exception):
    """Stands for a kill in the middle of a run."""


class InterruptAt(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Breaks off after a step, before it is logged, measured or saved."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise BrokenOffError


@pytest.fixture(scope="session")
def interrupt_at() -> Callable[[int], TrainerCallback]:
    return InterruptAt


@pytest.fixture(scope="session")
def interrupted() -> type[Exception]:
    return BrokenOffError


@pytest.fixture(scope="session")
def base(make_tiny_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with dropout, as published ones have it."""
    return make_tiny_bert(tmp_path_factory.mktemp("base") / "bert")


@pytest.fixture(scope="session")
def calm_base(
    make_tiny_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same without dropout, so that nothing is random but the order."""
    folder = make_tiny_bert(tmp_path_factory.mktemp("calm") / "bert")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 triplets, scored pairs, and texts labelled by their noun."""
    folder = tmp_path_factory.mktemp("data")
    scenes = list(itertools.product(NOUNS, VERBS, MANNERS))
    triplets: Rows = [("anchor", "positive", "hard_negative")]
    scored: Rows = [("score", "sentence1", "sentence2")]
    labelled: Rows = [("label", "sentence")]
    for place, (noun, verb, manner) in enumerate(scenes):
        other = NOUNS[(NOUNS.index(noun) + 1) % len(NOUNS)]
        anchor = f"the {noun} {verb} {manner}"
        triplets.append((anchor, f"{manner} {verb} a {noun}", f"the {other} {verb} {manner}"))
        scored.append((f"{place % 6}", anchor, f"a {other} {verb} in a house"))
        labelled.append((str(int(noun in NOUNS[:2])), anchor))
    for name, rows in {"triplets": triplets, "sts": scored, "labelled": labelled}.items():
        text = "".join("\t".join(row) + "\n" for row in rows)
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def settings(base: Path, data: Path) -> Callable[..., dict[str, Any]]:
    """Settings of a small run of a task, with some tables changed."""

    def make(task: str = "contrastive", **tables: Any) -> dict[str, Any]:
        texts = {"file": "triplets.tsv", "columns": ["anchor", "positive", "hard_negative"]}
        made: dict[str, Any] = {
            "task": task,
            "seed": 7,
            "encoder": {"base": str(base), "max_tokens": 16},
            "optimizer": {"learning_rate": 1e-3, "warmup": 0.1},
            "run": {
                "steps": 8,
                "batch_size": 8,
                "device": "cpu",
                "evaluate_every": 2,
                "log_every": 1,
            },
        }
        if task == "classification":
            labelled = {"file": "labelled.tsv", "columns": ["sentence"]}
            made["data"] = {"folder": str(data), "train": labelled, "dev": labelled}
        else:
            made["data"] = {"folder": str(data), "train": [texts]}
            made["dev"] = {"sts": {"file": "sts.tsv"}}
        if task == "distil":
            made["distil"] = {"teacher": str(base)}
        for name, table in tables.items():
            known = made.get(name)
            both = isinstance(known, dict) and isinstance(table, dict)
            made[name] = {**known, **table} if both else table  # type: ignore[dict-item]  # both
        return made

    return make


@pytest.fixture(scope="session")
def make_config(settings: Callable[..., dict[str, Any]]) -> Callable[..., TrainConfig]:
    """The same, read."""

    def make(task: str = "contrastive", **tables: Any) -> TrainConfig:
        return parse_train_config(settings(task, **tables), origin="test")

    return make
