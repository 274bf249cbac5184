"""Classifiers learn, and are scored as everyone scores them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
sklearn_metrics = pytest.importorskip("sklearn.metrics")  # comes with sentence-transformers

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lamina_index.errors import LaminaError
from lamina_training.classification_scores import classification_scores
from lamina_training.metrics_log import read_metrics
from lamina_training.text_sources import read_labelled_data
from lamina_training.train import train
from lamina_training.train_classification import Collator
from lamina_training.train_config import ClassificationConfig, TrainConfig
from lamina_training.training_data import LabelledExample


def test_scores_are_those_of_a_table_by_hand() -> None:
    # True positives 2, false positives 1, false negatives 1, true negatives 1.
    scores = classification_scores(np.array([1, 1, 1, 0, 0]), np.array([1, 1, 0, 1, 0]))
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["f1"] == pytest.approx(4 / 6)
    assert scores["matthews"] == pytest.approx((2 * 1 - 1 * 1) / np.sqrt(3 * 3 * 2 * 2))


def test_a_classifier_that_always_says_the_same_has_no_correlation() -> None:
    assert classification_scores(np.array([1, 1]), np.array([0, 1]))["matthews"] == 0


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=20))
def test_scores_equal_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predicted, labels = np.array(pairs).T
    scores = classification_scores(predicted, labels)
    assert scores["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(labels, predicted))
    assert scores["matthews"] == pytest.approx(
        sklearn_metrics.matthews_corrcoef(labels, predicted), abs=1e-9
    )
    if max(predicted.max(), labels.max()) > 1:
        average = {"average": "macro"}
    else:
        average = {"average": "binary"}
    assert scores["f1"] == pytest.approx(
        sklearn_metrics.f1_score(labels, predicted, zero_division=0, **average)
    )


def test_a_classifier_learns_and_its_folder_is_one_of_transformers(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config("classification", run={"steps": 150, "evaluate_every": 50})
    result = train(config, tmp_path / "run", cache=tmp_path)
    assert result.score_name == "accuracy"
    assert result.score == 1.0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    logits = model(**tokenizer(["the cat sits", "the tree sits"], return_tensors="pt")).logits
    assert [model.config.id2label[i] for i in logits.argmax(-1).tolist()] == ["1", "0"]
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    measured = next(line for line in lines if "dev_accuracy" in line)
    assert {"dev_loss", "dev_matthews", "dev_f1"} <= measured.keys()


def test_each_evaluation_has_the_loss_on_the_rows_trained_on(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    few = {"file": "labelled.tsv", "columns": ["sentence"], "limit": 16}
    config = make_config(
        "classification",
        run={"steps": 10, "evaluate_every": 5},
        data={"train": few},
        training_loss=True,
    )
    assert isinstance(config, ClassificationConfig)
    train(config, tmp_path / "run", cache=tmp_path)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    measured = {line["step"]: line for line in lines if "dev_loss" in line}
    assert measured.keys() == {0, 5, 10}
    assert all("training_loss" in line for line in measured.values())
    folder = tmp_path / "run" / "checkpoints" / "checkpoint-10"
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    collate = Collator(AutoTokenizer.from_pretrained(folder), config.encoder.max_tokens)
    _, rows, _ = read_labelled_data(config.data)
    with torch.no_grad():  # row by row, without padding
        losses = [float(model(**collate([rows[n]])).loss) for n in range(len(rows))]
    assert measured[10]["training_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert measured[10]["training_loss"] != measured[10]["dev_loss"]


def test_pairs_are_read_as_pairs_and_cut_to_length(base: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [LabelledExample(("the cat", "a dog runs"), 1), LabelledExample(("why", "the"), 0)]
    batch = Collator(tokenizer, 6)(rows)
    alone = tokenizer("the cat", "a dog runs", truncation=True, max_length=6)
    assert batch["input_ids"][0].tolist() == alone["input_ids"]
    assert batch["input_ids"].shape == (2, 6)
    assert batch["attention_mask"][1].sum() < 6
    assert batch["labels"].tolist() == [1, 0]


def test_a_dev_label_that_training_lacks_is_told(
    make_config: Callable[..., TrainConfig], data: Path, tmp_path: Path
) -> None:
    (tmp_path / "dev.tsv").write_text("label\tsentence\n2\tthe cat\n")
    dev = {"file": str(tmp_path / "dev.tsv"), "columns": ["sentence"]}
    config = make_config("classification", data={"dev": dev})
    with pytest.raises(LaminaError, match=r'dev\.tsv:2: column "label" is "2"'):
        train(config, tmp_path / "run", cache=tmp_path)
