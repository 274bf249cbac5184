"""Test sets: measured once, in the report, and nothing that they say chooses anything."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from lamina_index.errors import LaminaError
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.final_scores import FinalScores
from lamina_training.run_report import write_run_report
from lamina_training.sts import StsScore, read_sts
from lamina_training.train import train
from lamina_training.train_config import TrainConfig


def test_rows_have_both_averages_where_a_set_has_subsets() -> None:
    year = StsScore(all=60.0, wmean=70.0, subsets={"a": 80.0, "b": 50.0})
    plain = StsScore(all=90.0, wmean=90.0, subsets={"": 90.0})
    assert FinalScores({"sts12": year, "stsb": plain}, 0.25).rows() == {
        "sts12": 60.0,
        "sts12, wmean": 70.0,
        "stsb": 90.0,
        "mean of 2": 75.0,
        "mean of 2, wmean": 80.0,
        "MRR@10": 0.25,
    }
    assert FinalScores({"stsb": plain}, None).rows() == {"stsb": 90.0}


def test_scales_that_end_elsewhere_are_stretched(data: Path, tmp_path: Path) -> None:
    lines = (data / "sts.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    place = lines[0].split("\t").index("score")
    for row in rows:
        row[place] = repr(float(row[place]) * 20)
    path = tmp_path / "of_100.tsv"
    path.write_text("\n".join([lines[0], *map("\t".join, rows)]) + "\n")
    expected = read_sts(data / "sts.tsv").gold
    np.testing.assert_allclose(read_sts(path, highest=100.0).gold, expected)
    with pytest.raises(LaminaError, match="from 0 to 5"):
        read_sts(path)


@pytest.fixture
def placed(data: Path, tmp_path: Path) -> Path:
    """The tiny data with two test sets, one of them in subsets."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    lines = (folder / "sts.tsv").read_text().splitlines()
    marked = [f"{line}\t{'subset' if not n else 'ab'[n % 2]}" for n, line in enumerate(lines)]
    (folder / "years.tsv").write_text("\n".join(marked) + "\n")
    return folder


@pytest.fixture
def config(make_config: Callable[..., TrainConfig], placed: Path) -> TrainConfig:
    return make_config(
        data={"folder": str(placed)},
        test={
            "sts": {
                "all as one": {"file": "sts.tsv"},
                "years": {"file": "years.tsv", "subset": "subset"},
            }
        },
    )


def report_of(run: Path, **options: Any) -> dict[str, Any]:
    write_run_report(run, cache=run.parent, **options)
    found: dict[str, Any] = json.loads((run / "report" / "report.json").read_text())
    return found


def test_a_report_scores_the_best_weights_and_the_start_as_sentence_transformers_does(
    config: TrainConfig, placed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(config, run, cache=tmp_path)
    found = report_of(run)["test"]
    assert list(found["before"]) == list(found["after"])
    assert list(found["after"])[0::3] == ["all as one", "mean of 2"]
    pairs = read_sts(placed / "sts.tsv")
    evaluator = EmbeddingSimilarityEvaluator(pairs.first, pairs.second, pairs.gold.tolist())
    for moment, origin in (("after", str(run)), ("before", config.encoder.base)):
        model = load_encoder(find_encoder(origin, cache=tmp_path))
        scored = 100 * evaluator(model)["spearman_cosine"]
        assert found[moment]["all as one"] == pytest.approx(scored, abs=1e-3)
        assert found[moment]["years"] == pytest.approx(scored, abs=1e-3)
        assert found[moment]["years, wmean"] != found[moment]["years"]
    assert "## Test sets" in (run / "report" / "report.md").read_text()
    assert json.loads((run / "run.json").read_text())["data"].keys() >= {"sts.tsv", "years.tsv"}


def test_sets_that_are_gone_or_other_ones_leave_out_their_scores_alone(
    config: TrainConfig, placed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(config, run, cache=tmp_path)
    with (placed / "years.tsv").open("a") as file:
        file.write("\n")
    found = report_of(run)
    assert found["test"] is None
    assert found["geometry"]["after"]
    [note] = found["notes"]
    assert note.startswith("test sets not measured: ")
    assert "years.tsv: not the file that the run was measured on" in note


def test_without_dev_data_test_sets_are_measured_all_the_same(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config(dev={"sts": None}, test={"sts": {"one": {"file": "sts.tsv"}}})
    train(config, tmp_path / "run", cache=tmp_path)
    found = report_of(tmp_path / "run")
    assert found["test"]["after"].keys() == {"one"}
    assert found["geometry"] is None
    assert not found["notes"]


def test_a_set_that_cannot_be_read_is_told_before_any_training(
    config: TrainConfig, placed: Path, tmp_path: Path
) -> None:
    text = (placed / "years.tsv").read_text()
    (placed / "years.tsv").write_text(text.replace("\tsubset", "\tpart", 1))
    with pytest.raises(LaminaError, match=r"years\.tsv.*subset"):
        train(config, tmp_path / "run", cache=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_run_begun_before_there_were_test_sets_is_resumed(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config()
    run = tmp_path / "run"
    train(config, run, cache=tmp_path)
    facts = json.loads((run / "run.json").read_text())
    del facts["config"]["test"]
    del facts["config"]["dev"]["sts"]["highest"]
    (run / "run.json").write_text(json.dumps(facts))
    assert train(config, run, cache=tmp_path, resume=True).steps == config.run.steps
