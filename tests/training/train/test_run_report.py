"""The report of a run: its numbers, its pictures, and what it cannot tell any more."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from transformers import TrainerCallback
from typer.testing import CliRunner

from lamina_index.errors import FormatError
from lamina_training.commands.report import app
from lamina_training.embedding import encode_with
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.geometry import measure_geometry
from lamina_training.metrics_log import read_metrics
from lamina_training.run_report import write_run_report
from lamina_training.sts import read_sts
from lamina_training.train import TrainResult, train
from lamina_training.train_config import TrainConfig


def values_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report" / "report.json").read_text())
    return found


def pictures_of(run: Path) -> set[str]:
    return {path.name for path in (run / "report").glob("*.svg")}


@pytest.fixture(scope="module")
def trained(
    make_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TrainResult]:
    """Layer attention under learnt attention dropout: a run that has everything."""
    run = tmp_path_factory.mktemp("reported") / "run"
    config = make_config(
        pooling={"mode": "layer_attention", "strip_to": "mean"},
        attention_dropout={"kind": "attendout"},
    )
    result = train(config, run, cache=run.parent)
    write_run_report(run, cache=run.parent)
    return run, result


def test_a_run_with_everything_has_all_pictures_and_the_text_shows_each(
    trained: tuple[Path, TrainResult],
) -> None:
    run, _ = trained
    expected = {"loss.svg", "dev_sts.svg", "drop_rates.svg", "layer_weights.svg", "spectrum.svg"}
    assert pictures_of(run) == expected
    text = (run / "report" / "report.md").read_text()
    for name in expected:
        assert text.count(f"]({name})") == 1
        ElementTree.parse(run / "report" / name)
    assert "towards being stripped to `mean`" in text
    assert "Attention dropout `attendout`: objective adversarial" in text


def test_the_scores_are_those_of_the_log(trained: tuple[Path, TrainResult]) -> None:
    run, result = trained
    scores = {
        m["step"]: m["dev_sts"] for m in read_metrics(run / "metrics.jsonl") if "dev_sts" in m
    }
    values = values_of(run)
    assert values["dev"] == {
        "before": {"step": 0, "sts": scores[0]},
        "best": {"step": result.best_step, "sts": result.score},
        "last": {"step": 8, "sts": scores[8]},
    }
    assert (values["finished"], values["last_step"], values["score_name"]) == (True, 8, "sts")
    assert values["data_sha256"].keys() == {"triplets.tsv", "sts.tsv"}
    assert (
        f"best Spearman x 100 {result.score:.4g} at step {result.best_step}"
        in (run / "report" / "report.md").read_text()
    )


def test_layers_and_space_are_measured_on_the_dev_texts_by_the_best_weights(
    trained: tuple[Path, TrainResult], data: Path
) -> None:
    run, _ = trained
    values = values_of(run)
    layers = values["layer_weights"]
    pairs = read_sts(data / "sts.tsv")
    assert layers["texts"] == values["geometry"]["texts"] == len({*pairs.first, *pairs.second})
    assert len(layers["mean"]) == 3  # of two layers and the embedding layer
    assert sum(layers["mean"]) == pytest.approx(1)
    model = load_encoder(find_encoder(str(run), cache=run.parent))
    expected = measure_geometry(encode_with(model), pairs)
    found = values["geometry"]["after"]
    assert found["alignment"] == pytest.approx(expected.alignment, rel=1e-5)
    np.testing.assert_allclose(found["singular_values"], expected.singular_values, atol=1e-6)
    assert values["geometry"]["before"]["uniformity"] != pytest.approx(found["uniformity"])


def test_writing_it_again_gives_the_same_files_and_removes_old_pictures(
    trained: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (run / "report").iterdir()}
    (run / "report" / "of_an_older_version.svg").write_text("<svg/>")
    done = CliRunner().invoke(app, [str(run), "--cache", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(run / "report" / "report.md")
    assert {path.name: path.read_bytes() for path in (run / "report").iterdir()} == before


@pytest.mark.parametrize("start", [-100.0, 100.5])
def test_a_run_that_gained_nothing_says_so(
    start: float, trained: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    first, *rest = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    changed = json.dumps({**json.loads(first), "dev_sts": start}) + "\n"
    (run / "metrics.jsonl").write_text(changed + "".join(rest))
    write_run_report(run, cache=tmp_path)
    said = "**No evaluation beat the score before training.**"
    assert (said in (run / "report" / "report.md").read_text()) == (start > 100)
    assert values_of(run)["dev"]["best"]["step"] > 0


@pytest.fixture
def broken_off(
    make_config: Callable[..., TrainConfig],
    interrupt_at: Callable[[int], TrainerCallback],
    interrupted: type[Exception],
    tmp_path: Path,
) -> Callable[[int], Path]:
    """A run that ended in a step, reported."""

    def run_until(step: int) -> Path:
        with pytest.raises(interrupted):
            train(make_config(), tmp_path / "run", cache=tmp_path, callbacks=[interrupt_at(step)])
        write_run_report(tmp_path / "run", cache=tmp_path)
        return tmp_path / "run"

    return run_until


def test_a_run_that_was_broken_off_is_reported_by_its_best_checkpoint(
    broken_off: Callable[[int], Path], data: Path
) -> None:
    run = broken_off(6)
    values = values_of(run)
    assert (values["finished"], values["last_step"]) == (False, 5)
    assert set(values["dev"]) == {"before", "best", "last"}
    assert {"before", "after"} < values["geometry"].keys()
    assert ", not finished" in (run / "report" / "report.md").read_text()
    best = values["dev"]["best"]["step"]
    model = load_encoder(find_encoder(str(run / "checkpoints" / f"checkpoint-{best}"), cache=run))
    expected = measure_geometry(encode_with(model), read_sts(data / "sts.tsv"))
    assert values["geometry"]["after"]["alignment"] == pytest.approx(expected.alignment, rel=1e-5)


def test_before_the_first_checkpoint_a_run_has_its_log_alone(
    broken_off: Callable[[int], Path],
) -> None:
    run = broken_off(2)
    assert pictures_of(run) == {"loss.svg", "dev_sts.svg"}
    values = values_of(run)
    assert set(values["dev"]) == {"before"}
    assert values["notes"] == ["embeddings not measured: there is no checkpoint yet"]


def test_a_classifier_has_loss_score_and_drop_rates(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = make_config(
        "classification", score="matthews", attention_dropout={"kind": "scheduled_bernoulli"}
    )
    train(config, run, cache=tmp_path)
    write_run_report(run, cache=tmp_path)
    assert pictures_of(run) == {"loss.svg", "dev_matthews.svg", "drop_rates.svg"}
    values = values_of(run)
    assert values["dev"]["best"].keys() == {"step", "loss", "accuracy", "matthews", "f1"}
    assert values["geometry"] is values["layer_weights"] is None
    assert values["notes"] == []
    rates = values["attention_dropout"]["drop_probability"]
    assert rates["first"]["value"] == pytest.approx([0.1, 0.1], abs=0.05)


def test_without_dev_data_only_the_loss_is_drawn(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(make_config(dev={"sts": None}, run={"steps": 2}), run, cache=tmp_path)
    write_run_report(run, cache=tmp_path)
    assert pictures_of(run) == {"loss.svg"}
    assert values_of(run)["dev"] is None
    assert "Nothing was measured" in (run / "report" / "report.md").read_text()


def test_data_that_moved_are_looked_for_where_the_user_says(
    trained: tuple[Path, TrainResult], data: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    facts["config"]["data"]["folder"] = str(tmp_path / "gone")
    (run / "run.json").write_text(json.dumps(facts))
    write_run_report(run, cache=tmp_path)
    values = values_of(run)
    assert "sts.tsv: data that the run is measured on cannot be read" in values["notes"][0]
    assert values["geometry"] is None
    assert pictures_of(run) == {"loss.svg", "dev_sts.svg", "drop_rates.svg"}
    write_run_report(run, cache=tmp_path, data=data)
    assert values_of(run)["notes"] == []
    assert values_of(run)["geometry"] == values_of(trained[0])["geometry"]


def test_other_data_than_the_run_was_measured_on_are_not_taken(
    trained: tuple[Path, TrainResult], data: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    other = shutil.copytree(data, tmp_path / "data")
    with (other / "sts.tsv").open("a") as file:
        file.write("5\tthe cat sits\ta cat sits\n")
    write_run_report(run, cache=tmp_path, data=other)
    assert "not the file that the run was measured on" in values_of(run)["notes"][0]


def test_a_base_that_is_gone_leaves_out_only_the_start(
    trained: tuple[Path, TrainResult], tmp_path: Path
) -> None:
    run = shutil.copytree(trained[0], tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    facts["config"]["encoder"]["base"] = str(tmp_path / "gone")
    (run / "run.json").write_text(json.dumps(facts))
    write_run_report(run, cache=tmp_path)
    values = values_of(run)
    assert values["geometry"].keys() == {"texts", "after"}
    assert "before training not measured" in values["notes"][0]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"run\.json: no such file; name a folder"):
        write_run_report(tmp_path, cache=tmp_path)
    (tmp_path / "run.json").write_text('{"config": {}}')
    with pytest.raises(FormatError, match="has no data, processes, versions"):
        write_run_report(tmp_path, cache=tmp_path)
