"""A run leaves the best weights, its log and its checkpoints, and stops before it can harm them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from transformers import TrainerCallback

from lamina_index.errors import LaminaError, ResumeError, StorageFullError
from lamina_index.manifest import sha256_file
from lamina_training import train as train_module
from lamina_training.attention_dropout import write_rate_table
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.metrics_log import read_metrics
from lamina_training.run_folder import RunExistsError
from lamina_training.run_trainer import DivergedError
from lamina_training.sts import read_sts
from lamina_training.train import TrainResult, train
from lamina_training.train_config import TrainConfig

SAFE = {".json", ".jsonl", ".safetensors", ".txt"}


def replay(table: Path) -> dict[str, Any]:
    """Attention dropout by a table of rates."""
    return {"kind": "scheduled_bernoulli", "table": str(table)}


@pytest.fixture(scope="module")
def run(
    make_config: Callable[..., TrainConfig], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, TrainResult]:
    folder = tmp_path_factory.mktemp("run") / "run"
    return folder, train(make_config(), folder, cache=folder.parent)


def test_the_folder_is_a_sentence_transformers_directory_with_the_best_score(
    run: tuple[Path, TrainResult], data: Path
) -> None:
    folder, result = run
    pairs = read_sts(data / "sts.tsv")
    evaluator = EmbeddingSimilarityEvaluator(list(pairs.first), list(pairs.second), pairs.gold)
    model = load_encoder(find_encoder(str(folder), cache=folder.parent))
    assert result.score_name == "sts"
    assert result.score == pytest.approx(100 * evaluator(model)["spearman_cosine"], abs=1e-3)
    written = json.loads((folder / "result.json").read_text())
    assert (written["best_step"], written["score"]) == (result.best_step, result.score)


def test_the_best_checkpoint_is_the_one_with_the_highest_dev_score(
    run: tuple[Path, TrainResult],
) -> None:
    folder, result = run
    scores = {
        m["step"]: m["dev_sts"] for m in read_metrics(folder / "metrics.jsonl") if "dev_sts" in m
    }
    assert set(scores) == {0, 2, 4, 6, 8}
    after = {step: score for step, score in scores.items() if step}
    assert result.score == max(after.values())
    assert after[result.best_step] == result.score
    best = load_file(folder / "checkpoints" / f"checkpoint-{result.best_step}/model.safetensors")
    assert all(torch.equal(best[n], t) for n, t in load_file(folder / "model.safetensors").items())


def test_training_lowers_the_loss_and_logs_each_step(run: tuple[Path, TrainResult]) -> None:
    losses = [m for m in read_metrics(run[0] / "metrics.jsonl") if "loss" in m]
    assert [line["step"] for line in losses] == list(range(1, 9))
    assert losses[-1]["loss"] < losses[0]["loss"]
    assert losses[0].keys() == {"step", "seconds", "loss", "learning_rate", "gradient_norm"}


def test_nothing_in_the_folder_is_a_pickle(run: tuple[Path, TrainResult]) -> None:
    files = [path for path in run[0].rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= SAFE
    names = {path.name.partition("-")[0] for path in (run[0] / "checkpoints").iterdir()}
    assert names == {"checkpoint"}


def test_run_json_tells_configuration_data_and_versions(run: tuple[Path, TrainResult]) -> None:
    facts = json.loads((run[0] / "run.json").read_text())
    assert facts["config"]["seed"] == 7
    assert set(facts["data"]) == {"triplets.tsv", "sts.tsv"}
    assert facts["versions"]["torch"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= facts["inputs"]["base"].keys()
    weights = Path(facts["config"]["encoder"]["base"], "model.safetensors")
    assert facts["inputs"]["base"]["model.safetensors"] == sha256_file(weights)


@pytest.mark.parametrize(
    "tables",
    [
        {"contrastive": {"mini_batch_size": 2}},
        {"contrastive": {"scheme": "hybrid"}},
        {"pooling": {"mode": "layer_attention"}},
        {"run": {"precision": "bf16"}},
        {"run": {"accumulate": 2}},
        {"encoder": {"reinitialize_top": 1}},
        {"attention_dropout": {"kind": "scheduled_bernoulli"}},
        {"attention_dropout": {"kind": "attendout"}},
        {"attention_dropout": {"kind": "layer_drop"}},
        {"dev": {"sts": None}},
    ],
    ids=str,
)
def test_every_choice_trains(
    tables: dict[str, Any], make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    tables = {**tables, "run": {"steps": 2, "epochs": None, **tables.get("run", {})}}
    result = train(make_config(**tables), tmp_path / "run", cache=tmp_path)
    assert result.steps == 2
    assert (tmp_path / "run" / "modules.json").is_file()
    text = (tmp_path / "run" / "config.json").read_text()
    assert "lamina" not in text  # attention dropout leaves no trace in what is saved


@pytest.mark.parametrize(
    ("wanted", "native", "taken"),
    [("auto", True, "bf16"), ("auto", False, "fp32"), ("bf16", False, "bf16")],
)
def test_the_precision_is_what_the_machine_computes_in_and_is_told(
    wanted: str,
    native: bool,
    taken: str,
    make_config: Callable[..., TrainConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(train_module, "computes_in_bf16", lambda *, cpu: native)
    config = make_config(run={"steps": 2, "epochs": None, "precision": wanted})
    train(config, tmp_path / "run", cache=tmp_path)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["config"]["run"]["precision"] == taken
    emulated = taken == "bf16" and not native
    assert any("emulates" in record.message for record in caplog.records) == emulated


@pytest.mark.parametrize(
    ("task", "tables"),
    [("classification", {}), ("distil", {"distil": {"similarity_weight": 0.0}})],
    ids=str,
)
def test_two_accumulated_batches_are_one_of_twice_the_size(
    task: str,
    tables: dict[str, Any],
    settings: Callable[..., dict[str, Any]],
    make_config: Callable[..., TrainConfig],
    calm_base: Path,
    tmp_path: Path,
) -> None:
    rows = 64 if task == "distil" else 32  # all of them, so that the order does not matter
    lines = []
    for accumulate in (1, 2):
        run = {"steps": 1, "batch_size": rows // accumulate, "accumulate": accumulate}
        encoder = {"base": str(calm_base), "reinitialize_top": 1}
        config = make_config(task, encoder=encoder, run=run, **tables)
        folder = tmp_path / f"run-{accumulate}"
        train(config, folder, cache=tmp_path)
        lines.append(next(m for m in read_metrics(folder / "metrics.jsonl") if "loss" in m))
    assert lines[0]["loss"] == pytest.approx(lines[1]["loss"], rel=1e-5)
    assert lines[0]["gradient_norm"] == pytest.approx(lines[1]["gradient_norm"], rel=1e-4)


def test_sources_with_other_columns_train_together(
    settings: Callable[..., dict[str, Any]],
    make_config: Callable[..., TrainConfig],
    tmp_path: Path,
) -> None:
    triplets = settings()["data"]["train"][0]
    pairs = {**triplets, "columns": ["anchor", "positive"]}
    config = make_config(data={"train": [triplets, pairs]})
    assert train(config, tmp_path / "run", cache=tmp_path).steps == 8


def test_drop_rates_of_each_layer_are_logged(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config(attention_dropout={"kind": "attendout"})
    train(config, tmp_path / "run", cache=tmp_path)
    line = next(m for m in read_metrics(tmp_path / "run" / "metrics.jsonl") if "loss" in m)
    assert line["drop_probability"] == pytest.approx([0.1, 0.1], abs=0.03)
    assert len(line["guarded"]) == 2
    table = tmp_path / "run" / "metrics.jsonl"
    noted = [m["drop_probability"] for m in read_metrics(table) if "drop_probability" in m]
    assert len(noted) > 1
    replayed = make_config(attention_dropout={"kind": "scheduled_bernoulli", "table": str(table)})
    train(replayed, tmp_path / "replayed", cache=tmp_path)
    again = read_metrics(tmp_path / "replayed" / "metrics.jsonl")
    assert next(m["drop_probability"] for m in again if "drop_probability" in m) == noted[0]


def test_generators_are_a_group_with_their_own_rate_and_learn_after_the_warm_up(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config(attention_dropout={"kind": "attendout", "learning_rate": 0.02})
    seen: dict[str, Any] = {}

    class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
        def on_train_begin(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
            seen["rates"] = [group["initial_lr"] for group in optimizer.param_groups]
            seen["weights"] = optimizer.param_groups[-1]["params"]
            seen["before"] = [p.detach().clone() for p in seen["weights"]]

    train(config, tmp_path / "run", cache=tmp_path, callbacks=[Watch()])
    assert seen["rates"] == [1e-3, 1e-3, 0.02]
    changed = [not torch.equal(a, b) for a, b in zip(seen["before"], seen["weights"], strict=True)]
    assert all(changed)
    saved = load_file(tmp_path / "run/checkpoints/checkpoint-8/training_only.safetensors")
    assert sum(t.numel() for t in saved.values()) == sum(p.numel() for p in seen["weights"])
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert not any("generator" in name or "dropout" in name for name in model)


def test_the_budget_pulls_the_drop_rates_to_its_target(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    reached = []
    for target in (0.05, 0.6):
        table = {"kind": "attendout", "initial": 0.3, "target": target, "warmup": 0.0}
        table |= {"learning_rate": 0.1, "budget_weight": 1000.0}
        run = tmp_path / f"run-{target}"
        train(make_config(attention_dropout=table), run, cache=tmp_path)
        lines = [m for m in read_metrics(run / "metrics.jsonl") if "loss" in m]
        assert lines[0]["loss"] < 10  # the log tells the task's loss alone
        reached.append(lines[-1]["drop_probability"])
    assert max(reached[0]) < 0.3 < min(reached[1])


@pytest.mark.parametrize("task", ["contrastive", "classification"])
def test_gradients_of_the_generators_do_not_pile_up(
    task: str, make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config(task, attention_dropout={"kind": "attendout", "warmup": 0.0})
    left: list[bool] = []

    class Watch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
        def on_step_begin(self, *args: Any, optimizer: Any, **kwargs: Any) -> None:
            left.extend(p.grad is not None for p in optimizer.param_groups[-1]["params"])

    train(config, tmp_path / "run", cache=tmp_path, callbacks=[Watch()])
    assert len(left) == 8 * 6
    assert not any(left)


def test_a_loss_that_is_not_finite_stops_before_the_weights_and_keeps_the_last_checkpoint(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    class Poison(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
        def on_step_begin(self, args: Any, state: Any, *rest: Any, model: Any, **more: Any) -> None:
            if state.global_step == 4:
                next(model.parameters()).data.fill_(float("nan"))

    with pytest.raises(DivergedError, match=r"step 5: the loss is nan; .*lower learning rate"):
        train(make_config(), tmp_path / "run", cache=tmp_path, callbacks=[Poison()])
    folders = sorted(path.name for path in (tmp_path / "run/checkpoints").glob("checkpoint-*"))
    assert folders[-1] == "checkpoint-4"
    weights = load_file(tmp_path / "run/checkpoints/checkpoint-4/model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_full_disk_is_told_and_leaves_whole_checkpoints_only(
    make_config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*args: Any, **options: Any) -> None:  # what a full tmpfs makes of it
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    class Fill(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
        def on_step_begin(self, args: Any, state: Any, *rest: Any, **more: Any) -> None:
            if state.global_step == 2:
                monkeypatch.setattr("lamina_training.training_state.save_file", write)

    with pytest.raises(StorageFullError, match=r"run: no space left .*continue with --resume"):
        train(make_config(), tmp_path / "run", cache=tmp_path, callbacks=[Fill()])
    folders = [path.name for path in (tmp_path / "run/checkpoints").glob("checkpoint-*")]
    assert folders == ["checkpoint-2"]


def test_a_folder_in_use_is_not_trained_over(
    run: tuple[Path, TrainResult], make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    with pytest.raises(RunExistsError, match=r"exists; continue it with --resume"):
        train(make_config(), run[0], cache=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunExistsError, match=r"exists; name another one"):
        train(make_config(), tmp_path, cache=tmp_path)


def test_only_the_same_run_is_resumed(
    run: tuple[Path, TrainResult], make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    with pytest.raises(ResumeError, match=r"begun with config\.seed = 7, now it is 8"):
        train(make_config(seed=8), run[0], cache=tmp_path, resume=True)
    with pytest.raises(ResumeError, match="no run to resume"):
        train(make_config(), tmp_path / "none", cache=tmp_path, resume=True)


@pytest.mark.parametrize("made_before", [False, True])
def test_a_run_that_cannot_start_can_be_mended_and_started(
    made_before: bool, make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    if made_before:
        folder.mkdir()
    rates = tmp_path / "rates.json"
    write_rate_table(rates, [[0.1, 0.2, 0.3]])  # of three layers; the base has two
    run = {"steps": 2, "evaluate_every": 2}
    for wrong in ({"run": {"batch_size": 64}}, {"attention_dropout": replay(rates)}):
        with pytest.raises(LaminaError):
            train(make_config(**wrong), folder, cache=tmp_path)
        assert folder.exists() == made_before  # what was there before stays
        assert not list(folder.glob("*"))
    assert train(make_config(run=run), folder, cache=tmp_path).steps == 2


def test_taking_a_run_back_removes_nothing_but_its_own(
    make_config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"

    def fail(config: Any, setting: Any, callbacks: Any) -> None:
        (folder / "checkpoints").mkdir()  # as transformers' trainer makes it
        (folder / "notes.txt").write_text("of someone else")
        raise LaminaError("no")

    monkeypatch.setattr(train_module, "_make_trainer", fail)
    with pytest.raises(LaminaError, match="no"):
        train(make_config(), folder, cache=tmp_path)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_a_resumed_run_that_cannot_start_is_left_as_it_is(
    make_config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    train(make_config(run={"steps": 2}), folder, cache=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}

    def fail(config: Any, setting: Any, callbacks: Any) -> None:
        raise LaminaError("no")

    monkeypatch.setattr(train_module, "_make_trainer", fail)
    with pytest.raises(LaminaError, match="no"):
        train(make_config(run={"steps": 2}), folder, cache=tmp_path, resume=True)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"run": {"batch_size": 64}}, "32 rows give no batch of 64"),
        ({"data": {"folder": "/nowhere"}}, r"/nowhere/triplets\.tsv: cannot be read .*--data"),
        ({"dev": {"sts": {"file": "sts.tsv", "score": "gold"}}}, 'sts.tsv.*"gold"'),
        (
            {"attention_dropout": {"kind": "scheduled_bernoulli", "table": "/nowhere/rates.json"}},
            r"/nowhere/rates\.json: cannot be read \(No such file.*write_rate_table",
        ),
    ],
    ids=str,
)
def test_data_that_do_not_fit_are_told(
    tables: dict[str, Any],
    message: str,
    make_config: Callable[..., TrainConfig],
    tmp_path: Path,
) -> None:
    with pytest.raises(LaminaError, match=message):
        train(make_config(**tables), tmp_path / "run", cache=tmp_path)


def test_a_missing_column_is_told(
    settings: Callable[..., dict[str, Any]],
    make_config: Callable[..., TrainConfig],
    tmp_path: Path,
) -> None:
    source = {**settings()["data"]["train"][0], "columns": ["anchor", "answer"]}
    with pytest.raises(LaminaError, match=r'triplets\.tsv.*"answer"'):
        train(make_config(data={"train": [source]}), tmp_path / "run", cache=tmp_path)


def test_an_empty_file_is_told(make_config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("anchor\tpositive\n")
    source = {"file": "empty.tsv", "columns": ["anchor", "positive"]}
    config = make_config(data={"folder": str(tmp_path), "train": [source]}, dev={"sts": None})
    with pytest.raises(LaminaError, match=r"empty\.tsv"):
        train(config, tmp_path / "run", cache=tmp_path)


def test_the_bar_tells_loss_rate_and_time_left_on_a_terminal_only(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    for terminal in (True, False):
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=terminal, width=120)
        train(make_config(), tmp_path / f"run-{terminal}", cache=tmp_path, console=console)
        text = shown.getvalue()
        assert ("8/8" in text and "loss" in text and "steps/s" in text) == terminal
        assert bool(text) == terminal


@pytest.mark.parametrize("task", ["contrastive", "distil"])
def test_training_texts_are_cut_and_the_encoder_is_not(
    task: str, make_config: Callable[..., TrainConfig], base: Path, tmp_path: Path
) -> None:
    widths: list[int] = []

    class SeeWidths(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            def see(module: Any, given: Any) -> None:
                if module.training:
                    widths.append(given[0]["input_ids"].shape[1])

            given["model"][0].register_forward_pre_hook(see)

    config = make_config(task, encoder={"max_tokens": 4}, run={"steps": 2})
    train(config, tmp_path / "run", cache=tmp_path, callbacks=[SeeWidths()])
    assert widths
    assert set(widths) == {4}
    loaded = load_encoder(find_encoder(str(tmp_path / "run"), cache=tmp_path))
    assert loaded.max_seq_length == 512
    assert len(loaded.encode("cat " * 300, output_value="token_embeddings")) == 302
