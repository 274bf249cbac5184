"""Exported folders give torch's vectors, here and in other people's tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.encoder import OnnxEncoder
from lamina_index.manifest import EncoderManifest
from lamina_training.agreement import check_parity
from lamina_training.export import PROBES, export_encoder
from lamina_training.graph import GraphRunner, export_fp32
from lamina_training.source import ExportError, load_source

WORDS = ["cat", "dog", "runs", "house", "why", "cook", "zebra"]
BOUNDS = {"fp32": 1e-5, "fp16": 1e-2}


def test_vectors_are_those_of_sentence_transformers(tiny_source: Path, tiny_export: Path) -> None:
    from sentence_transformers import SentenceTransformer

    texts = ["the cat sits", "why", "a zebra runs in the house " * 30, ""]
    encoder = OnnxEncoder.load(tiny_export, precision="fp32")
    for folder in (tiny_source, tiny_export):  # the export has to load as the original does
        model = SentenceTransformer(str(folder), device="cpu")
        expected = model.encode(texts, prompt_name="query", normalize_embeddings=True)
        found = encoder.encode(texts, role="query").embeddings
        assert np.vecdot(found, expected).min() > 0.9999


def test_export_with_weights_needs_no_code_of_its_own(tiny_export: Path) -> None:
    modules = json.loads((tiny_export / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    assert all(module["type"].startswith("sentence_transformers.") for module in modules)
    assert not list(tiny_export.rglob("*.py"))
    assert not list(tiny_export.rglob("*.bin"))


def test_prompts_are_kept_and_change_the_vector(tiny_export: Path) -> None:
    encoder = OnnxEncoder.load(tiny_export, precision="fp32")
    assert encoder.manifest.prompts.model_dump() == {"query": "how : ", "document": "the : "}
    as_query = encoder.encode(["cat"], role="query").embeddings[0]
    as_document = encoder.encode(["cat"], role="document").embeddings[0]
    assert as_query @ as_document < 0.999


def test_tokenizer_neither_cuts_nor_pads(tiny_export: Path) -> None:
    tokenizer = json.loads((tiny_export / "tokenizer.json").read_text())
    assert tokenizer["truncation"] is None
    assert tokenizer["padding"] is None


@pytest.mark.parametrize(
    "mode", ["cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
)
def test_every_pooling_agrees_with_torch(
    mode: str, tmp_path: Path, make_tiny_bert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_training.agreement.LENGTHS", (1, 2, 33))
    source = load_source(str(make_tiny_bert(tmp_path / "bert", pooling_mode=mode)), cache=tmp_path)
    assert source.ending.label == mode
    export_fp32(source, tmp_path / "model.onnx")
    runner = _runner(tmp_path / "model.onnx", source)
    assert check_parity(source, runner)["max_absolute_difference"] < 1e-5


def test_a_hugging_face_folder_without_modules_is_mean_pooled(
    tmp_path: Path, items: Any, make_tiny_bert: Any
) -> None:
    from sentence_transformers import SentenceTransformer

    manifest = export_encoder(
        str(make_tiny_bert(tmp_path / "bert")),
        tmp_path / "out",
        precisions=["fp32"],
        with_weights=True,
        cache=tmp_path,
        name="mine",
        command="lamina export bert OUT",
        items=items,
    )
    assert (manifest.name, manifest.pooling, manifest.max_tokens) == ("mine", "mean", 512)
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    found = OnnxEncoder.load(tmp_path / "out").encode(["the cat"], role="document").embeddings
    assert np.vecdot(found, model.encode(["the cat"])).min() > 0.9999


def test_an_export_with_weights_puts_the_transformer_into_the_root(
    tmp_path: Path, items: Any, make_tiny_bert: Any, move_transformer: Any
) -> None:
    from sentence_transformers import SentenceTransformer

    folder = make_tiny_bert(tmp_path / "bert", pooling_mode="mean")
    move_transformer(folder)
    export_encoder(
        str(folder),
        tmp_path / "out",
        precisions=["fp32"],
        with_weights=True,
        cache=tmp_path,
        command="lamina export bert OUT",
        items=items,
    )
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    found = OnnxEncoder.load(tmp_path / "out").encode(["the cat"], role="document").embeddings
    assert np.vecdot(found, model.encode(["the cat"])).min() > 0.9999


def test_parity_gate_fails_on_a_graph_that_differs(tiny_source: Path, tiny_export: Path) -> None:
    source = load_source(str(tiny_source), cache=tiny_source)
    graph = onnx.load(tiny_export / "onnx" / "model.onnx")
    weight = next(t for t in graph.graph.initializer if list(t.dims) == [32, 64])
    values = onnx.numpy_helper.to_array(weight).copy()
    values[3, 5] += 0.05
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    broken = tiny_source.parent / "broken.onnx"
    onnx.save(graph, broken)
    with pytest.raises(ExportError, match="differ by"):
        check_parity(source, _runner(broken, source))


def test_failed_export_leaves_nothing(
    tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lamina_training.agreement.MAX_ABSOLUTE_DIFFERENCE", 0.0)
    with pytest.raises(ExportError, match="differ by"):
        export_encoder(
            str(tiny_source),
            tmp_path / "out",
            precisions=["fp32"],
            with_weights=False,
            cache=tmp_path,
            command="",
        )
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="exists"):
        export_encoder(
            "anything",
            tmp_path,
            precisions=["fp32"],
            with_weights=False,
            cache=tmp_path,
            command="",
        )


@pytest.mark.parametrize("precisions", [[], ["fp8"], ["fp32", "int4"]])
def test_unknown_precisions_are_refused_before_any_work(
    tmp_path: Path, precisions: list[Any]
) -> None:
    with pytest.raises(ExportError, match="expected some of fp32"):
        export_encoder(
            "anything",
            tmp_path / "out",
            precisions=precisions,
            with_weights=False,
            cache=tmp_path,
            command="",
        )


def test_graphs_take_two_inputs_and_give_two_outputs(tiny_export: Path) -> None:
    for file in ("model.onnx", "model_int8.onnx", "model_fp16.onnx"):
        graph = onnx.load(tiny_export / "onnx" / file).graph
        assert [value.name for value in graph.input] == ["input_ids", "attention_mask"]
        assert [value.name for value in graph.output] == ["token_embeddings", "sentence_embedding"]
        kinds = {value.type.tensor_type.elem_type for value in graph.output}
        assert kinds == {onnx.TensorProto.FLOAT}


def test_export_is_the_same_twice(tiny_source: Path, tmp_path: Path, tiny_export: Path) -> None:
    source = load_source(str(tiny_source), cache=tmp_path)
    export_fp32(source, tmp_path / "again.onnx")
    first = (tiny_export / "onnx" / "model.onnx").read_bytes()
    assert (tmp_path / "again.onnx").read_bytes() == first


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("words", [1, 2, 80])
def test_reply_has_one_unit_row_a_text_however_long(
    tiny_export: Path, precision: Any, words: int
) -> None:
    """ai-dynamo/dynamo#10248, sentence-transformers#3258: pooled once, in the graph."""
    encoder = OnnxEncoder.load(tiny_export, precision=precision)
    found = encoder.encode(["cat " * words], role="document").embeddings
    assert found.shape == (1, 32)
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_blank_and_unknown_texts_stay_finite(tiny_export: Path, precision: Any) -> None:
    """MinishLab/model2vec#368: norms are taken in fp32."""
    encoder = OnnxEncoder.load(tiny_export, precision=precision)
    texts = ["", " \n", "\x00", "\ud800", "東京", "[PAD]", "🙂" * 600]
    assert np.isfinite(encoder.encode(texts, role="query").embeddings).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_zero_row_is_normalised_without_nan(
    tmp_path: Path, precision: str, make_tiny_bert: Any
) -> None:
    """The embedding of a model whose last norm is zero: 0 / 0 unless the epsilon holds."""
    from lamina_training.fp16 import convert_fp16

    source = load_source(
        str(make_tiny_bert(tmp_path / "bert", pooling_mode="mean")), cache=tmp_path
    )
    last = source.model.transformer.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    path = tmp_path / "fp32.onnx"
    export_fp32(source, path)
    if precision == "fp16":
        convert_fp16(path, tmp_path / "fp16.onnx")
        path = tmp_path / "fp16.onnx"
    assert not _runner(path, source).encode(["cat"]).any()  # zeros, not NaN


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("length", [127, 128, 129, 224, 256, 288, 512])
def test_a_short_text_beside_a_long_one_is_unchanged(
    tiny_export: Path, precision: str, length: int
) -> None:
    """jundot/omlx#3507: null vectors for the padded row where the longest is a multiple of 32."""
    runner = _runner_of(tiny_export, precision)
    generator = np.random.default_rng(length)
    ids = np.zeros((2, length), dtype=np.int64)
    ids[0] = generator.integers(5, 40, length)
    ids[1, :4] = [2, 7, 8, 3]
    mask = (ids != 0).astype(np.int64)
    together = runner.run(ids, mask)[1]
    alone = [
        runner.run(row[None, :n], mask[:1, :n] | 1)[1][0]
        for row, n in zip(ids, (length, 4), strict=True)
    ]
    assert np.isfinite(together).all()
    assert np.abs(together - np.stack(alone)).max() <= BOUNDS[precision]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_batch_mates_do_not_change_a_vector(tiny_export: Path, precision: Any) -> None:
    """sentence-transformers#2312, #1356: alone, in batches, and beside a text of 500 words."""
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, 10)) for _ in range(40)]
    encoder = OnnxEncoder.load(tiny_export, precision=precision, threads=2)
    alone = np.concatenate([encoder.encode([text], role="document").embeddings for text in texts])
    bound = BOUNDS.get(precision, 1e-6)
    for size in (8, 32):
        groups = [texts[start : start + size] for start in range(0, len(texts), size)]
        found = [encoder.encode(group, role="document").embeddings for group in groups]
        assert np.abs(np.concatenate(found) - alone).max() <= bound
    mixed = encoder.encode([*texts, "cat " * 500], role="document").embeddings[:-1]
    assert np.abs(mixed - alone).max() <= bound
    if precision != "fp16":
        assert (np.argsort(-mixed @ mixed.T, axis=1)[:, 0] == np.arange(40)).all()


def test_manifest_tells_precisions_pooling_and_how_near_they_are(tiny_export: Path) -> None:
    manifest = EncoderManifest.read(tiny_export / "encoder.json")
    assert set(manifest.precisions) == {"fp32", "fp16", "int8"}
    assert manifest.pooling == "mean"
    assert manifest.normalized
    assert manifest.parity["fp32"]["max_absolute_difference"] <= 1e-4
    assert manifest.parity["int8"]["cosine_min"] > 0.95
    assert {entry.fingerprint for entry in manifest.compatible_with} == {
        file.fingerprint for file in manifest.precisions.values()
    }
    assert len({file.fingerprint for file in manifest.precisions.values()}) == 3
    assert len(manifest.probes) == len(PROBES)


def test_probes_refuse_an_altered_graph(tiny_export: Path, tmp_path: Path) -> None:
    import shutil

    from lamina_index.errors import EncoderProbeError
    from lamina_index.manifest import sha256_file

    folder = tmp_path / "encoder"
    shutil.copytree(tiny_export, folder)
    path = folder / "onnx" / "model.onnx"
    graph = onnx.load(path)
    weight = next(t for t in graph.graph.initializer if list(t.dims) == [32, 64])
    values = onnx.numpy_helper.to_array(weight) * np.float32(0.5)
    weight.CopyFrom(onnx.numpy_helper.from_array(values, weight.name))
    onnx.save(graph, path)
    manifest = EncoderManifest.read(folder / "encoder.json")
    altered = sha256_file(path)
    marks = {"sha256": altered, "fingerprint": manifest.fingerprint_of(altered)}
    file = manifest.precisions["fp32"].model_copy(update=marks)
    manifest.model_copy(update={"precisions": {"fp32": file}}).write(folder / "encoder.json")
    with pytest.raises(EncoderProbeError):
        OnnxEncoder.load(folder, precision="fp32")


def test_card_says_base_licence_recipe_scores_and_limits(tiny_export: Path) -> None:
    card = (tiny_export / "README.md").read_text()
    for heading in ("Licence", "Training", "Recipe", "Scores", "Use", "Limits"):
        assert re.search(rf"^## {heading}$", card, re.MULTILINE)
    assert "lamina export bert OUT" in card
    assert str(tiny_export.parent) not in card


def _runner(path: Path, source: Any) -> GraphRunner:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(source.tokenizer_json)
    return GraphRunner(path, tokenizer, max_tokens=source.max_tokens)


def _runner_of(folder: Path, precision: str) -> GraphRunner:
    from tokenizers import Tokenizer

    manifest = EncoderManifest.read(folder / "encoder.json")
    file = next(f.file for p, f in manifest.precisions.items() if p == precision)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return GraphRunner(folder / file, tokenizer, max_tokens=manifest.max_tokens)
