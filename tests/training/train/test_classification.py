"""Classifiers learn, and are scored as everyone scores them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
sklearn_metrics = pytest.importorskip("sklearn.metrics")  # comes with sentence-transformers

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from lamina_index.errors import LaminaError
from lamina_training.classification_scores import classification_scores
from lamina_training.encoder_folder import EncoderFolderError
from lamina_training.metrics_log import read_metrics
from lamina_training.text_sources import read_labelled_data
from lamina_training.train import train
from lamina_training.train_classification import Collator, _classifier
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


def test_more_tokens_than_the_base_has_positions_are_refused(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config("classification", encoder={"max_tokens": 513})
    with pytest.raises(LaminaError, match=r"reads 512 tokens at most, asked for 513; lower"):
        train(config, tmp_path / "run", cache=tmp_path)


@pytest.fixture
def classifier_base(base: Path, tmp_path: Path) -> Callable[..., Path]:
    """The base with a head of so many labels, whose weights are all 9."""

    def make(labels: int, **settings: Any) -> Path:
        model = AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=labels, **settings
        )
        torch.nn.init.constant_(model.classifier.weight, 9.0)
        shutil.copytree(base, tmp_path / "base")
        model.save_pretrained(tmp_path / "base")
        return tmp_path / "base"

    return make


def made(
    make_config: Callable[..., TrainConfig], base: Path, *, seed: int = 7, drawn: int = 0
) -> Any:
    """A classifier of two labels, as training starts from it, after so many random numbers."""
    config = make_config("classification", encoder={"base": str(base)}, seed=seed)
    assert isinstance(config, ClassificationConfig)
    set_seed(seed)
    torch.rand(drawn)
    return _classifier(config, base.parent, ["no", "yes"])[0]


@pytest.mark.parametrize("labels", [2, 3])
def test_a_head_that_the_base_brings_is_drawn_anew(
    labels: int,
    make_config: Callable[..., TrainConfig],
    classifier_base: Callable[..., Path],
) -> None:
    base = classifier_base(labels)
    head, again, other = (
        made(make_config, base, seed=seed, drawn=drawn).classifier
        for seed, drawn in ((7, 0), (7, 3), (8, 0))
    )
    assert head.weight.shape == (2, 32)
    assert 0.1 < float(head.weight.detach().std()) < 0.3  # the base's initializer_range is 0.2
    assert not head.bias.any()
    assert torch.equal(head.weight, again.weight)
    assert not torch.equal(head.weight, other.weight)


def test_a_head_of_several_layers_is_drawn_anew_as_a_whole(
    make_config: Callable[..., TrainConfig],
    tiny_encoder: Callable[..., Any],
    base: Path,
    tmp_path: Path,
) -> None:
    model = tiny_encoder("RoBERTa", head="ForSequenceClassification", num_labels=2)
    torch.nn.init.constant_(model.classifier.dense.weight, 9.0)
    shutil.copytree(base, tmp_path / "base")
    model.save_pretrained(tmp_path / "base")
    found = made(make_config, tmp_path / "base")
    assert float(found.classifier.dense.weight.detach().abs().max()) < 1
    layer, kept = (of.roberta.encoder.layer[0].state_dict() for of in (found, model))
    assert all(torch.equal(layer[name], weight) for name, weight in kept.items())


def test_a_base_without_a_head_gets_the_one_that_transformers_draws(
    make_config: Callable[..., TrainConfig], base: Path
) -> None:
    found = made(make_config, base).state_dict()
    after = torch.get_rng_state()
    set_seed(7)
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2, dtype="float32")
    assert torch.equal(torch.get_rng_state(), after)  # so that dropout and order stay too
    assert found.keys() == plain.state_dict().keys()
    assert all(torch.equal(found[name], weight) for name, weight in plain.state_dict().items())


def test_what_a_base_was_trained_to_predict_does_not_matter(
    make_config: Callable[..., TrainConfig],
    classifier_base: Callable[..., Path],
    tmp_path: Path,
) -> None:
    base = classifier_base(1, problem_type="regression")
    config = make_config("classification", encoder={"base": str(base)}, run={"steps": 2})
    train(config, tmp_path / "run", cache=tmp_path)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert "dev_loss" in lines[0]
    written = json.loads((tmp_path / "run" / "config.json").read_text())
    assert written["problem_type"] == "single_label_classification"


def test_weights_that_do_not_fit_the_configuration_are_refused(
    make_config: Callable[..., TrainConfig], base: Path, tmp_path: Path
) -> None:
    shutil.copytree(base, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(json.dumps({**config, "intermediate_size": 48}))
    with pytest.raises(EncoderFolderError, match=r"base: bert\.encoder.* its config\.json says"):
        made(make_config, tmp_path / "base")
