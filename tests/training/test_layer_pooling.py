"""Layer pooling gives the method card's numbers, padding changes nothing, and it trains."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer

from lamina_training.build_encoder import (
    build_encoder,
    keep_layers,
    reinitialize_layers,
)
from lamina_training.encoder_folder import EncoderFolderError, find_encoder, load_encoder
from lamina_training.layer_pooling import (
    FIXED_SLOPE,
    LayerAttention,
    LayerPooling,
    count_full_attention,
    token_means,
)
from lamina_training.layer_pooling_config import LayerPoolingConfig

HIDDEN, LAYERS = 8, 4
TEXTS = ["the cat sits", "a dog runs fast in the red house .", "why ?"]
ATTENTIONS: list[dict[str, Any]] = [
    {},
    {"concat_cls": False},
    {"concat_cls": False, "head": "none"},
    {"query": "mean"},
    {"query": "cls", "key_value": "cls"},
    {"query": "mean", "key_value": "cls", "concat_cls": False},
    {"scale": "sqrt_hidden"},
    {"single_query": True},
    {"single_query": True, "scale": "sqrt_hidden", "query": "mean"},
]
FIXED = ["cls", "mean", "max", "first_last_mean", "last2_mean"]
FORMS: list[dict[str, Any]] = [
    *({"mode": mode, "head": head} for mode in FIXED for head in ("none", "mlp", "wide_mlp")),
    *({"mode": "cls_mean_concat", "head": head} for head in ("mlp", "wide_mlp")),
    *({"mode": "layer_attention", **options} for options in ATTENTIONS),
]


def name_of(form: dict[str, Any]) -> str:
    return ",".join(map(str, form.values()))


def make_features(
    batch: int = 3, length: int = 6, *, seed: int = 0, layers: int = LAYERS
) -> dict[str, Any]:
    """Random hidden states, and a mask that leaves the first text whole."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(layers, batch, length, HIDDEN, generator=generator)
    used = torch.randint(2, length + 1, (batch,), generator=generator)
    used[0] = length
    mask = (torch.arange(length) < used[:, None]).long()
    return {
        "all_layer_embeddings": tuple(states),
        "token_embeddings": states[-1],
        "attention_mask": mask,
    }


def make_pooling(**form: Any) -> LayerPooling:
    torch.manual_seed(0)
    pooling = LayerPooling(HIDDEN, LAYERS, **form).eval()
    with torch.no_grad():  # as drawn, weights are so small that every layer has the same share
        for parameter in pooling.parameters():
            parameter.mul_(20)
    return pooling


def pool(pooling: LayerPooling, features: dict[str, Any]) -> Any:
    with torch.no_grad():
        return pooling(dict(features))["sentence_embedding"]


class TestGoldenVector:
    """Section 4 of the method card: H = 2, N = 3, evaluation, by hand."""

    first = torch.tensor([[[1.0, 0], [0, 1], [1, -1]]])
    mean = torch.tensor([[[1.0, 2], [-1, 0.5], [0, -2]]])

    @pytest.fixture
    def attention(self) -> LayerAttention:
        attention = LayerAttention(2, divisor=3).eval()
        weights = {
            "query.weight": [[1.0, 0], [0, 1]],
            "key.weight": [[0.0, 1], [1, 0]],
            "value.weight": [[1.0, 1], [1, -1]],
        }
        attention.load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
        return attention

    def test_weights(self, attention: LayerAttention) -> None:
        expected = torch.tensor(
            [
                [0.488470, 0.296272, 0.215257],
                [0.420103, 0.278879, 0.301017],
                [0.466876, 0.311051, 0.222073],
            ]
        )
        found = attention.weights(self.first, self.mean)[0]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    def test_effective_distribution_and_result(self, attention: LayerAttention) -> None:
        pooled, effective = attention(self.first, self.mean)
        for found, expected in [
            (effective, [[0.458483, 0.295401, 0.246116]]),
            (pooled, [[1.228798, 0.285619]]),
        ]:
            torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)

    def test_head_reads_the_last_layers_first_token_and_then_the_result(
        self, attention: LayerAttention
    ) -> None:
        """Two tokens a layer, whose mean is the card's a_j where the first of them is c_j."""
        pooling = LayerPooling(2, 3, mode="layer_attention").eval()
        pooling.attention = attention
        states = torch.stack([self.first[0], 2 * self.mean[0] - self.first[0]], dim=1)[:, None]
        features = {
            "all_layer_embeddings": tuple(states),  # 3 of (1, 2, 2)
            "token_embeddings": states[-1],
            "attention_mask": torch.ones(1, 2, dtype=torch.int64),
        }
        read: list[Any] = []
        pooling.head.register_forward_hook(lambda _, given, __: read.append(given[0]))
        found = pooling(features)
        expected = torch.tensor([[1, -1, 1.228798, 0.285619]])
        torch.testing.assert_close(read[0], expected, atol=1e-5, rtol=0)
        linear = pooling.head[0]
        torch.testing.assert_close(
            found["sentence_embedding"], torch.tanh(linear.weight @ read[0][0] + linear.bias)[None]
        )


def rrelu(values: Any) -> Any:
    return torch.where(values >= 0, values, values * 11 / 48)


def loop_over_queries(pooling: LayerPooling, features: dict[str, Any]) -> Any:
    """Eq. 1-3 text by text and query by query, as the released code goes; (B, H)."""
    attention, config = pooling.attention, pooling.config
    assert attention is not None
    rows = []
    for text in range(len(features["attention_mask"])):
        kept = features["attention_mask"][text].bool()
        states = [layer[text] for layer in features["all_layer_embeddings"]]
        sources = {"cls": [s[0] for s in states], "mean": [s[kept].mean(dim=0) for s in states]}
        asking, asked = sources[config.query], sources[config.key_value]
        scale = len(states) if config.scale == "layers" else HIDDEN**0.5
        results = []
        for vector in asking[-1:] if config.single_query else asking:
            query = rrelu(attention.query.weight @ vector)
            scores = [query @ rrelu(attention.key.weight @ other) / scale for other in asked]
            weights = torch.softmax(torch.stack(scores), dim=0)
            values = [rrelu(attention.value.weight @ other) for other in asked]
            results.append(sum(w * v for w, v in zip(weights, values, strict=True)))
        rows.append(torch.stack(results).mean(dim=0))
    return torch.stack(rows)


@pytest.mark.parametrize("options", ATTENTIONS, ids=name_of)
@given(seed=st.integers(0, 1000), batch=st.integers(1, 3), length=st.integers(2, 9))
@settings(max_examples=15, deadline=None)
def test_a_plain_loop_gives_the_same(
    options: dict[str, Any], seed: int, batch: int, length: int
) -> None:
    pooling = make_pooling(mode="layer_attention", **options)
    features = make_features(batch, length, seed=seed)
    with torch.no_grad():
        expected = loop_over_queries(pooling, features)
        if pooling.config.concat_cls:
            expected = torch.cat([features["token_embeddings"][:, 0], expected], dim=1)
        torch.testing.assert_close(
            pool(pooling, features), pooling.head(expected), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("options", ATTENTIONS, ids=name_of)
def test_weights_are_distributions_over_all_layers(options: dict[str, Any]) -> None:
    pooling = make_pooling(mode="layer_attention", **options)
    assert pooling.attention is not None
    effective = pooling(make_features())["layer_weights"]
    assert effective.shape == (3, LAYERS)
    states = torch.randn(3, LAYERS, HIDDEN)
    full = pooling.attention.weights(states, states)
    assert full.shape == (3, LAYERS, LAYERS)
    for weights in (effective, full):
        assert (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))


def test_weights_start_close_to_equal() -> None:
    """A peaked start would mean that the division by N is missing."""
    torch.manual_seed(0)
    attention = LayerPooling(768, 13, mode="layer_attention").eval().attention
    assert attention is not None
    states = torch.nn.functional.normalize(torch.randn(2, 5, 13, 768), dim=-1) * 15
    weights = attention.weights(states[0], states[1])
    assert weights.min() > 0.05
    assert weights.max() < 0.11


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@given(seed=st.integers(0, 1000), more=st.integers(1, 9))
@settings(max_examples=10, deadline=None)
def test_padding_and_batch_mates_change_nothing(form: dict[str, Any], seed: int, more: int) -> None:
    pooling = make_pooling(**form)
    features = make_features(seed=seed)
    states = torch.stack(features["all_layer_embeddings"])  # (N, B, T, H)
    mask = torch.nn.functional.pad(features["attention_mask"], (0, more))
    padded = torch.nn.functional.pad(states, (0, 0, 0, more))
    noise = torch.randn(padded.shape, generator=torch.Generator().manual_seed(seed))
    padded = torch.where(mask[None, :, :, None] == 0, noise, padded)  # whatever lies there
    together = pool(pooling, as_features(padded, mask))
    for row, length in enumerate(features["attention_mask"].sum(dim=1).tolist()):
        alone = as_features(states[:, row : row + 1, :length], torch.ones(1, length).long())
        torch.testing.assert_close(together[row], pool(pooling, alone)[0], atol=1e-5, rtol=0)


def as_features(states: Any, mask: Any) -> dict[str, Any]:
    return {
        "all_layer_embeddings": tuple(states),
        "token_embeddings": states[-1],
        "attention_mask": mask,
    }


def test_the_mean_counts_special_tokens_and_never_padding() -> None:
    """[CLS], one word, [SEP] and padding that must not matter, by hand."""
    states = torch.tensor([[[1.0, 0], [4, 6], [1, 3], [99, 99]]])
    found = token_means(states, torch.tensor([[1, 1, 1, 0]]))
    assert found.tolist() == [[2, 3]]


def test_a_text_without_tokens_stays_finite() -> None:
    assert token_means(torch.randn(1, 3, 2), torch.zeros(1, 3).long()).tolist() == [[0, 0]]


def test_fixed_poolings_by_hand() -> None:
    """One text, two tokens and padding, three layers of two numbers."""
    states = torch.tensor(
        [[[[1.0, 2], [3, 4], [9, 9]]], [[[5, 6], [7, 8], [9, 9]]], [[[0, 4], [2, -6], [9, 9]]]]
    )
    features = as_features(states, torch.tensor([[1, 1, 0]]))
    expected = {
        "cls": [0, 4],
        "mean": [1, -1],
        "max": [2, 4],
        "first_last_mean": [1.5, 1],  # of (2, 3) and (1, -1)
        "last2_mean": [3.5, 3],  # of (6, 7) and (1, -1)
    }
    for mode, vector in expected.items():
        pooling = LayerPooling(2, 3, mode=mode)
        assert pool(pooling, features).tolist() == [vector], mode


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_every_form_is_as_wide_as_a_hidden_state(form: dict[str, Any]) -> None:
    pooling = make_pooling(**form)
    assert pool(pooling, make_features()).shape == (3, HIDDEN)
    assert pooling.get_embedding_dimension() == HIDDEN


@pytest.mark.parametrize("form", FORMS, ids=name_of)
@pytest.mark.parametrize("layer", range(LAYERS))
def test_the_layers_that_matter_are_those_of_the_mode(form: dict[str, Any], layer: int) -> None:
    pooling, features = make_pooling(**form), make_features()
    states = torch.stack(features["all_layer_embeddings"])
    states[layer] += 0.5 * torch.randn(states[layer].shape)
    changed = pool(pooling, as_features(states, features["attention_mask"]))
    read = {"first_last_mean": {0, LAYERS - 1}, "last2_mean": {LAYERS - 2, LAYERS - 1}}
    read["layer_attention"] = set(range(LAYERS))
    same = torch.equal(changed, pool(pooling, features))
    assert same == (layer not in read.get(form["mode"], {LAYERS - 1}))


def test_parameters_are_those_of_the_card_and_the_control_has_as_many() -> None:
    def count(**form: Any) -> int:
        return sum(p.numel() for p in LayerPooling(768, 13, **form).parameters())

    assert count(mode="layer_attention") == count_full_attention(768) == 2_949_888
    assert count(mode="mean") == 0
    assert count(mode="mean", head="mlp") == 768**2 + 768
    assert count(mode="cls_mean_concat") == 2 * 768**2 + 768
    for mode in (*FIXED, "cls_mean_concat"):
        assert count(mode=mode, head="wide_mlp") == pytest.approx(2_949_888, rel=0.002)


def test_weights_are_drawn_as_the_hosts() -> None:
    torch.manual_seed(0)
    pooling = LayerPooling(256, 7, mode="layer_attention")
    assert pooling.attention is not None
    for linear in (*pooling.attention.children(), pooling.head[0]):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)
        assert linear.weight.mean().item() == pytest.approx(0, abs=2e-4)
        assert linear.bias is None or not linear.bias.any()


def test_slopes_vary_in_training_and_are_fixed_in_evaluation() -> None:
    attention = LayerAttention(2, divisor=3)
    with torch.no_grad():
        attention.value.weight.copy_(torch.eye(2))
    states = torch.tensor([[[1.0, -1]]]).expand(500, 1, 2)  # one layer: its value is the result
    drawn = attention.train()(states, states)[0]
    assert (drawn[:, 0] == 1).all()
    slopes = -drawn[:, 1]
    assert slopes.min() >= 1 / 8
    assert slopes.max() <= 1 / 3
    assert slopes.std() > 0.04  # of a uniform distribution: 0.06
    fixed = -attention.eval()(states, states)[0][:, 1]
    torch.testing.assert_close(fixed, torch.full((500,), 11 / 48))
    assert pytest.approx(0.2291667, abs=1e-7) == FIXED_SLOPE


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mode": "cls_mean_concat", "head": "none"}, "needs the head"),
        ({"mode": "layer_attention", "head": "none"}, "needs the head"),
        ({"mode": "layer_attention", "head": "wide_mlp"}, "control"),
        ({"mode": "mean", "query": "mean"}, "query: only layer_attention has that"),
        ({"mode": "mean", "single_query": True}, "single_query"),
        ({"mode": "median"}, "median"),
        ({"mode": "mean", "heads": 2}, "heads"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        LayerPooling(HIDDEN, LAYERS, **options)


def test_missing_hidden_states_are_told() -> None:
    features = make_features(layers=LAYERS - 1)
    with pytest.raises(ValueError, match="reads 4 hidden states, the transformer gave 3"):
        make_pooling(mode="layer_attention")(features)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, make_tiny_bert: Callable[..., Path]) -> Path:
    return make_tiny_bert(tmp_path_factory.mktemp("base") / "bert", pooling_mode="mean")


def build(base: Path, **options: Any) -> Any:
    pooling = LayerPoolingConfig(**{"mode": "layer_attention", **options})
    return build_encoder(base, pooling, cache=base.parent, seed=0)


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_saved_and_loaded_it_gives_the_same(
    base: Path, tmp_path: Path, form: dict[str, Any]
) -> None:
    model = build(base, **form).eval()
    model.save_pretrained(str(tmp_path), create_model_card=False)
    expected = model.encode(TEXTS)
    ours = load_encoder(find_encoder(str(tmp_path), cache=tmp_path))
    theirs = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    for loaded in (ours, theirs):
        assert (loaded.encode(TEXTS) == expected).all()
        assert loaded[1].config == model[1].config
    assert not list(tmp_path.rglob("*.bin"))


def test_the_library_alone_asks_before_it_imports_our_class(base: Path, tmp_path: Path) -> None:
    build(base).save_pretrained(str(tmp_path), create_model_card=False)
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path), device="cpu")


def test_missing_weights_are_told(base: Path, tmp_path: Path) -> None:
    build(base).save_pretrained(str(tmp_path), create_model_card=False)
    (tmp_path / "1_LayerPooling" / "model.safetensors").unlink()
    with pytest.raises(EncoderFolderError, match=r"no model\.safetensors for its pooling"):
        load_encoder(find_encoder(str(tmp_path), cache=tmp_path))


def test_all_hidden_states_are_read_and_the_embedding_layers_first(base: Path) -> None:
    model = build(base).eval()
    features = model.preprocess(TEXTS)
    found = model(dict(features))
    assert found["layer_weights"].shape == (len(TEXTS), 3)
    embedded = model[0].model.embeddings(features["input_ids"])
    torch.testing.assert_close(found["all_layer_embeddings"][0], embedded)


@pytest.mark.parametrize("mode", ["cls", "mean"])
def test_without_a_head_it_is_the_librarys_own_pooling(base: Path, mode: str) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    ours = build(base, mode=mode).encode(TEXTS)
    plain = SentenceTransformer(modules=[Transformer(str(base)), Pooling(32, mode)], device="cpu")
    assert abs(ours - plain.encode(TEXTS)).max() < 1e-6


def test_other_tokens_under_the_padding_change_nothing(base: Path) -> None:
    model = build(base).eval()
    features = model.preprocess(TEXTS)
    other = dict(features)
    other["input_ids"] = torch.where(features["attention_mask"] == 0, 7, features["input_ids"])
    with torch.no_grad():
        expected = model(dict(features))["sentence_embedding"]
        found = model(other)["sentence_embedding"]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    alone = torch.stack([torch.tensor(model.encode(text)) for text in TEXTS])
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)


def test_a_step_moves_every_projection_and_every_layer(base: Path) -> None:
    model = build(base).train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    embedding = model(model.preprocess(TEXTS))["sentence_embedding"]
    (torch.nn.functional.normalize(embedding) * torch.randn(32)).sum().backward()
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    expected = {f"1.attention.{name}.weight" for name in ("query", "key", "value")}
    expected |= {"1.head.0.weight", "1.head.0.bias"}
    assert expected <= moved
    for layer in range(2):
        assert any(f"encoder.layer.{layer}." in name for name in moved)
    assert any("embeddings.word" in name for name in moved)


def test_evaluation_repeats_itself_and_training_does_not(base: Path) -> None:
    model = build(base)
    features = model.preprocess(TEXTS)

    def twice() -> bool:
        with torch.no_grad():
            first, second = (model(dict(features))["sentence_embedding"] for _ in range(2))
        return bool(torch.equal(first, second))

    model.eval()
    assert twice()
    model.train()
    assert not twice()
    for module in model.modules():  # RReLU alone is noise as well
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    assert not twice()


def test_bf16_autocast_runs_forward_and_backward(base: Path) -> None:
    model = build(base).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embedding = model(model.preprocess(TEXTS))["sentence_embedding"]
    embedding.float().square().sum().backward()
    assert torch.isfinite(model[1].attention.query.weight.grad).all()


def test_the_seed_decides_the_new_weights(base: Path) -> None:
    state = torch.random.get_rng_state()
    first, again = build(base)[1].state_dict(), build(base)[1].state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert torch.equal(state, torch.random.get_rng_state())
    other = build_encoder(
        base, LayerPoolingConfig(mode="layer_attention"), cache=base.parent, seed=1
    )[1].state_dict()
    assert not torch.equal(first["head.0.weight"], other["head.0.weight"])


def test_only_the_top_layers_are_drawn_anew(base: Path) -> None:
    pooling = LayerPoolingConfig(mode="mean")
    kept = build_encoder(base, pooling, cache=base.parent, seed=0)[0].model.state_dict()
    found = build_encoder(base, pooling, cache=base.parent, seed=0, reinitialize_top=1)
    for name, weight in found[0].model.state_dict().items():
        redrawn = "encoder.layer.1." in name and weight.dim() == 2
        assert torch.equal(weight, kept[name]) != redrawn, name
    top = found[0].model.encoder.layer[1]
    assert top.intermediate.dense.weight.std().item() == pytest.approx(0.2, rel=0.1)  # its config's
    assert not top.intermediate.dense.bias.any()


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet"])
def test_families_of_encoders_give_all_layers_and_can_lose_some(family: str) -> None:
    from transformers import AutoConfig, AutoModel

    sizes = {"hidden_size": HIDDEN, "num_hidden_layers": 3, "num_attention_heads": 2}
    if family == "distilbert":
        sizes = {"dim": HIDDEN, "n_layers": 3, "n_heads": 2}
    model = AutoModel.from_config(AutoConfig.for_model(family, vocab_size=50, **sizes)).eval()
    bottom = {n: w.clone() for n, w in model.state_dict().items() if ".0." in n}
    keep_layers(model, [0, 2])
    reinitialize_layers(model, 1)
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in bottom.items())
    ids = torch.tensor([[7, 8, 9, 10]])
    with torch.no_grad():
        found = model(input_ids=ids, output_hidden_states=True)
        features = {
            "token_embeddings": found.last_hidden_state,
            "all_layer_embeddings": found.hidden_states,
            "attention_mask": torch.ones_like(ids),
        }
        pooled = LayerPooling(HIDDEN, 3, mode="layer_attention").eval()(features)
    assert pooled["layer_weights"].shape == (1, 3)
    torch.testing.assert_close(found.hidden_states[-1], found.last_hidden_state)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"reinitialize_top": 3}, "BertModel has 2"),
        ({"reinitialize_top": -1}, "BertModel has 2"),
        ({"max_tokens": 513}, "reads 512 tokens at most"),
        ({"layers": [0, 2]}, "has 0 to 1"),
        ({"layers": []}, "has 0 to 1"),
    ],
)
def test_more_than_the_base_has_is_refused(
    base: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(EncoderFolderError, match=complaint):
        build_encoder(base, LayerPoolingConfig(mode="mean"), cache=base.parent, seed=0, **options)


def test_layers_can_be_left_out(base: Path) -> None:
    pooling = LayerPoolingConfig(mode="layer_attention")
    whole = build_encoder(base, pooling, cache=base.parent, seed=0).eval()
    model = build_encoder(base, pooling, cache=base.parent, seed=0, layers=[1]).eval()
    features = model.preprocess(TEXTS)
    assert model(dict(features))["layer_weights"].shape == (len(TEXTS), 2)
    upper = model[0].model.encoder.layer
    assert len(upper) == 1
    expected = whole[0].model.encoder.layer[1].state_dict()
    assert all(torch.equal(weight, expected[n]) for n, weight in upper[0].state_dict().items())
    with torch.no_grad():
        whole[0].model.encoder.layer = whole[0].model.encoder.layer[1:]  # by hand
        found, by_hand = (m[0](dict(features))["token_embeddings"] for m in (model, whole))
    torch.testing.assert_close(found, by_hand)


def test_the_length_is_the_bases_or_as_much_more_as_is_asked(base: Path, tmp_path: Path) -> None:
    short = shutil.copytree(base, tmp_path / "short")
    (short / "sentence_bert_config.json").write_text('{"max_seq_length": 100}')
    pooling = LayerPoolingConfig(mode="mean")
    lengths = [
        build_encoder(short, pooling, cache=base.parent, seed=0, max_tokens=n).max_seq_length
        for n in (None, 16, 200)
    ]
    assert lengths == [100, 100, 200]


def test_labels_tell_the_forms_apart() -> None:
    labels = [LayerPoolingConfig(**form).label for form in FORMS]
    assert len(set(labels)) == len(labels)
    assert LayerPoolingConfig(mode="layer_attention").label == "layer_attention+cls+mlp"
