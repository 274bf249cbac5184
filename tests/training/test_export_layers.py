"""A run trained with layer pooling is exported with it, or as the plain encoder that is left."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from lamina_index.cli import main
from lamina_index.corpus import Document
from lamina_index.encoder import OnnxEncoder
from lamina_index.evaluate import evaluate, judge_queries
from lamina_index.exact_corpus import ExactCorpus
from lamina_index.manifest import EncoderManifest, Precision
from lamina_service.app import create_app
from lamina_service.settings import Settings
from lamina_training.agreement import check_parity
from lamina_training.build_encoder import build_encoder
from lamina_training.dev_retrieval import RetrievalTask, read_quora, sample_task, score_retrieval
from lamina_training.embedding import encode_with
from lamina_training.encoder_card import card_text
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.export import export_encoder
from lamina_training.graph import GraphRunner, export_fp32, open_session
from lamina_training.layer_pooling_config import LayerPoolingConfig
from lamina_training.source import ExportError, load_source
from lamina_training.sts import read_stsb, score_sts

pytestmark = pytest.mark.usefixtures("small_grid")

KINDS = ("Transformer", "Pooling", "Normalize")
TEXTS = ["the cat sits", "a dog runs fast in the red house .", "why ?", "zebra " * 70]
RUN_FACTS = {
    "config": {"encoder": {"base": "all-MiniLM-L6-v2"}, "task": "contrastive", "seed": 7},
    "data": {"pairs.tsv": "ab" * 32},
    "versions": {},
}
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
BOUNDS = {"fp32": 1e-5, "fp16": 1e-2, "int8": 1e-5}


def save_run(base: Path, folder: Path, **pooling: Any) -> Path:
    """An encoder as training leaves it, with weights far from where they start."""
    config = LayerPoolingConfig(**{"mode": "layer_attention", "strip_to": "mean", **pooling})
    model = build_encoder(base, config, cache=base.parent, seed=0)
    with torch.no_grad():
        for parameter in model[1].parameters():
            parameter.mul_(15)
    model.prompts = {"query": "how : ", "document": "the : "}
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, make_tiny_bert: Any) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = save_run(make_tiny_bert(folder / "base", pooling_mode="mean"), folder / "run")
    (run / "run.json").write_text(json.dumps(RUN_FACTS))
    return run


def export(run: Path, target: Path, items: Any, **options: Any) -> EncoderManifest:
    return export_encoder(
        str(run),
        target,
        precisions=options.pop("precisions", PRECISIONS),
        with_weights=True,
        cache=target.parent,
        command="lamina export run OUT",
        items=items,
        **options,
    )


@pytest.fixture(scope="module")
def kept(run: Path, items: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("kept") / "encoder"
    export(run, target, items, keep_attention=True)
    return target


@pytest.fixture(scope="module")
def stripped(run: Path, items: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("stripped") / "encoder"
    export(run, target, items, strip="mean")
    return target


@pytest.fixture(scope="module")
def stripped_by_command(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Stripped to another vector than training aimed at; with what the command printed."""
    target = tmp_path_factory.mktemp("stripped") / "encoder"
    options = ["--strip", "cls", "--precision", "fp32", "--with-weights"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["export", str(run), str(target), *options]) == 0
    return target, printed.getvalue()


def by_library(folder: Path) -> Any:
    """The folder as sentence-transformers loads it, with the flag that our pooling needs."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


def test_kept_vectors_are_those_of_sentence_transformers(run: Path, kept: Path) -> None:
    encoder = OnnxEncoder.load(kept, precision="fp32")
    found = encoder.encode(TEXTS, role="query").embeddings
    for folder in (run, kept):
        model = by_library(folder)
        expected = model.encode(TEXTS, prompt_name="query", normalize_embeddings=True)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_service_tells_the_layer_weights_of_a_kept_encoder(kept: Path, tmp_path: Path) -> None:
    expected = OnnxEncoder.load(kept, precision="fp32").layer_weights(TEXTS, role="document")
    app = create_app(Settings(data=tmp_path, encoder=str(kept), precision="fp32", threads=1))
    with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1)) as client:
        reply = client.post("/v1/layers", json={"input": TEXTS, "role": "document"}).json()
        [model] = client.get("/v1/models").json()["data"]
    assert reply["layers"] == model["layers"] == 3
    np.testing.assert_allclose(reply["weights"], expected, atol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_kept_layer_weights_are_those_of_torch(run: Path, kept: Path, precision: Any) -> None:
    model = load_source(str(run), cache=run, keep_attention=True)
    encoder = OnnxEncoder.load(kept, precision=precision)
    found = encoder.layer_weights(TEXTS, role="document")
    assert found.shape == (len(TEXTS), 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)
    with torch.no_grad():
        for text, row in zip(TEXTS, found, strict=True):
            features = model.sentence_transformer.preprocess([f"the : {text.strip()}"])
            given = features["input_ids"], features["attention_mask"]
            expected = model.model(*given)[2][0].numpy()
            tolerance = {"fp32": 1e-5, "fp16": 5e-3, "int8": 0.05}[precision]
            np.testing.assert_allclose(row, expected, atol=tolerance)
    assert np.ptp(found, axis=0).max() > 0.01  # they do differ from text to text


def test_the_kept_graph_has_a_third_output_and_the_fixed_slope(kept: Path) -> None:
    for precision in PRECISIONS:
        file = EncoderManifest.read(kept / "encoder.json").precisions[precision].file
        graph = onnx.load(kept / file).graph
        names = [value.name for value in graph.output]
        assert names == ["token_embeddings", "sentence_embedding", "layer_weights"]
        kinds = {value.type.tensor_type.elem_type for value in graph.output}
        assert kinds == {onnx.TensorProto.FLOAT}
        slopes = [n.attribute[0].f for n in graph.node if n.op_type == "LeakyRelu"]
        assert slopes == pytest.approx([11 / 48] * 3)
        assert "RandomUniformLike" not in {node.op_type for node in graph.node}


def test_manifests_tell_what_was_done(kept: Path, stripped: Path) -> None:
    found = EncoderManifest.read(kept / "encoder.json")
    assert (found.attention, found.stripped_to) == ("kept", None)
    assert found.pooling == "layer_attention+cls+mlp"
    plain = EncoderManifest.read(stripped / "encoder.json")
    assert (plain.attention, plain.stripped_to, plain.pooling) == ("stripped", "mean", "mean")
    for manifest in (found, plain):
        assert manifest.provenance["layer_pooling"]["strip_to"] == "mean"
        assert manifest.parity["fp32"]["max_absolute_difference"] <= 1e-4
    assert found.dimension == plain.dimension == 32  # hence indexes of the same size


def test_a_stripped_export_is_a_plain_directory(run: Path, stripped: Path) -> None:
    from safetensors import safe_open
    from sentence_transformers import SentenceTransformer
    from transformers import BertModel

    modules = json.loads((stripped / "modules.json").read_text())
    kinds = [module["type"] for module in modules]
    assert kinds == [f"sentence_transformers.models.{k}" for k in KINDS]
    assert [path.name for path in stripped.rglob("*.safetensors")] == ["model.safetensors"]
    with safe_open(stripped / "model.safetensors", "pt") as weights:
        of_bert = BertModel.from_pretrained(run).state_dict()
        assert sorted(weights.keys()) == sorted(of_bert)
    assert "output_hidden_states" not in json.loads((stripped / "config.json").read_text())
    model = SentenceTransformer(str(stripped), device="cpu")
    assert "all_layer_embeddings" not in model(model.preprocess(TEXTS))


@pytest.mark.parametrize("strip", ["cls", "mean"])
def test_stripped_vectors_are_those_of_a_plain_encoder_with_these_weights(
    run: Path, stripped: Path, stripped_by_command: tuple[Path, str], strip: str
) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import BertModel

    folder = stripped_by_command[0] if strip == "cls" else stripped
    encoder = OnnxEncoder.load(folder, precision="fp32")
    found = encoder.encode(TEXTS, role="document").embeddings
    bert = BertModel.from_pretrained(run).eval()
    model = SentenceTransformer(str(folder), device="cpu")
    for text, row in zip(TEXTS, found, strict=True):
        features = model.tokenizer([f"the : {text.strip()}"], return_tensors="pt")
        with torch.no_grad():
            states = bert(**features).last_hidden_state[0]
        expected = states[0] if strip == "cls" else states.mean(dim=0)
        expected = (expected / expected.norm()).numpy()
        np.testing.assert_allclose(row, expected, atol=1e-5)
        np.testing.assert_allclose(model.encode(text, prompt_name="document"), expected, atol=1e-6)


@pytest.fixture(scope="module")
def questions(shared_data: Path) -> RetrievalTask:
    return sample_task(read_quora(shared_data, "dev"), queries=100, documents=500, seed=0)


@pytest.mark.parametrize("name", ["run", "kept", "stripped"])
def test_the_librarys_similarity_evaluator_gives_our_score(
    name: str, request: pytest.FixtureRequest, shared_data: Path
) -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    folder = request.getfixturevalue(name)
    pairs = read_stsb(shared_data, "dev")
    evaluator = EmbeddingSimilarityEvaluator(pairs.first, pairs.second, pairs.gold.tolist())
    expected = evaluator(by_library(folder))["spearman_cosine"]
    loaded = load_encoder(find_encoder(str(folder), cache=folder))
    score = score_sts(encode_with(loaded), {"dev": pairs})["dev"].all
    assert score == pytest.approx(100 * expected, abs=1e-3)


@pytest.mark.parametrize("name", ["run", "kept", "stripped"])
def test_the_librarys_retrieval_evaluator_gives_our_score_in_torch_and_of_the_graph(
    name: str, request: pytest.FixtureRequest, questions: RetrievalTask
) -> None:
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    folder = request.getfixturevalue(name)
    relevant = {query: set(ids) for query, ids in questions.relevant.items()}
    texts = questions.queries, questions.documents
    evaluator = InformationRetrievalEvaluator(*texts, relevant, mrr_at_k=[10])
    expected = evaluator(by_library(folder))["cosine_mrr@10"]
    assert 0.1 < expected < 1
    loaded = load_encoder(find_encoder(str(folder), cache=folder))
    in_torch = score_retrieval(
        encode_with(loaded, role="document"),
        questions,
        encode_query=encode_with(loaded, role="query"),
    )
    assert in_torch.mrr == pytest.approx(expected, abs=1e-6)
    if name == "run":  # which has no graph yet
        return
    encoder = OnnxEncoder.load(folder, precision="fp32")
    corpus = ExactCorpus(encoder, (Document(*each) for each in questions.documents.items()))
    qrels = {query: dict.fromkeys(ids, 1.0) for query, ids in relevant.items()}
    of_graph = evaluate(judge_queries(questions.queries, qrels), corpus).means["mrr@10"]
    assert of_graph == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "form",
    [
        {"mode": "layer_attention", "single_query": True, "scale": "sqrt_hidden"},
        {"mode": "layer_attention", "query": "mean", "key_value": "cls", "concat_cls": False},
        {"mode": "first_last_mean"},
        {"mode": "last2_mean", "head": "wide_mlp"},
        {"mode": "cls_mean_concat"},
        {"mode": "max", "head": "mlp"},
    ],
    ids=lambda form: ",".join(map(str, form.values())),
)
def test_every_form_agrees_with_torch(run: Path, tmp_path: Path, form: dict[str, Any]) -> None:
    folder = save_run(run.parent / "base", tmp_path / "run", **form)
    attends = form["mode"] == "layer_attention"
    source = load_source(str(folder), cache=tmp_path, keep_attention=attends)
    assert source.ending.attention == ("kept" if attends else "none")
    export_fp32(source, tmp_path / "model.onnx")
    runner = runner_of(tmp_path / "model.onnx", source.tokenizer_json)
    assert check_parity(source, runner)["max_absolute_difference"] < 1e-5


def runner_of(path: Path, tokenizer_json: str) -> GraphRunner:
    from tokenizers import Tokenizer

    return GraphRunner(path, Tokenizer.from_str(tokenizer_json), max_tokens=512)


def test_parity_also_looks_at_the_layer_weights(run: Path, kept: Path, tmp_path: Path) -> None:
    graph = onnx.load(kept / "onnx" / "model.onnx")
    node = next(node for node in graph.graph.node if "layer_weights" in node.output)
    node.output[0] = "layer_weights_right"
    for other in graph.graph.node:
        other.input[:] = ["layer_weights_right" if n == "layer_weights" else n for n in other.input]
    wrong = onnx.helper.make_node("Neg", ["layer_weights_right"], ["layer_weights"])
    graph.graph.node.append(wrong)
    onnx.save(graph, tmp_path / "wrong.onnx")
    source = load_source(str(run), cache=run, keep_attention=True)
    runner = runner_of(tmp_path / "wrong.onnx", source.tokenizer_json)
    with pytest.raises(ExportError, match="differ by"):
        check_parity(source, runner)


@pytest.mark.parametrize("folder", ["kept", "stripped"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_batch_mates_do_not_change_a_vector(
    folder: str, precision: Any, request: pytest.FixtureRequest
) -> None:
    words = ["cat", "dog", "runs", "house", "why", "cook", "zebra"]
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(words, n)) for n in generator.integers(1, 40, 40)]
    encoder = OnnxEncoder.load(request.getfixturevalue(folder), precision=precision)
    alone = np.concatenate([encoder.encode([text], role="document").embeddings for text in texts])
    together = encoder.encode([*texts, "cat " * 500], role="document").embeddings[:-1]
    assert np.abs(together - alone).max() <= BOUNDS[precision]


@given(
    st.lists(st.lists(st.integers(5, 40), min_size=1, max_size=40), min_size=1, max_size=6),
    st.integers(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_int8_gives_a_text_the_same_vector_and_weights_in_any_batch(
    kept_int8: Any, texts: list[list[int]], width: int
) -> None:
    def run_graph(rows: list[list[int]], width: int = 0) -> list[Any]:
        width = max(width, *map(len, rows))
        ids = np.array([row + [0] * (width - len(row)) for row in rows])
        mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        names = ["sentence_embedding", "layer_weights"]
        found: list[Any] = kept_int8.run(names, {"input_ids": ids, "attention_mask": mask})
        return found

    together = run_graph(texts, width)
    alone = [run_graph([text]) for text in texts]
    for output in (0, 1):
        expected = np.concatenate([found[output] for found in alone])
        np.testing.assert_allclose(together[output], expected, atol=2e-6)


@pytest.fixture(scope="module")
def kept_int8(kept: Path) -> Any:
    return open_session(onnx.load(kept / "onnx" / "model_int8.onnx"))


def test_int8_quantises_the_encoder_and_leaves_the_pooling(kept: Path) -> None:
    kinds = [node.op_type for node in onnx.load(kept / "onnx" / "model_int8.onnx").graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 8  # two layers, see test_packing
    assert kinds.count("MultiHeadAttention") == 2


@pytest.mark.parametrize(
    ("pooling", "options", "complaint"),
    [
        ({}, {}, "choose --keep-attention .* trained towards --strip mean"),
        ({}, {"keep_attention": True, "strip": "cls"}, "exclude each other"),
        ({"mode": "mean"}, {"keep_attention": True}, "mean has no attention"),
    ],
)
def test_what_does_not_fit_the_run_is_refused(
    run: Path, tmp_path: Path, pooling: Any, options: Any, complaint: str
) -> None:
    folder = save_run(run.parent / "base", tmp_path / "run", **pooling)
    with pytest.raises(ExportError, match=complaint):
        load_source(str(folder), cache=tmp_path, **options)


@pytest.mark.parametrize("options", [{"keep_attention": True}, {"strip": "mean"}])
def test_a_plain_encoder_has_nothing_to_keep_or_strip(tiny_source: Path, options: Any) -> None:
    with pytest.raises(ExportError, match=r"sentence-transformers' own.* leave --"):
        load_source(str(tiny_source), cache=tiny_source, **options)


def test_a_fixed_pooling_with_a_head_can_be_stripped_too(run: Path, tmp_path: Path) -> None:
    folder = save_run(run.parent / "base", tmp_path / "run", mode="mean", head="mlp")
    assert load_source(str(folder), cache=tmp_path).ending.label == "mean+mlp"
    ending = load_source(str(folder), cache=tmp_path, strip="mean").ending
    assert (ending.label, ending.attention, ending.stripped_to) == ("mean", "none", "mean")
    assert not list(ending.modules[0].parameters())


def test_the_command_says_where_it_strips_to_another(
    stripped_by_command: tuple[Path, str],
) -> None:
    folder, printed = stripped_by_command
    assert "stripped to cls, though it was trained towards mean" in printed
    card = (folder / "README.md").read_text()
    assert "vectors are the last layer's cls (training aimed at mean)" in card
    assert "--strip cls" in card


def test_the_cards_tell_how_to_load_and_where_the_weights_are(kept: Path, stripped: Path) -> None:
    card = (kept / "README.md").read_text()
    assert "trust_remote_code=True" in card
    assert "layer_weights" in card
    card = (stripped / "README.md").read_text()
    assert "trust_remote_code" not in card
    assert "layer_weights" not in card


def test_a_run_of_lamina_train_is_named_in_manifest_and_card(stripped: Path) -> None:
    manifest = EncoderManifest.read(stripped / "encoder.json")
    assert manifest.name == "run"
    assert manifest.provenance["base"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert manifest.provenance["training"]["data_sha256"] == RUN_FACTS["data"]
    card = (stripped / "README.md").read_text()
    assert "Trained from `sentence-transformers/all-MiniLM-L6-v2`" in card
    assert "task contrastive, seed 7, on `pairs.tsv` (sha256 abababababab)" in card


def test_the_card_of_a_distilled_encoder_names_teacher_and_layers(
    run: Path, tmp_path: Path, stripped: Path
) -> None:
    folder = save_run(run.parent / "base", tmp_path / "run")
    config = {
        "encoder": {"base": "all-MiniLM-L6-v2", "layers": [0, 2, 5]},
        "task": "distil",
        "distil": {"teacher": "all-MiniLM-L6-v2"},
        "seed": 7,
    }
    (folder / "run.json").write_text(json.dumps(RUN_FACTS | {"config": config}))
    provenance = load_source(str(folder), cache=tmp_path, strip="mean").provenance
    manifest = EncoderManifest.read(stripped / "encoder.json")
    manifest = manifest.model_copy(update={"provenance": manifest.provenance | provenance})
    card = card_text(manifest, with_weights=False)
    assert "from layers 0, 2, 5 of the base alone: task" in card
    assert "task distil (to embed as `all-MiniLM-L6-v2` does), seed 7" in card


def test_the_base_of_a_run_is_known_by_the_hash_of_its_weights(run: Path, tmp_path: Path) -> None:
    folder = save_run(run.parent / "base", tmp_path / "run")
    hashes = {"config.json": "cd" * 32, "model.safetensors": "ef" * 32}
    (folder / "run.json").write_text(json.dumps(RUN_FACTS | {"inputs": {"base": hashes}}))
    training = load_source(str(folder), cache=tmp_path, strip="mean").provenance["training"]
    assert training["base_sha256"] == {"model.safetensors": "ef" * 32}


def test_a_run_that_does_not_say_what_it_was_is_refused(run: Path, tmp_path: Path) -> None:
    folder = save_run(run.parent / "base", tmp_path / "run")
    for content in ({}, RUN_FACTS | {"inputs": {}}, RUN_FACTS | {"inputs": {"base": []}}):
        (folder / "run.json").write_text(json.dumps(content))
        with pytest.raises(ExportError, match=r"run\.json: not what `lamina train` writes"):
            load_source(str(folder), cache=tmp_path, strip="cls")


class TestLayersCommand:
    """`lamina layers` needs the encoder folder alone."""

    def test_json_has_a_distribution_a_text(
        self, kept: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        texts = ["why ?", "the cat sits"]
        assert main(["layers", str(kept), *texts, "--json", "--precision", "fp32"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["text"] for row in found["texts"]] == texts
        encoder = OnnxEncoder.load(kept, precision="fp32")
        expected = encoder.layer_weights(texts, role="query")
        np.testing.assert_allclose([row["weights"] for row in found["texts"]], expected, atol=1e-6)
        as_document = main(["layers", str(kept), *texts, "--json", "--role", "document"])
        assert as_document == 0
        assert json.loads(capsys.readouterr().out)["texts"] != found["texts"]

    def test_the_table_has_a_row_a_layer_and_a_bar(
        self, kept: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["layers", str(kept), "why [red]x", "--precision", "fp32"]) == 0
        title, header, *rows = capsys.readouterr().out.splitlines()
        assert title.strip() == "why [red]x"  # text is no mark-up
        assert header.split() == ["layer", "weight", "of", "equal"]
        assert [row.split()[0] for row in rows] == ["0", "1", "2"]
        weights = [float(row.split()[1]) for row in rows]
        assert sum(weights) == pytest.approx(1, abs=2e-4)
        bars = [row.count("█") for row in rows]
        assert bars[int(np.argmax(weights))] == max(bars) == 40

    def test_an_encoder_without_layer_weights_says_how_to_make_one(
        self, stripped: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["layers", str(stripped), "why ?"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "over layers: stripped" in captured.err
        assert "lamina export --keep-attention" in captured.err
