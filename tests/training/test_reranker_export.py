"""A sequence classifier becomes a reranker folder that scores pairs as torch does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from lamina_index.cli import main
from lamina_index.errors import LaminaError
from lamina_index.manifest import RerankerManifest
from lamina_index.reranker import OnnxReranker
from lamina_training.encoder_folder import EncoderFolderError
from lamina_training.reranker_export import export_reranker
from lamina_training.source import ExportError

pytestmark = pytest.mark.usefixtures("small_grid")

PAIRS = [
    ("how to cook", "learn to cook in the house"),
    ("the cat", "a dog runs"),
    ("why ?", "slow"),
]
LONG = ("the cat", "a red house on a tree . " * 30)


@pytest.fixture(scope="module")
def classifier(make_tiny_bert: Callable[..., Path], tmp_path_factory: Any) -> Callable[..., Path]:
    """`classifier(classes, **config)`: a tiny cross-encoder with random weights, as a hub has."""
    base = make_tiny_bert(tmp_path_factory.mktemp("base") / "bert")

    def make(classes: int, **changes: Any) -> Path:
        folder = tmp_path_factory.mktemp("classifier") / "cross"
        shutil.copytree(base, folder)
        config = AutoConfig.from_pretrained(base, num_labels=classes, **changes)
        torch.manual_seed(classes)
        AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
        (folder / "README.md").write_text("---\nlicense: mit\nlanguage: en\n---\n")
        return folder

    return make


def export(folder: Path, target: Path, **options: Any) -> OnnxReranker:
    export_reranker(str(folder), target, cache=target.parent, command="lamina export", **options)
    return OnnxReranker.load(target, threads=1)


def logits(folder: Path, pairs: list[tuple[str, str]], **cut: Any) -> torch.Tensor:
    """What transformers says of each pair, alone; (N, C)."""
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        rows = [
            model(**tokenizer(*pair, return_tensors="pt", truncation=True, **cut)).logits[0]
            for pair in pairs
        ]
    return torch.stack(rows)


def scores(reranker: OnnxReranker, pairs: list[tuple[str, str]]) -> np.ndarray[Any, Any]:
    return np.array([reranker.score(query, [text]).scores[0] for query, text in pairs])


@pytest.fixture(scope="module")
def one_output(classifier: Callable[..., Path]) -> Path:
    return classifier(1)


@pytest.fixture(scope="module")
def reranker(one_output: Path, tmp_path_factory: pytest.TempPathFactory) -> OnnxReranker:
    return export(one_output, tmp_path_factory.mktemp("export") / "out", max_tokens=24)


def test_one_output_is_the_score_as_it_is(one_output: Path, reranker: OnnxReranker) -> None:
    expected = logits(one_output, PAIRS)[:, 0]
    np.testing.assert_allclose(scores(reranker, PAIRS), expected, atol=1e-4)
    manifest = reranker.manifest
    assert (manifest.relevant_label, manifest.license, manifest.max_tokens) == (None, "mit", 24)
    assert manifest.inputs == ["input_ids", "attention_mask", "token_type_ids"]
    assert manifest.parity["fp32"]["max_absolute_difference"] <= 1e-4
    assert str(one_output.parent) not in manifest.model_dump_json()
    card = (reranker.folder / "README.md").read_text()
    assert "the model's output" in card
    assert card.startswith("---\nlicense: mit\n")


def test_of_classes_the_score_is_the_log_odds_of_the_relevant_one(
    classifier: Callable[..., Path], tmp_path: Path
) -> None:
    folder = classifier(3)
    reranker = export(folder, tmp_path / "out", relevant_label="LABEL_1")
    probability = logits(folder, PAIRS).softmax(dim=1)[:, 1]
    np.testing.assert_allclose(scores(reranker, PAIRS), torch.logit(probability), atol=1e-4)
    assert reranker.manifest.relevant_label == "LABEL_1"


def test_long_pairs_are_cut_where_transformers_cuts_them(
    one_output: Path, reranker: OnnxReranker
) -> None:
    query, text = LONG
    found = reranker.score(query, [text])
    expected = logits(one_output, [LONG], max_length=24)[0, 0]
    assert found.scores[0] == pytest.approx(float(expected), abs=1e-4)
    assert found.truncated.tolist() == [True]


def test_batch_mates_do_not_change_a_score(reranker: OnnxReranker) -> None:
    texts = [" ".join(["red", "house", "tree", "cat"][n % 4 :] * n) for n in range(1, 40)]
    alone = [reranker.score("the cat", [text]).scores[0] for text in texts]
    np.testing.assert_allclose(reranker.score("the cat", texts).scores, alone, atol=1e-4)


def test_a_model_without_segments_gets_none(
    classifier: Callable[..., Path], tmp_path: Path
) -> None:
    folder = classifier(1, type_vocab_size=1)
    reranker = export(folder, tmp_path / "out")
    assert reranker.manifest.inputs == ["input_ids", "attention_mask"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    packed = tokenizer(*PAIRS[0], return_tensors="pt", return_token_type_ids=False)
    with torch.inference_mode():
        expected = float(model(**packed).logits[0, 0])
    assert scores(reranker, PAIRS[:1])[0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("classes", "options", "message"),
    [
        (2, {}, "classes LABEL_0, LABEL_1; say by --relevant-label"),
        (2, {"relevant_label": "yes"}, "--relevant-label yes: expected one of LABEL_0, LABEL_1"),
        (1, {"relevant_label": "yes"}, "one output and no classes; leave --relevant-label out"),
        (1, {"max_tokens": 513}, "--max-tokens 513; expected more than 4 and at most 512"),
        (1, {"max_tokens": 3}, "--max-tokens 3; expected"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    classifier: Callable[..., Path],
    tmp_path: Path,
    classes: int,
    options: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ExportError, match=message):
        export(classifier(classes), tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_an_encoder_is_no_cross_encoder(tiny_source: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="architecture BertModel; a reranker is"):
        export(tiny_source, tmp_path / "out")


def test_a_model_whose_head_is_missing_is_refused(
    classifier: Callable[..., Path], tiny_source: Path, tmp_path: Path
) -> None:
    folder = classifier(1)
    headless = (tiny_source / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(headless)
    with pytest.raises(ExportError, match=r"its weights lack .*which would be random"):
        export(folder, tmp_path / "out")


def test_code_of_its_own_and_pickled_weights_are_refused(
    classifier: Callable[..., Path], tmp_path: Path
) -> None:
    folder = classifier(1)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(EncoderFolderError, match="code of its own"):
        export(folder, tmp_path / "out")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(EncoderFolderError, match=r"no model\.safetensors"):
        export(folder, tmp_path / "out")


def test_a_graph_that_disagrees_with_torch_is_not_exported(
    classifier: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_training.agreement.MAX_ABSOLUTE_DIFFERENCE", 0.0)
    with pytest.raises(ExportError, match=r"torch and ONNX differ by .* not exported"):
        export(classifier(1), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_tokenizer_file_that_packs_otherwise_is_refused(
    classifier: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = "lamina_training.reranker_source.plain_tokenizer"

    def without_segments(folder: Path, tokenizer: Any) -> str:
        packing = json.loads(tokenizer.backend_tokenizer.to_str()) | {"post_processor": None}
        packing |= {"truncation": None, "padding": None}
        return json.dumps(packing)

    monkeypatch.setattr(plain, without_segments)
    with pytest.raises(ExportError, match="packs a pair into other input_ids"):
        export(classifier(1), tmp_path / "out")


def test_the_command_exports_and_refuses_what_is_for_encoders(
    classifier: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, target = classifier(2), tmp_path / "out"
    command = ["export", str(folder), str(target), "--reranker", "--relevant-label", "LABEL_1"]
    assert main([*command, "--precision", "int8"]) == 2
    assert "--precision: for encoders" in " ".join(capsys.readouterr().err.split())
    assert main(["export", str(folder), str(target), "--max-tokens", "9"]) == 2
    assert main([*command, "--name", "mine", "--max-tokens", "64"]) == 0
    told = capsys.readouterr().out
    assert "mine, score: log-odds of LABEL_1, 64 tokens a pair" in told
    manifest = RerankerManifest.read(target / "reranker.json")
    options = "--reranker --relevant-label LABEL_1 --max-tokens 64 --name mine"
    assert manifest.provenance["command"] == f"lamina export cross OUT {options}"
    assert main(command) == 1
    assert "exists; export to a new folder" in capsys.readouterr().err


def test_a_missing_folder_is_an_error_that_can_be_mended(tmp_path: Path) -> None:
    with pytest.raises(LaminaError):
        export(tmp_path / "nothing", tmp_path / "out")
