"""Masks on attention weights as plain tensor functions, against slow and obvious references."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina_training.attention_dropout.masks import (
    draw_hard,
    draw_straight_through,
    guard_rows,
    masked_attention,
    masked_softmax,
    real_pairs,
    reverse_gradient,
)
from lamina_training.attention_dropout.objectives import Draw, budget_penalty, policy_loss

B, A, T = 3, 2, 7


def all_real(B: int = B, T: int = T) -> torch.Tensor:
    return torch.ones((B, 1, T, T), dtype=torch.bool)


def padded(lengths: list[int], T: int) -> torch.Tensor:
    """What transformers gives: (B, 1, T, T), True where the key is a token."""
    token = torch.arange(T) < torch.tensor(lengths)[:, None]
    return token[:, None, None, :].expand(len(lengths), 1, T, T)


def test_a_dropped_key_gives_its_weight_to_the_others_in_proportion() -> None:
    scores = torch.log(torch.tensor([[[[1.0, 2.0, 5.0]]]]))  # softmax: 1/8, 2/8, 5/8
    weights = masked_softmax(scores, torch.tensor([[[[0.0, 0.0, 1.0]]]]))
    torch.testing.assert_close(weights, torch.tensor([[[[1 / 3, 2 / 3, 0.0]]]]))


def test_without_drops_it_is_softmax() -> None:
    scores = torch.randn(B, A, T, T) * 4
    weights = masked_softmax(scores, torch.zeros(B, A, T, T))
    torch.testing.assert_close(weights, scores.softmax(-1), rtol=1e-6, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0, 0.9), spread=st.floats(0.1, 40))
def test_it_equals_minus_infinity_before_the_softmax(seed: int, rate: float, spread: float) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(B, A, T, T) * spread
    real = all_real()
    dropped, _ = guard_rows(*_drawn(rate, real))
    weights = masked_softmax(scores, dropped)
    reference = scores.masked_fill(dropped > 0.5, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, reference, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, A, T), rtol=0, atol=1e-5)
    assert (weights[dropped > 0.5] == 0).all()


def _drawn(rate: float, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dropped, rank = draw_hard(rate, real, A)
    return dropped, real, rank


def test_a_dropped_key_that_had_all_the_weight_leaves_no_nan() -> None:
    scores = torch.tensor([[[[500.0, 0.0, 0.0]]]], requires_grad=True)
    dropped = torch.tensor([[[[1.0, 0.0, 0.0]]]], requires_grad=True)
    weights = masked_softmax(scores, dropped)
    assert weights.tolist() == [[[[0.0, 0.5, 0.5]]]]
    weights[..., 1].sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert torch.isfinite(dropped.grad).all()


def test_the_gradient_in_the_mask_is_that_of_multiplying_and_renormalising() -> None:
    torch.manual_seed(0)
    scores, mix = torch.randn(B, A, T, T), torch.randn(B, A, T, T)
    drawn, _ = guard_rows(*_drawn(0.3, all_real()))
    gradients = []
    for renormalised in (
        masked_softmax,
        lambda s, d: s.softmax(-1) * (1 - d) / (s.softmax(-1) * (1 - d)).sum(-1, keepdim=True),
    ):
        dropped = drawn.clone().requires_grad_()
        (renormalised(scores, dropped) * mix).sum().backward()
        gradients.append(dropped.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)
    assert gradients[0].abs().min() > 0


def test_an_emptied_row_keeps_the_real_key_of_lowest_probability() -> None:
    real = real_pairs(padded([7, 4], T), torch.zeros(2, T, 8))
    probability = torch.rand(2, A, T, T) * real
    dropped, emptied = guard_rows(real.expand(2, A, T, T).float(), real, probability)
    weights = masked_softmax(torch.randn(2, A, T, T), dropped)
    assert torch.isfinite(weights).all()
    for b, length in enumerate([7, 4]):
        for a in range(A):
            for query in range(length):
                kept = [key for key in range(length) if dropped[b, a, query, key] == 0]
                assert kept == [int(probability[b, a, query, :length].argmin())]
    assert emptied.sum() == A * (7 + 4)


def test_rows_that_kept_a_key_are_not_guarded() -> None:
    real = all_real(1, 3)
    dropped = torch.tensor([[[[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]]])
    guarded, emptied = guard_rows(dropped, real, torch.tensor([[[[0.1, 0.2, 0.3]] * 3]]))
    assert guarded.tolist() == [[[[1, 1, 0], [0, 1, 1], [0, 0, 0]]]]
    assert emptied.tolist() == [[[[False], [True], [False]]]]


def test_the_guard_of_a_constant_rate_favours_no_key() -> None:
    torch.manual_seed(0)
    real = all_real(200, 4)
    _, rank = draw_hard(0.9, real, A)
    guarded, _ = guard_rows(torch.ones(200, A, 4, 4), real, rank)
    kept = (1 - guarded).mean(dim=(0, 1, 2))
    torch.testing.assert_close(kept, torch.full((4,), 0.25), rtol=0, atol=0.04)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("relaxed", [False, True], ids=["hard", "straight-through"])
def test_the_share_of_dropped_links_is_the_probability(rate: float, relaxed: bool) -> None:
    torch.manual_seed(1)
    real = all_real(8, 64)
    if relaxed:
        logits = torch.full((8, A, 64, 64), math.log(rate / (1 - rate)))
        dropped = draw_straight_through(logits, real, temperature=0.66)
    else:
        dropped, _ = draw_hard(rate, real, A)
    assert set(dropped.unique().tolist()) == {0.0, 1.0}
    standard_error = math.sqrt(rate * (1 - rate) / dropped.numel())
    assert abs(dropped.mean().item() - rate) < 3 * standard_error


def test_texts_layers_and_heads_have_masks_of_their_own() -> None:
    torch.manual_seed(0)
    dropped, _ = draw_hard(0.5, all_real(2, 8), 2)
    assert not torch.equal(dropped[0], dropped[1])
    assert not torch.equal(dropped[:, 0], dropped[:, 1])


def test_padding_is_never_dropped_and_never_attended() -> None:
    torch.manual_seed(0)
    mask = padded([7, 3], T)
    real = real_pairs(mask, torch.zeros(2, T, 8))
    assert real[1, 0].sum() == 3 * 3
    dropped = draw_straight_through(torch.full((2, A, T, T), 9.0), real, temperature=0.66)
    assert (dropped * ~real).sum() == 0
    dropped, _ = guard_rows(dropped, real, torch.rand(2, A, T, T))
    query, key, value = torch.randn(3, 2, A, T, 4)
    _, weights = masked_attention(query, key, value, mask, dropped, scaling=0.5)
    assert (weights[1, :, :, 3:] == 0).all()


def test_boolean_and_additive_padding_masks_mean_the_same() -> None:
    mask = padded([7, 3], T)
    additive = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    hidden = torch.zeros(2, T, 8)
    assert torch.equal(real_pairs(mask, hidden), real_pairs(additive, hidden))
    query, key, value = torch.randn(3, 2, A, T, 4)
    none = torch.zeros(2, A, T, T)
    outputs = [masked_attention(query, key, value, m, none, scaling=0.5) for m in (mask, additive)]
    torch.testing.assert_close(outputs[0], outputs[1])


def test_a_text_without_tokens_gives_finite_attention() -> None:
    mask = padded([0], T)
    real = real_pairs(mask, torch.zeros(1, T, 8))
    dropped, _ = guard_rows(*_drawn(0.9, real))
    query, key, value = torch.randn(3, 1, A, T, 4)
    output, _ = masked_attention(query, key, value, mask, dropped, scaling=0.5)
    assert torch.isfinite(output).all()


def test_the_straight_through_gradient_is_that_of_the_relaxed_sample() -> None:
    logits = torch.tensor([[[[0.3]]]], requires_grad=True)
    torch.manual_seed(3)
    draw_straight_through(logits, all_real(1, 1), temperature=0.5).sum().backward()
    torch.manual_seed(3)
    noise = torch.logit(torch.rand(1))
    soft = torch.sigmoid((0.3 + noise) / 0.5)
    torch.testing.assert_close(logits.grad.flatten(), soft * (1 - soft) / 0.5)


def test_a_reversed_gradient_keeps_the_value() -> None:
    values = torch.tensor([0.0, 1.0], requires_grad=True)
    reversed_ = reverse_gradient(values)
    assert reversed_.tolist() == [0.0, 1.0]
    (reversed_ * torch.tensor([2.0, 3.0])).sum().backward()
    assert values.grad.tolist() == [-2.0, -3.0]


def make_draw(logit: float, T: int, *, dropped: float = 0.0, real: int | None = None) -> Draw:
    logits = torch.full((1, 2, T, T), logit, requires_grad=True)
    pairs = real_pairs(padded([T if real is None else real], T), torch.zeros(1, T, 4))
    return Draw(logits, pairs, torch.full((1, 2, T, T), dropped))


def test_the_budget_is_the_squared_distance_of_the_mean_over_real_links() -> None:
    half = make_draw(0.0, 4, real=2)  # P = 0.5 on 2 x 2 of 4 x 4 links
    assert budget_penalty([{0: half}], 0.1).item() == pytest.approx(0.16)
    often = make_draw(math.log(3), 2)  # P = 0.75 on as many links
    assert budget_penalty([{0: half, 1: often}], 0.125).item() == pytest.approx(0.25)
    assert budget_penalty([{0: half}, {0: often}], 0.125).item() == pytest.approx(0.25)


def test_budgets_for_each_layer_do_not_trade_with_each_other() -> None:
    draws = {0: make_draw(0.0, 3), 1: make_draw(math.log(3), 3)}
    penalty = budget_penalty([draws], [0.4, 0.55])
    assert penalty.item() == pytest.approx((0.1**2 + 0.2**2) / 2)


def test_the_policy_makes_rewarded_masks_likelier_and_punished_ones_rarer() -> None:
    for dropped, advantage, sign in [(1.0, 2.0, -1), (1.0, -2.0, 1), (0.0, 2.0, 1)]:
        draw = make_draw(-1.0, 3, dropped=dropped)
        policy_loss([{0: draw}], advantage, entropy_weight=0.0).backward()
        assert (draw.logits.grad.sign() == sign).all()
    # d/dz of log sigmoid(z) is 1 - sigmoid(z), here over 18 links
    expected = -2.0 * (0 - 1 / (1 + math.exp(1))) / 18
    torch.testing.assert_close(draw.logits.grad, torch.full((1, 2, 3, 3), expected))


def test_the_entropy_bonus_pulls_towards_one_half() -> None:
    draw = make_draw(-1.0, 3)
    policy_loss([{0: draw}], 0.0, entropy_weight=1.0).backward()
    assert (draw.logits.grad < 0).all()
