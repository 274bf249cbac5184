"""A setting that would do nothing is refused, and so is a batch too small for its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.train_config import TrainConfigError, parse_train_config

PAIRS = {"file": "triplets.tsv", "columns": ["anchor", "positive"]}
TRIPLETS = {"file": "triplets.tsv", "columns": ["anchor", "positive", "hard_negative"]}
SINGLE = {"file": "triplets.tsv", "columns": ["anchor"]}
NAMES = {"file": "names.tsv", "key": "id", "value": "text"}
ATTENDOUT = {"kind": "attendout"}
POLICY = {"kind": "attendout", "objective": "policy"}
SCHEDULED = {"kind": "scheduled_bernoulli"}


def train_on(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"train": list(sources)}


@pytest.mark.parametrize(
    ("task", "tables", "message"),
    [
        (
            "contrastive",
            {"attention_dropout": {**ATTENDOUT, "held_out": 0.3, "entropy_weight": 0}},
            "attention_dropout: entropy_weight, held_out: only objective policy has that",
        ),
        (
            "classification",
            {"attention_dropout": {**ATTENDOUT, "baseline_momentum": 0.5}},
            "attention_dropout: baseline_momentum: only objective policy",
        ),
        (
            "contrastive",
            {"attention_dropout": {**POLICY, "target": [0.3, 0.1], "budget_weight": 1}},
            "attention_dropout: target, budget_weight: only objective adversarial has that, obj",
        ),
        (
            "contrastive",
            {"attention_dropout": {**POLICY, "temperature": 1}},
            "attention_dropout: temperature: only objective adversarial",
        ),
        (
            "contrastive",
            {"attention_dropout": {**ATTENDOUT, "budget_weight": 0, "target": 0.2}},
            "attention_dropout: target: budget_weight is 0",
        ),
        (
            "contrastive",
            {"attention_dropout": {**SCHEDULED, "table": "rates.json", "ramp": 0.2}},
            "attention_dropout: ramp: a table has all rates",
        ),
        (
            "contrastive",
            {"contrastive": {"self_supervised_weight": 0.5}},
            "contrastive: self_supervised_weight: only scheme hybrid has that, scheme is super",
        ),
        (
            "contrastive",
            {"contrastive": {"hard_negative_weight": 0}, "data": train_on(PAIRS)},
            "contrastive.hard_negative_weight: only a third column holds hard negatives, data.tr",
        ),
        (
            "contrastive",
            {
                "contrastive": {"mask_duplicates": False},
                "data": train_on(TRIPLETS, {**PAIRS, "clusters": ["a", "b"]}),
            },
            "data.train.1.clusters: nothing reads them, contrastive.mask_duplicates is false",
        ),
        (
            "contrastive",
            {"data": train_on({**PAIRS, "texts": NAMES, "clusters": ["a", "b"]})},
            "data.train.0: clusters: columns hold ids, by texts; give cluster_of",
        ),
        (
            "distil",
            {"data": train_on({**PAIRS, "texts": NAMES, "cluster_of": NAMES})},
            "data.train.0.cluster_of: nothing reads them, only task contrastive",
        ),
        (
            "distil",
            {"distil": {"token_layers": [0]}},
            "distil: token_layers: token_weight is 0; raise it",
        ),
        (
            "distil",
            {"distil": {"similarity_weight": 0, "temperature": 1}},
            "distil: temperature: only similarities have one, similarity_weight is 0",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_refused_with_the_reason(
    task: str,
    tables: dict[str, Any],
    message: str,
    settings: Callable[..., dict[str, Any]],
) -> None:
    with pytest.raises(TrainConfigError) as raised:
        parse_train_config(settings(task, **tables), origin="F")
    assert str(raised.value).startswith(f"F: {message}")


@pytest.mark.parametrize(
    ("task", "tables"),
    [
        ("contrastive", {"attention_dropout": ATTENDOUT}),
        ("contrastive", {"attention_dropout": {**ATTENDOUT, "target": [0.3, 0.1]}}),
        ("contrastive", {"attention_dropout": {**POLICY, "held_out": 0.3}}),
        ("contrastive", {"attention_dropout": {**SCHEDULED, "table": "rates.json"}}),
        ("contrastive", {"contrastive": {"scheme": "hybrid", "self_supervised_weight": 0.5}}),
        ("contrastive", {"contrastive": {"hard_negative_weight": 0}}),
        (
            "contrastive",
            {
                "contrastive": {"hard_negative_weight": 0},
                "data": train_on(PAIRS, TRIPLETS),
            },
        ),
        ("contrastive", {"data": train_on({**PAIRS, "clusters": ["a", ""]})}),
        ("distil", {"distil": {"token_weight": 1, "token_layers": [0]}}),
        ("distil", {}),
        ("classification", {"attention_dropout": POLICY}),
    ],
    ids=str,
)
def test_what_does_something_is_taken_and_all_defaults_may_be_written_out(
    task: str, tables: dict[str, Any], settings: Callable[..., dict[str, Any]]
) -> None:
    config = parse_train_config(settings(task, **tables), origin="F")
    assert parse_train_config(config.model_dump(mode="json"), origin="run.json") == config


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({**PAIRS, "columns": ["anchor", "anchor"]}, "columns: found ['anchor', 'anchor']; name"),
        ({**PAIRS, "clusters": ["a"]}, "clusters: found 1 for 2 columns; name one for each"),
        ({**PAIRS, "cluster_of": NAMES}, "cluster_of: columns hold texts, not ids; give clusters"),
    ],
)
def test_columns_that_no_file_can_have_are_refused_before_any_is_read(
    source: dict[str, Any], message: str, settings: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(TrainConfigError) as raised:
        parse_train_config(settings(data=train_on(source)), origin="F")
    assert str(raised.value).startswith(f"F: data.train.0: {message}")


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"run": {"accumulate": 4}},  # each of the four batches has a loss of its own
        {"distil": {"together": True}, "data": train_on(PAIRS, SINGLE)},  # a batch has one source
    ],
    ids=str,
)
def test_batches_of_two_texts_are_refused_where_others_are_compared(
    tables: dict[str, Any], settings: Callable[..., dict[str, Any]]
) -> None:
    given = settings("distil", **tables)
    given["run"]["batch_size"] = 2
    with pytest.raises(TrainConfigError) as raised:
        parse_train_config(given, origin="F")
    assert str(raised.value) == (
        "F: run.batch_size: 2 gives batches of 2 texts, expected 3 or more, since "
        "distil.similarity_weight compares each with two others; raise the one, or set the other "
        "to 0"
    )


@pytest.mark.parametrize(
    "tables",
    [
        {"run": {"batch_size": 3}},
        {"run": {"batch_size": 2}, "distil": {"similarity_weight": 0}},
        {"run": {"batch_size": 2}, "distil": {"together": True}, "data": train_on(PAIRS)},
    ],
    ids=str,
)
def test_batches_of_three_texts_or_without_similarities_are_taken(
    tables: dict[str, Any], settings: Callable[..., dict[str, Any]]
) -> None:
    parse_train_config(settings("distil", **tables), origin="F")
