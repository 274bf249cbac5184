"""A configuration in sentences; every recipe can be told, and told again from its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.run_report_words import config_in_words
from lamina_training.train_config import TrainConfig, parse_train_config, read_train_config

RECIPES = sorted((Path(__file__).parents[3] / "training" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_told_the_same_from_what_a_run_keeps_of_it(recipe: Path) -> None:
    config = read_train_config(recipe)
    told = config_in_words(config)
    assert all(sentence.endswith(".") for sentence in told)
    again = parse_train_config(config.model_dump(mode="json"), origin="run.json")
    assert config_in_words(again) == told


def test_what_differs_from_the_plainest_run_is_said(
    make_config: Callable[..., TrainConfig], base: Path
) -> None:
    source = {
        "file": "a.tsv",
        "columns": ["x", "y"],
        "where": {"source": ["snli", "mnli"]},
        "half": "even",
        "limit": 2000,
    }
    retrieval = {"queries": "q.tsv", "corpus": "c.tsv", "qrels": "r.tsv", "document_limit": 5000}
    task, data, steps, dropout, measured = config_in_words(
        make_config(
            encoder={"layers": [0, 1], "reinitialize_top": 1},
            pooling={"mode": "layer_attention", "strip_to": "mean"},
            data={"train": [source]},
            dev={"retrieval": retrieval, "score": "retrieval"},
            attention_dropout={"kind": "drop_head", "rate": 0.2},
            run={"accumulate": 2},
        )
    )
    assert task == (
        f"Contrastive training (supervised, temperature 0.05) of `{base}` (layers 0, 1 kept, "
        "upper 1 layer re-initialised), pooled by "
        "`layer_attention+cls+mlp`, towards being stripped to `mean`."
    )
    assert data == (
        "Trained on `a.tsv` (columns x, y, source snli or mnli, even half, the first 2,000 rows)."
    )
    assert steps == (
        "8 steps of 2 x 8 rows, texts cut at 16 tokens, fp32, seed 7. AdamW at 0.001, 10% warm-up, "
        "then linear, weight decay 0."
    )
    assert dropout == "Attention dropout `drop_head`: rate 0.2."
    assert measured == (
        "Measured every 2 steps: Spearman x 100 on `sts.tsv` and MRR@10 on `c.tsv` (at most 5,000 "
        "documents); MRR@10 chose the checkpoint."
    )
