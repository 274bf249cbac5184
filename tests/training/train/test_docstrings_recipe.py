"""Where no data set is at hand: what the script writes is what its recipe reads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.dev_scores import read_dev
from lamina_training.text_sources import read_sources
from lamina_training.train_config import ContrastiveConfig, read_train_config


def test_documentation_strings_make_pairs_and_a_task_of_other_texts(
    repository: Path, tmp_path: Path
) -> None:
    recipes = repository / "training" / "recipes"
    script = [sys.executable, recipes / "docstrings.py", tmp_path]
    made = subprocess.run(script, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    config = read_train_config(recipes / "quick_docstrings.toml", data_folder=tmp_path)
    assert isinstance(config, ContrastiveConfig)
    (pairs,) = read_sources(config.data)
    task = read_dev(config.dev, tmp_path, seed=config.seed).retrieval
    assert task is not None
    assert len(pairs) > 5 * len(task.queries) > 500
    sought = {task.documents[name] for names in task.relevant.values() for name in names}
    assert sought.isdisjoint(pairs["positive"])
    assert set(task.queries.values()).isdisjoint(pairs["anchor"])
