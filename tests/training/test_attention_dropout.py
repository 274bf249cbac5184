"""Attention dropout on encoders: masks in training, no trace of them otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
from torch.nn import functional

from lamina_training.attention_dropout import (
    AttendOut,
    AttentionDropout,
    AttentionDropoutConfig,
    AttentionDropoutError,
    AttentionLayerDrop,
    DropHead,
    LayerDrop,
    NoChange,
    PlainDropout,
    ScheduledBernoulli,
    attention_dropout,
    write_rate_table,
)

BASELINES = [PlainDropout(), LayerDrop(), AttentionLayerDrop(), DropHead()]
METHODS = [*BASELINES, ScheduledBernoulli(), AttendOut(), AttendOut(objective="policy")]
MASKING = METHODS[4:]
LEARNING = AttendOut(warmup=0.0)


def batch(lengths: list[int] | None = None, T: int = 9, *, seed: int = 5) -> dict[str, Any]:
    lengths = lengths or [T, 5]
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 50, (len(lengths), T), generator=generator)
    mask = (torch.arange(T) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def output(encoder: Any, inputs: dict[str, Any] | None = None, *, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return encoder(**(inputs or batch())).last_hidden_state


def masked_draws(dropout: AttentionDropout) -> Any:
    """The masks of the one forward pass since the last look."""
    (draws,) = dropout.take_passes()
    return draws


@pytest.mark.parametrize("config", METHODS, ids=lambda c: c.kind)
def test_evaluation_is_the_plain_encoders_to_the_last_bit(
    encoder: Any, config: AttentionDropoutConfig
) -> None:
    encoder.eval()
    plain = output(encoder)
    with attention_dropout(encoder, config) as dropout:
        encoder.train()
        output(encoder)
        encoder.eval()
        dropout.statistics()
        assert torch.equal(output(encoder), plain)
        assert dropout.statistics() == {}, "no mask may be drawn, no generator called"


@pytest.mark.parametrize("config", METHODS, ids=lambda c: c.kind)
def test_training_is_changed_and_removal_changes_it_back(
    encoder: Any, config: AttentionDropoutConfig
) -> None:
    encoder.train()
    plain = output(encoder)
    rate = {"rate": 0.5} if "rate" in type(config).model_fields else {}
    dropout = attention_dropout(encoder, config.model_copy(update=rate))
    assert not torch.allclose(output(encoder), plain)
    dropout.remove()
    assert torch.equal(output(encoder), plain)
    assert encoder.config._attn_implementation == "sdpa"


def test_nothing_of_it_is_saved(encoder: Any, tmp_path: Path) -> None:
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.train()
    with attention_dropout(encoder, LEARNING):
        output(encoder)
        assert encoder.state_dict().keys() == before.keys()
        encoder.save_pretrained(tmp_path / "encoder")
    loaded = type(encoder).from_pretrained(tmp_path / "encoder")
    assert loaded.state_dict().keys() == before.keys()
    assert "lamina" not in (tmp_path / "encoder" / "config.json").read_text()
    assert torch.equal(output(loaded.eval()), output(encoder.eval()))


@pytest.mark.parametrize("config", MASKING, ids=lambda c: c.kind)
def test_the_encoders_own_attention_dropout_is_off_meanwhile(
    tiny_encoder: Callable[..., Any], config: AttentionDropoutConfig
) -> None:
    classifier = tiny_encoder("BERT", head="ForSequenceClassification")
    own = [m for m in classifier.modules() if isinstance(m, torch.nn.Dropout)]
    before = [module.p for module in own]
    with attention_dropout(classifier, config):
        attention = [layer.attention.self.dropout.p for layer in classifier.bert.encoder.layer]
        assert attention == [0.0] * 3
    assert [module.p for module in own] == before
    assert 0.1 in before


def test_without_drops_training_is_plain_softmax_attention(encoder: Any) -> None:
    plain = output(encoder.eval())
    with attention_dropout(encoder, ScheduledBernoulli(start=0, low_layer=0, high_layer=0)):
        encoder.train()
        torch.testing.assert_close(output(encoder), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_it_masks_whichever_attention_the_encoder_had(
    tiny_encoder: Callable[..., Any], implementation: str
) -> None:
    encoder = tiny_encoder("BERT").train()
    encoder.set_attn_implementation(implementation)
    plain = output(encoder.eval())
    with attention_dropout(encoder.train(), ScheduledBernoulli()) as dropout:
        output(encoder)
        assert dropout.statistics()["dropped"][0] > 0
        assert torch.equal(output(encoder.eval()), plain)
        assert encoder.config._attn_implementation == implementation


def test_the_text_under_padding_changes_nothing(encoder: Any) -> None:
    encoder.train()
    inputs = batch([9, 4])
    other = {**inputs, "input_ids": inputs["input_ids"].clone()}
    other["input_ids"][1, 4:] = 7
    with attention_dropout(encoder, LEARNING) as dropout:
        if "roberta" in encoder.config.model_type:  # it numbers positions by where padding lies
            inputs["position_ids"] = other["position_ids"] = torch.arange(9).repeat(2, 1) + 1
        results = []
        for each in (inputs, other):
            states = output(encoder, each)
            draws = masked_draws(dropout)
            results.append((states[1, :4], draws[2].probability()[1]))
        torch.testing.assert_close(results[0], results[1])
        assert (results[0][1][:, 4:] == 0).all()
        assert (results[0][1][:, :, 4:] == 0).all()
        assert (draws[0].dropped[1, :, :, 4:] == 0).all()


def test_a_text_keeps_its_drop_probabilities_in_a_longer_batch(encoder: Any) -> None:
    encoder.train()
    short = batch([5], T=5)
    longer = {name: functional.pad(value, (0, 3)) for name, value in short.items()}
    with attention_dropout(encoder, LEARNING) as dropout:
        output(encoder, short)
        alone = masked_draws(dropout)[0].probability()
        output(encoder, longer)
        padded = masked_draws(dropout)[0].probability()
    torch.testing.assert_close(padded[:, :, :5, :5], alone)


def test_probabilities_differ_by_text_layer_and_head_and_masks_by_draw(encoder: Any) -> None:
    encoder.train()
    with attention_dropout(encoder, LEARNING) as dropout:
        output(encoder, batch([9, 9]))
        first = masked_draws(dropout)
        P = first[0].probability()
        assert not torch.allclose(P[0], P[1])
        assert not torch.allclose(P[:, 0], P[:, 1])
        assert not torch.allclose(P, first[1].probability())
        output(encoder, batch([9, 9]), seed=1)
        second = masked_draws(dropout)
        assert torch.equal(second[0].probability(), P)
        assert not torch.equal(second[0].dropped, first[0].dropped)


def test_rates_follow_the_schedule(bert: Any, tmp_path: Path) -> None:
    table = tmp_path / "rates.json"
    write_rate_table(table, [[0.0, 0.0, 0.9], [0.5, 0.0, 0.0]])
    for config, expected in [
        (ScheduledBernoulli(), {0.0: [0.1, 0.1, 0.1], 0.5: [0.3, 0.2, 0.1]}),
        (ScheduledBernoulli(table=table), {0.0: [0.0, 0.0, 0.9], 0.5: [0.5, 0.0, 0.0]}),
    ]:
        with attention_dropout(bert, config) as dropout:
            for progress, rates in expected.items():
                dropout.step(progress)
                output(bert, batch([30] * 8, T=30))
                statistics = dropout.statistics()
                assert statistics["drop_probability"] == pytest.approx(rates)
                assert statistics["dropped"] == pytest.approx(rates, abs=0.02)


@pytest.mark.parametrize("config", METHODS, ids=lambda c: c.kind)
def test_a_seed_fixes_the_masks(encoder: Any, config: AttentionDropoutConfig) -> None:
    encoder.train()
    with attention_dropout(encoder, config):
        states = [output(encoder, seed=seed) for seed in (1, 1, 2, 3, 4, 5, 6, 7, 8, 9)]
    assert torch.equal(states[0], states[1])
    assert any(not torch.equal(states[0], state) for state in states[2:])


def test_switched_off_a_run_is_the_plain_one_bit_for_bit(
    kind: str, tiny_encoder: Callable[..., Any]
) -> None:
    trained = []
    for config in (None, NoChange(), PlainDropout(rate=0.1)):
        encoder = tiny_encoder(kind).train()
        optimizer = torch.optim.AdamW(encoder.parameters())
        dropout = None if config is None else attention_dropout(encoder, config)
        torch.manual_seed(0)
        for step in range(3):
            loss = encoder(**batch(seed=step)).last_hidden_state.pow(2).mean()
            if dropout is not None:
                dropout.step(step / 3)
                loss = loss + dropout.budget_loss()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained.append(encoder.state_dict())
    for other in trained[1:]:
        assert all(torch.equal(value, other[name]) for name, value in trained[0].items())


def test_rows_that_would_be_emptied_are_guarded_and_counted(encoder: Any) -> None:
    encoder.train()
    config = ScheduledBernoulli(start=0.9, low_layer=0.9, high_layer=0.9)
    with attention_dropout(encoder, config) as dropout:
        states = output(encoder, batch([3, 2] * 20, T=3))
        guarded = dropout.statistics()["guarded"]
    assert torch.isfinite(states).all()
    expected = (3 * 0.9**3 + 2 * 0.9**2) / 5  # of rows with three and with two keys
    assert guarded == pytest.approx([expected] * 3, abs=0.06)


def test_a_pass_without_gradients_is_masked_but_trains_nothing(bert: Any) -> None:
    with attention_dropout(bert, LEARNING) as dropout:
        with torch.no_grad():
            output(bert)
        assert dropout.statistics()["dropped"][0] > 0
        assert dropout.take_passes() == []


def test_two_views_of_a_text_get_masks_of_their_own(bert: Any) -> None:
    with attention_dropout(bert, LEARNING) as dropout:
        inputs = batch()
        views = [bert(**inputs).last_hidden_state for _ in range(2)]
        assert not torch.allclose(views[0], views[1])
        first, second = dropout.take_passes()
        assert not torch.equal(first[0].dropped, second[0].dropped)


def test_a_classifier_and_a_sentence_transformer_are_reached_inside(
    tiny_encoder: Callable[..., Any], tiny_source: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    classifier = tiny_encoder("RoBERTa", head="ForSequenceClassification").train()
    with attention_dropout(classifier, LEARNING) as dropout:
        loss = classifier(**batch(), labels=torch.tensor([0, 1])).loss + dropout.budget_loss()
        loss.backward()
        assert dropout.statistics()["dropped"][0] > 0
    sentences = SentenceTransformer(str(tiny_source), device="cpu")
    plain = sentences.encode(["the cat sits"])
    with attention_dropout(sentences, LEARNING) as dropout:
        sentences.train()
        sentences(sentences.preprocess(["the cat sits", "a dog"]))
        assert dropout.statistics()["drop_probability"] == pytest.approx([0.1, 0.1], abs=0.05)
        assert (sentences.encode(["the cat sits"]) == plain).all()


def test_progress_is_a_share(bert: Any) -> None:
    with attention_dropout(bert, ScheduledBernoulli()) as dropout:
        for progress in (-0.1, 1.1, float("nan")):
            with pytest.raises(ValueError, match="from 0 to 1"):
                dropout.step(progress)


def test_two_at_once_are_refused(bert: Any) -> None:
    dropout = attention_dropout(bert, LEARNING)
    with pytest.raises(AttentionDropoutError, match="already"):
        attention_dropout(bert, ScheduledBernoulli())
    dropout.remove()
    dropout.remove()
    attention_dropout(bert, DropHead()).remove()


def test_a_model_whose_attention_cannot_be_reached_is_refused(bert: Any) -> None:
    import transformers

    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    mpnet = transformers.MPNetModel(
        transformers.MPNetConfig(**shape, intermediate_size=32, vocab_size=20)
    )
    with pytest.raises(AttentionDropoutError, match="MPNetModel does not call its attention"):
        attention_dropout(mpnet, ScheduledBernoulli())
    with pytest.raises(AttentionDropoutError, match="needs one transformers encoder, found none"):
        attention_dropout(torch.nn.Linear(2, 2), ScheduledBernoulli())
    with pytest.raises(AttentionDropoutError, match="found BertModel, BertModel"):
        attention_dropout(
            torch.nn.ModuleList([bert, type(bert)(bert.config)]), ScheduledBernoulli()
        )
    decoder = transformers.BertModel(
        transformers.BertConfig(**shape, intermediate_size=32, vocab_size=20, is_decoder=True)
    )
    with pytest.raises(AttentionDropoutError, match="configured as a decoder"):
        attention_dropout(decoder, ScheduledBernoulli())
    attention_dropout(mpnet, NoChange()).remove()


def test_another_encoder_with_the_same_configuration_is_left_alone(bert: Any) -> None:
    other = type(bert)(bert.config).eval()
    plain = output(other)
    with attention_dropout(bert, ScheduledBernoulli()):
        output(bert)
        torch.testing.assert_close(output(other), plain)
