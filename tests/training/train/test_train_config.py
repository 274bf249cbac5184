"""A training file is understood whole, or refused by file and key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.attention_dropout import AttendOut
from lamina_training.text_sources import read_labelled_data
from lamina_training.train_config import (
    ClassificationConfig,
    ContrastiveConfig,
    TrainConfigError,
    parse_train_config,
    read_train_config,
)

SHORT = """
task = "contrastive"
[encoder]
base = "all-MiniLM-L6-v2"
[data]
[[data.train]]
file = "pairs.tsv"
columns = ["left", "right"]
[run]
epochs = 1.5
"""


def test_a_short_file_gives_the_defaults_of_the_paper(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(SHORT)
    config = read_train_config(tmp_path / "train.toml")
    assert isinstance(config, ContrastiveConfig)
    assert config.contrastive.temperature == 0.05
    assert config.contrastive.hard_negative_weight == 1.0
    assert config.attention_dropout.kind == "none"
    assert config.pooling.mode == "mean"
    assert config.data.train[0].columns == ("left", "right")
    assert config.run.epochs == 1.5


def test_a_data_folder_can_be_given_from_outside(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(SHORT)
    config = read_train_config(tmp_path / "train.toml", data_folder=Path("elsewhere"))
    assert config.data.folder == Path("elsewhere")


def test_attention_dropout_is_chosen_by_kind(settings: Callable[..., dict[str, Any]]) -> None:
    given = settings(attention_dropout={"kind": "attendout", "target": [0.3, 0.1]})
    config = parse_train_config(given, origin="F")
    assert config.attention_dropout == AttendOut(target=(0.3, 0.1))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"run": {"batchsize": 8}}, "F: run.batchsize: unknown key; expected one of steps, epochs"),
        ({"runs": {}}, "F: runs: unknown key; expected one of seed, encoder"),
        ({"run": {"batch_size": "x"}}, "F: run.batch_size: input should be a valid integer"),
        ({"run": {"batch_size": "x"}}, "found 'x'"),
        ({"run": {"epochs": 2}}, "F: run: give either steps or epochs"),
        ({"encoder": {"base": None}}, "F: encoder.base: input should be a valid string"),
        ({"attention_dropout": {"kind": "drop_head", "rate": 2}}, "F: attention_dropout.rate: "),
        ({"attention_dropout": {"kind": "drop_head", "p": 0}}, "attention_dropout.p: unknown key"),
        ({"attention_dropout": {"kind": "dropout"}}, "F: attention_dropout: input tag 'dropout'"),
        ({"dev": {"score": "retrieval"}}, "F: dev: score retrieval: dev.retrieval is not given"),
        ({"contrastive": {"scheme": "self_supervised"}}, "takes sources of one column"),
        ({"task": "regression"}, "F: task: found 'regression'; expected one of contrastive"),
        ({"distil": {"teacher": "x"}}, "F: distil: unknown key"),
    ],
)
def test_an_error_names_file_key_found_and_expected(
    table: dict[str, Any], message: str, settings: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(TrainConfigError) as raised:
        parse_train_config(settings(**table), origin="F")
    assert message in str(raised.value)


def test_a_missing_key_is_named(settings: Callable[..., dict[str, Any]]) -> None:
    given = settings()
    del given["data"]["train"][0]["columns"]
    with pytest.raises(TrainConfigError, match=r"^F: data\.train\.0\.columns: missing"):
        parse_train_config(given, origin="F")


def test_cached_loss_and_learned_masks_exclude_each_other(
    settings: Callable[..., dict[str, Any]],
) -> None:
    given = settings(attention_dropout={"kind": "attendout"}, contrastive={"mini_batch_size": 4})
    with pytest.raises(TrainConfigError, match="mini_batch_size: not with attention_dropout"):
        parse_train_config(given, origin="F")


def test_what_is_no_toml_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text("task = ")
    with pytest.raises(TrainConfigError, match=r"train\.toml: not a TOML file"):
        read_train_config(tmp_path / "train.toml")
    with pytest.raises(TrainConfigError, match=r"none\.toml: no such file"):
        read_train_config(tmp_path / "none.toml")


def test_a_configuration_written_as_json_reads_back_the_same(
    settings: Callable[..., dict[str, Any]],
) -> None:
    config = parse_train_config(settings(attention_dropout={"kind": "attendout"}), origin="F")
    assert parse_train_config(config.model_dump(mode="json"), origin="F") == config


RECIPES = Path(__file__).parents[3] / "training" / "recipes"


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_is_understood(recipe: Path) -> None:
    read_train_config(recipe)


@pytest.mark.parametrize(
    ("recipe", "train", "dev"),
    [
        ("cola", 8551, 1043),
        ("rte", 2490, 277),
        ("mrpc", 3647, 429),
        ("qnli", 4558, 1142),
        ("mnli", 17_660, 1_984),
    ],
)
def test_recipes_for_labels_find_their_rows_and_measure_on_others(
    recipe: str, train: int, dev: int, shared_data: Path
) -> None:
    path = RECIPES / f"{recipe}_attendout.toml"
    config = read_train_config(path, data_folder=shared_data)
    assert isinstance(config, ClassificationConfig)
    _, trained, measured = read_labelled_data(config.data)
    assert (len(trained), len(measured)) == (train, dev)
    assert "test" not in f"{config.data.train.file} {config.data.dev.file}"
    if config.data.train.file == config.data.dev.file:  # CoLA's own parts share some sentences
        assert not {row.texts for row in trained} & {row.texts for row in measured}
