"""An export of a run with attention over layers tells what keeping it gains and costs."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.cli import main
from lamina_index.encoder import OnnxEncoder
from lamina_index.errors import LaminaError
from lamina_index.manifest import EncoderManifest, Prompts
from lamina_training import export_forms
from lamina_training.dev_retrieval import score_retrieval
from lamina_training.encoder_graphs import open_graph
from lamina_training.export import export_encoder
from lamina_training.export_forms import FormGraph, dev_to_compare, measure_forms, other_forms
from lamina_training.known_items import KnownItems
from lamina_training.run_folder import read_json
from lamina_training.source import load_source
from lamina_training.sts import read_sts, score_sts
from lamina_training.train import train
from lamina_training.train_config import TrainConfig

pytestmark = pytest.mark.usefixtures("small_grid")


@pytest.fixture(scope="module")
def search_files(data: Path) -> dict[str, Any]:
    """Each anchor of the triplets asks for its positive; all positives are the corpus."""
    rows = [line.split("\t") for line in (data / "triplets.tsv").read_text().splitlines()[1:]]
    tables = {
        "queries": ["id\ttext\tsplit", *(f"q{n}\t{row[0]}\tdev" for n, row in enumerate(rows))],
        "corpus": ["id\ttext", *(f"d{n}\t{row[1]}" for n, row in enumerate(rows))],
        "qrels": ["query\tdocument\tsplit", *(f"q{n}\td{n}\tdev" for n, _ in enumerate(rows))],
    }
    for name, lines in tables.items():
        (data / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return {name: f"{name}.tsv" for name in tables}


@pytest.fixture(scope="module")
def run(
    make_config: Callable[..., TrainConfig],
    search_files: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("forms") / "run"
    config = make_config(
        pooling={"mode": "layer_attention", "strip_to": "mean"},
        dev={"retrieval": search_files, "score": "sts"},
        run={"steps": 4},
        optimizer={"learning_rate": 0.01},
    )
    train(config, folder, cache=folder.parent)
    return folder


def export(run: Path, target: Path, *options: str) -> str:
    """What the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["export", str(run), str(target), *options]) == 0
    return printed.getvalue()


@pytest.fixture(scope="module")
def stripped(run: Path, items: KnownItems) -> Path:
    """Both precisions for CPUs."""
    target = run.parent / "stripped"
    export_encoder(
        str(run),
        target,
        precisions=["fp32", "int8"],
        with_weights=False,
        cache=target.parent,
        strip="mean",
        command="lamina export run OUT --strip mean",
        items=items,
        dev=dev_to_compare(str(run), None),
    )
    return target


def forms_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = EncoderManifest.read(folder / "encoder.json").parity["forms"]
    return found


def test_both_forms_are_measured_in_each_precision_for_cpus(stripped: Path) -> None:
    rows = forms_of(stripped)["rows"]
    assert [(row["form"], row["precision"]) for row in rows] == [
        *(("stripped to mean", precision) for precision in ("fp32", "int8")),
        *(("kept", precision) for precision in ("fp32", "int8")),
    ]
    card = (stripped / "README.md").read_text()
    for row in rows:
        assert row["milliseconds"] > 0
        assert f"| {row['form']} | {row['precision']} | {row['sts']:.4f} | " in card
    assert "32 scored pairs and 32 queries and 32 documents" in card


def test_the_kept_scores_are_those_of_the_best_checkpoint_in_training(
    run: Path, stripped: Path
) -> None:
    rows = forms_of(stripped)["rows"]
    kept = next(row for row in rows if (row["form"], row["precision"]) == ("kept", "fp32"))
    assert kept["sts"] == pytest.approx(read_json(run / "result.json")["score"], abs=1e-3)


def test_the_exported_forms_scores_and_bytes_are_those_of_the_folder(
    run: Path, data: Path, stripped: Path
) -> None:
    dev = dev_to_compare(str(run), None)
    assert dev is not None
    assert dev.retrieval is not None
    for row in forms_of(stripped)["rows"][:2]:
        encoder = OnnxEncoder.load(stripped, precision=row["precision"])

        def encode(texts: Any, encoder: OnnxEncoder = encoder) -> Any:
            return encoder.encode(texts, role="document").embeddings

        scores = score_sts(encode, {"dev": read_sts(data / "sts.tsv")})
        assert row["sts"] == pytest.approx(scores["dev"].all, abs=1e-3)
        found = score_retrieval(encode, dev.retrieval)
        assert row["retrieval"] == pytest.approx(found.mrr, abs=1e-3)
        assert row["size_bytes"] == encoder.size_bytes


def test_another_strip_than_training_aimed_at_is_compared_with_both(
    run: Path, tmp_path: Path
) -> None:
    printed = export(run, tmp_path / "cls", "--strip", "cls", "--precision", "fp32")
    rows = forms_of(tmp_path / "cls")["rows"]
    assert [row["form"] for row in rows] == ["stripped to cls", "kept", "stripped to mean"]
    assert len({row["sts"] for row in rows}) == 3
    assert rows[1]["size_bytes"] > rows[0]["size_bytes"]  # the pooling's own weights
    for row in rows:
        assert f"  {row['form']}, fp32: sts {row['sts']:.4f}, retrieval " in printed
    assert "stripped to cls, though it was trained towards mean" in printed


@pytest.mark.parametrize(
    ("exported", "others"),
    [
        ({"keep_attention": True}, [{"strip": "mean"}]),
        ({"strip": "mean"}, [{"keep_attention": True}]),
        ({"strip": "cls"}, [{"keep_attention": True}, {"strip": "mean"}]),
    ],
    ids=str,
)
def test_the_other_forms_are_kept_and_what_training_aimed_at(
    run: Path, exported: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    ending = load_source(str(run), cache=run, **exported).ending
    assert other_forms(ending) == others


def test_a_fixed_pooling_has_no_other_form(tiny_source: Path) -> None:
    assert other_forms(load_source(str(tiny_source), cache=tiny_source).ending) == []


def test_a_large_corpus_is_sampled_and_the_size_is_told(
    run: Path, stripped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_forms, "MOST_QUERIES", 5)
    monkeypatch.setattr(export_forms, "MOST_DOCUMENTS", 9)
    source = load_source(str(run), cache=run, strip="mean")
    graph = FormGraph("stripped to mean", "fp32", 1, open_graph(stripped, source, "fp32"))
    dev = dev_to_compare(str(run), None)
    assert dev is not None
    found = measure_forms([graph], dev, prompts=Prompts())
    assert found["scored"] == {"sts_pairs": 32, "queries": 5, "documents": 9}
    assert found["rows"][0]["sts"] == forms_of(stripped)["rows"][0]["sts"]


def test_the_comparison_can_be_left_out_and_changes_no_vector(
    run: Path, stripped: Path, tmp_path: Path
) -> None:
    options = ("--strip", "mean", "--precision", "fp32", "--no-compare")
    assert "compared" not in export(run, tmp_path / "plain", *options)
    found = EncoderManifest.read(tmp_path / "plain" / "encoder.json")
    reference = EncoderManifest.read(stripped / "encoder.json")
    assert "forms" not in found.parity
    assert found.precisions["fp32"].fingerprint == reference.precisions["fp32"].fingerprint


def test_data_that_moved_do_not_stop_the_export_and_can_be_named(
    run: Path, data: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(run, tmp_path / "run")
    facts = json.loads((moved / "run.json").read_text())
    facts["config"]["data"]["folder"] = str(tmp_path / "gone")
    (moved / "run.json").write_text(json.dumps(facts))
    printed = export(moved, tmp_path / "out", "--strip", "mean", "--precision", "fp32")
    assert "not compared with none: " in printed
    assert "name their folder with --data" in printed
    assert "forms" not in EncoderManifest.read(tmp_path / "out" / "encoder.json").parity
    found = dev_to_compare(str(moved), data)
    assert found is not None
    assert found.retrieval is not None


def test_what_has_no_attention_or_no_dev_data_is_not_compared(
    make_config: Callable[..., TrainConfig], base: Path, tmp_path: Path
) -> None:
    assert dev_to_compare(str(base), None) is None
    train(make_config(run={"steps": 1}), tmp_path / "mean", cache=tmp_path)
    assert dev_to_compare(str(tmp_path / "mean"), None) is None
    config = make_config(pooling={"mode": "layer_attention"}, dev={"sts": None}, run={"steps": 1})
    train(config, tmp_path / "unmeasured", cache=tmp_path)
    with pytest.raises(LaminaError, match="names no dev data"):
        dev_to_compare(str(tmp_path / "unmeasured"), None)
