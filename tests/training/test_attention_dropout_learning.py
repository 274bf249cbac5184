"""AttendOut-style generators: what they start as, what they learn from, and how they resume."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
from torch.nn import functional

import lamina_training.attention_dropout.mask_sources as mask_sources
from lamina_training.attention_dropout import (
    AttendOut,
    AttentionDropout,
    AttentionDropoutError,
    attention_dropout,
)
from lamina_training.attention_dropout.generator import MaskGenerator

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


def test_generators_start_near_the_plain_rate(encoder: Any) -> None:
    encoder.train()
    with attention_dropout(encoder, AttendOut()) as dropout:
        for _ in range(20):
            output(encoder, batch([9, 9, 6], seed=3), seed=_)
        statistics = dropout.statistics()
    assert statistics["drop_probability"] == pytest.approx([0.1] * 3, abs=0.02)
    assert statistics["dropped"] == pytest.approx([0.1] * 3, abs=0.02)


def test_the_spread_is_that_of_the_probabilities_over_the_real_links_of_each_row(
    encoder: Any,
) -> None:
    encoder.train()
    inputs = batch([9, 5])
    with attention_dropout(encoder, LEARNING) as dropout:
        for generator in dropout._masks.generators:
            generator.query.weight.data *= 30  # so that P differs from link to link
        output(encoder, inputs)
        [passed] = dropout.take_passes()
        found = dropout.statistics()["drop_spread"]
    for layer, draw in passed.items():
        probability = torch.sigmoid(draw.logits.detach())  # (B, A, T, T)
        rows = [
            probability[text, head, row, :length].std(correction=0)
            for text, length in enumerate(inputs["attention_mask"].sum(dim=1).tolist())
            for head in range(probability.shape[1])
            for row in range(length)
        ]
        assert found[layer] == pytest.approx(float(torch.stack(rows).mean()), rel=1e-4)
    assert min(found) > 0.001


def test_one_step_gives_every_generator_a_gradient(encoder: Any) -> None:
    encoder.train()
    with attention_dropout(encoder, LEARNING) as dropout:
        (output(encoder).pow(2).mean() + dropout.budget_loss()).backward()
        assert len(dropout.parameters()) == 9
        for parameter in dropout.parameters():
            assert parameter.grad.abs().max() > 0


def test_the_budget_gives_the_encoder_no_gradient(encoder: Any) -> None:
    encoder.train()
    with attention_dropout(encoder, LEARNING.model_copy(update={"target": 0.5})) as dropout:
        output(encoder)
        dropout.budget_loss().backward()
        assert all(parameter.grad is None for parameter in encoder.parameters())
        assert all(parameter.grad is not None for parameter in dropout.parameters())


def test_the_task_reaches_generators_reversed_and_the_encoder_as_it_is(
    encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder.train()

    def gradients() -> tuple[list[Any], list[Any]]:
        encoder.zero_grad()
        torch.manual_seed(7)
        with attention_dropout(encoder, LEARNING) as dropout:
            output(encoder)[:, 0].sum(dim=-1).pow(2).mean().backward()
            output(encoder).pow(3).mean().backward()
            return (
                [parameter.grad.clone() for parameter in dropout.parameters()],
                [p.grad.clone() for p in encoder.parameters() if p.grad is not None],
            )

    generators, weights = gradients()
    monkeypatch.setattr(mask_sources, "reverse_gradient", lambda values: values)
    straight, same = gradients()
    torch.testing.assert_close(weights, same)
    torch.testing.assert_close(generators, [-gradient for gradient in straight])
    assert all(gradient.abs().max() > 0 for gradient in generators)


def toy_run(encoder: Any, dropout: AttentionDropout, *, steps: int, rate: float) -> None:
    """Tell texts apart by their first token, with the generators as adversary."""
    head = torch.nn.Linear(32, 2)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    generators = torch.optim.Adam(dropout.parameters(), lr=rate)
    inputs = batch([9, 9, 9, 6], seed=11)
    labels = inputs["input_ids"][:, 1] % 2
    for step in range(steps):
        dropout.step(step / steps)
        logits = head(encoder(**inputs).last_hidden_state[:, 0])
        loss = functional.cross_entropy(logits, labels) + dropout.budget_loss()
        optimizer.zero_grad()
        generators.zero_grad()
        loss.backward()
        optimizer.step()
        generators.step()


def test_a_large_budget_weight_keeps_the_mean_at_the_target(bert: Any) -> None:
    config = AttendOut(initial=0.4, target=0.1, budget_weight=1000.0, warmup=0.0)
    torch.manual_seed(0)
    with attention_dropout(bert, config) as dropout:
        toy_run(bert, dropout, steps=150, rate=0.05)
        dropout.statistics()
        output(bert, batch([9, 9, 9, 6], seed=11))
        means = dropout.statistics()["drop_probability"]
    assert sum(means) / 3 == pytest.approx(0.1, abs=0.05)


def test_a_budget_for_each_layer_is_kept_by_each(bert: Any) -> None:
    config = AttendOut(target=(0.5, 0.3, 0.1), budget_weight=1000.0, warmup=0.0)
    torch.manual_seed(0)
    with attention_dropout(bert, config) as dropout:
        toy_run(bert, dropout, steps=150, rate=0.05)
        dropout.statistics()
        output(bert, batch([9, 9, 9, 6], seed=11))
        means = dropout.statistics()["drop_probability"]
    assert means == pytest.approx([0.5, 0.3, 0.1], abs=0.05)


def test_a_budget_of_nothing_ends_in_no_attention_dropout(bert: Any) -> None:
    config = AttendOut(target=0.0, budget_weight=1e6, warmup=0.0)
    torch.manual_seed(0)
    with attention_dropout(bert, config) as dropout:
        toy_run(bert, dropout, steps=150, rate=0.3)
        dropout.statistics()
        texts = batch([9, 9, 9, 6], seed=11)
        trained = output(bert, texts)
        assert max(dropout.statistics()["drop_probability"]) < 0.005
        plain = output(bert.eval(), texts)
        assert (trained - plain).abs().mean() < 0.01 * plain.abs().mean()


def test_generators_stay_as_they_are_through_the_warm_up(bert: Any) -> None:
    with attention_dropout(bert, AttendOut(warmup=0.5)) as dropout:
        for progress, learns in [(0.0, False), (0.49, False), (0.5, True), (1.0, True)]:
            dropout.step(progress)
            (output(bert).pow(2).mean() + dropout.budget_loss()).backward()
            assert [p.grad is not None for p in dropout.parameters()] == [learns] * 9


def test_generators_resume_where_they_were(bert: Any, tiny_encoder: Callable[..., Any]) -> None:
    with attention_dropout(bert, LEARNING) as dropout:
        state = {name: value.clone() for name, value in dropout.state_dict().items()}
        expected = output(bert)
        other = tiny_encoder("BERT").train()
        torch.manual_seed(99)
        with attention_dropout(other, LEARNING) as resumed:
            resumed.load_state_dict(state)
            assert torch.equal(output(other), expected)


def test_gradient_checkpointing_gives_the_same_gradients(kind: str, tiny_encoder: Any) -> None:
    results = []
    for checkpointing in (False, True):
        encoder = tiny_encoder(kind).train()
        if checkpointing:
            encoder.activation_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(1)
        with attention_dropout(encoder, LEARNING) as dropout:
            (output(encoder).pow(3).mean() + dropout.budget_loss()).backward()
            dropout.step(0.5)
            results.append([p.grad for p in [*encoder.parameters(), *dropout.parameters()]])
    torch.testing.assert_close(results[0], results[1])


def test_links_at_the_cap_hear_the_budget() -> None:
    torch.manual_seed(0)
    generator = MaskGenerator(8, 2, head_size=4, initial=0.5, cap=0.5)
    with torch.no_grad():
        generator.bias += 1.0
    logits = generator(torch.randn(1, 3, 8))
    assert logits.max().item() == pytest.approx(0.0)
    (up,) = torch.autograd.grad(-logits.sum(), generator.bias, retain_graph=True)
    (down,) = torch.autograd.grad(logits.sum(), generator.bias)
    assert (up.item(), down.item()) == (0.0, 18.0)


def test_reentrant_checkpointing_is_refused(bert: Any) -> None:
    bert.activation_checkpointing_enable({"use_reentrant": True})
    with attention_dropout(bert, LEARNING) as dropout:
        output(bert)
        with pytest.raises(AttentionDropoutError, match="non-reentrant"):
            dropout.budget_loss()


def test_bfloat16_autocast_trains(encoder: Any) -> None:
    encoder.train()
    with (
        attention_dropout(encoder, LEARNING) as dropout,
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        loss = output(encoder).float().pow(2).mean() + dropout.budget_loss()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in dropout.parameters())


def test_an_objective_left_out_is_noticed(bert: Any) -> None:
    with attention_dropout(bert, LEARNING) as dropout:
        dropout.step(0.0)
        output(bert)
        with pytest.raises(AttentionDropoutError, match=r"add budget_loss\(\)"):
            dropout.step(0.5)


def test_budgets_for_another_number_of_layers_are_refused(bert: Any) -> None:
    with pytest.raises(AttentionDropoutError, match="has 2 budgets, the encoder 3 layers"):
        attention_dropout(bert, AttendOut(target=(0.3, 0.1)))
    attention_dropout(bert, LEARNING).remove()


TWO_PROCESSES = """
import sys, torch, transformers
from torch import distributed
from lamina_training.attention_dropout import AttendOut, attention_dropout

rank = int(sys.argv[1])
distributed.init_process_group("gloo", init_method=sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
bert = transformers.BertModel(transformers.BertConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)).train()
torch.manual_seed(rank)
dropout = attention_dropout(bert, AttendOut(warmup=0.0))
states = bert(torch.arange(6)[None] + 6 * rank).last_hidden_state
(states.pow(3).mean() + dropout.budget_loss()).backward()
for parameter in dropout.parameters():
    both = [torch.empty_like(parameter) for _ in range(2)]
    distributed.all_gather(both, parameter.detach())
    assert torch.equal(*both), "all processes start from the same generators"
    distributed.all_gather(both, parameter.grad)
    parameter.expected = (both[0] + both[1]) / 2
    assert not torch.equal(*both)
dropout.average_gradients()
for parameter in dropout.parameters():
    torch.testing.assert_close(parameter.grad, parameter.expected)
distributed.destroy_process_group()
"""


def test_two_processes_share_generators_and_their_gradients(tmp_path: Path) -> None:
    meeting = f"file://{tmp_path / 'meeting'}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, str(rank), meeting],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
