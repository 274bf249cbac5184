"""The baselines that skip layers, their self-attention, or heads: what is left is exact."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.attention_dropout import (
    AttentionDropoutConfig,
    AttentionLayerDrop,
    DropHead,
    LayerDrop,
    PlainDropout,
    attention_dropout,
)

KINDS = ["BERT", "RoBERTa", "DistilBERT"]
IDS = torch.arange(5, 23).view(3, 6)


@pytest.fixture(params=KINDS)
def encoder(request: pytest.FixtureRequest, tiny_encoder: Callable[..., Any]) -> Any:
    """Without any dropout of its own."""
    kind = request.param
    own = "attention_dropout" if kind == "DistilBERT" else "attention_probs_dropout_prob"
    return tiny_encoder(kind, **{own: 0.0}).train()


def layers(encoder: Any) -> Any:
    return encoder.transformer.layer if hasattr(encoder, "transformer") else encoder.encoder.layer


def states(encoder: Any) -> Any:
    return encoder(input_ids=IDS, output_hidden_states=True).hidden_states


def always(config: AttentionDropoutConfig) -> AttentionDropoutConfig:
    return config.model_copy(update={"rate": 1.0})


def test_a_skipped_layer_passes_its_input_on(encoder: Any) -> None:
    states(encoder)  # transformers' recorder of hidden states is there before ours
    with attention_dropout(encoder, always(LayerDrop())) as dropout:
        hidden = states(encoder)
        assert all(torch.equal(state, hidden[0]) for state in hidden)
        assert dropout.statistics()["dropped"] == [1.0, 1.0, 1.0]


def test_layers_are_skipped_one_by_one(encoder: Any) -> None:
    torch.manual_seed(0)
    skipped = set()
    with attention_dropout(encoder, LayerDrop(rate=0.5)):
        for _ in range(30):
            hidden = states(encoder)
            pattern = tuple(
                torch.equal(after, before) for before, after in itertools.pairwise(hidden)
            )
            skipped.add(pattern)
    assert len(skipped) > 4, "of the 8 patterns that 3 layers have"


def test_skipped_self_attention_leaves_the_residual_and_the_feed_forward(encoder: Any) -> None:
    with attention_dropout(encoder, always(AttentionLayerDrop())):
        hidden = states(encoder)
    for layer, before, after in zip(layers(encoder), hidden[:-1], hidden[1:], strict=True):
        if hasattr(layer, "ffn"):
            middle = layer.sa_layer_norm(before)
            expected = layer.output_layer_norm(layer.ffn(middle) + middle)
        else:
            middle = layer.attention.output.LayerNorm(before)
            expected = layer.feed_forward_chunk(middle)
        torch.testing.assert_close(after, expected)


def test_dropped_heads_are_zero_and_the_others_scaled_by_text(encoder: Any) -> None:
    seen: list[tuple[Any, Any]] = []
    layer = layers(encoder)[0]
    inner = layer.attention.out_lin if hasattr(layer, "ffn") else layer.attention.output.dense
    inner.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    torch.manual_seed(2)
    with attention_dropout(encoder, DropHead(rate=0.5)):
        inner.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        states(encoder)
    before, after = (each.unflatten(-1, (4, 8)) for each in seen)
    kept = (after != 0).any(dim=-1).any(dim=1)  # (B, A)
    assert 0 < kept.sum() < kept.numel()
    assert kept.any(dim=1).all()
    assert len({tuple(row) for row in kept.tolist()}) > 1
    scale = (4 / kept.sum(dim=1)).view(3, 1, 1, 1) * kept.view(3, 1, 4, 1)
    torch.testing.assert_close(after, before * scale)


def test_one_head_always_stays(encoder: Any) -> None:
    with attention_dropout(encoder, always(DropHead())) as dropout:
        assert torch.isfinite(states(encoder)[-1]).all()
        assert dropout.statistics()["dropped"] == [0.75] * 3


@pytest.mark.parametrize("config", [LayerDrop(), AttentionLayerDrop()], ids=lambda c: c.kind)
def test_every_weight_gets_a_gradient_even_of_what_was_skipped(
    encoder: Any, config: AttentionDropoutConfig
) -> None:
    with attention_dropout(encoder, always(config)):
        states(encoder)[-1].pow(2).sum().backward()
    missing = [name for name, p in encoder.named_parameters() if p.grad is None]
    assert [name for name in missing if "pooler" not in name] == []


@pytest.mark.parametrize("config", [LayerDrop(), AttentionLayerDrop(), DropHead()])
def test_the_rate_is_kept_on_average(encoder: Any, config: AttentionDropoutConfig) -> None:
    torch.manual_seed(4)
    with attention_dropout(encoder, config.model_copy(update={"rate": 0.3})) as dropout:
        for _ in range(150):
            encoder(input_ids=IDS[:1, :2])
        dropped = dropout.statistics()["dropped"]
    assert sum(dropped) / 3 == pytest.approx(0.3, abs=3 * (0.21 / 450) ** 0.5)


def test_plain_dropout_sets_the_encoders_own_rate(encoder: Any) -> None:
    attention = [m for m in encoder.modules() if hasattr(m, "scaling")]
    assert len(attention) == 3
    with attention_dropout(encoder, PlainDropout(rate=0.4)) as dropout:
        assert [m.dropout.p for m in attention] == [0.4] * 3
        states(encoder)
        assert dropout.statistics() == {"drop_probability": [0.4] * 3}
    assert [m.dropout.p for m in attention] == [0.0] * 3
