"""R2, the policy gradient: two updates from the same weights, one reward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
from torch.nn import functional

from lamina_training.attention_dropout import (
    AttendOut,
    AttentionDropout,
    AttentionDropoutError,
    PolicyGradient,
    attention_dropout,
)

POLICY = AttendOut(objective="policy", warmup=0.0)
IDS = torch.arange(5, 29).view(4, 6)


class Run:
    """A classifier, its optimisers, and what was called."""

    def __init__(self, model: Any, dropout: AttentionDropout) -> None:
        self.model = model.train()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        self.generators = torch.optim.AdamW(dropout.parameters(), lr=1e-2)
        self.policy = PolicyGradient(dropout, model, self.optimizer, self.generators)
        self.modes: list[bool] = []

    def update(self) -> Any:
        loss = functional.cross_entropy(self.model(IDS[:2]).logits, torch.tensor([0, 1]))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def held_out(self) -> Any:
        self.modes.append(self.model.training)
        return functional.cross_entropy(self.model(IDS[2:]).logits, torch.tensor([0, 1]))


@pytest.fixture
def classifier(tiny_encoder: Callable[..., Any]) -> Any:
    return tiny_encoder("BERT", head="ForSequenceClassification")


def test_the_update_without_masks_is_undone_in_the_optimiser_too(classifier: Any) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        for _ in range(2):
            run.policy.step(run.update, run.held_out)
    assert {int(state["step"]) for state in run.optimizer.state.values()} == {2}
    assert run.modes == [False] * 4
    assert classifier.training


def _seeded(update: Callable[[], Any], seed: int) -> Any:
    torch.manual_seed(seed)
    return update()


def test_one_step_ends_where_a_lone_masked_update_ends(
    classifier: Any, tiny_encoder: Callable[..., Any]
) -> None:
    torch.manual_seed(1)
    with attention_dropout(classifier, POLICY) as dropout:
        state = {name: value.clone() for name, value in dropout.state_dict().items()}
        run = Run(classifier, dropout)
        run.policy.step(lambda: _seeded(run.update, 0), run.held_out)
    other = tiny_encoder("BERT", head="ForSequenceClassification")
    with attention_dropout(other, POLICY) as dropout:
        dropout.load_state_dict(state)
        alone = Run(other, dropout)
        _seeded(alone.update, 0)
    for name, value in classifier.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


@pytest.mark.parametrize(("initial", "drops"), [(1e-6, False), (0.5, True)])
def test_the_reward_is_exactly_0_where_no_link_is_dropped(
    initial: float, drops: bool, kind: str, tiny_encoder: Callable[..., Any]
) -> None:
    noisy = {"dropout": 0.3} if kind == "DistilBERT" else {"hidden_dropout_prob": 0.3}
    classifier = tiny_encoder(kind, head="ForSequenceClassification", **noisy)
    config = POLICY.model_copy(update={"initial": initial})
    with attention_dropout(classifier, config) as dropout:
        run = Run(classifier, dropout)
        steps = [run.policy.step(run.update, run.held_out) for _ in range(4)]
        shares = dropout.statistics()["dropped"]
    assert [step.reward != 0.0 for step in steps] == [drops] * 4
    assert [share > 0 for share in shares] == [drops] * 3


def test_both_updates_have_the_same_other_dropout(tiny_encoder: Callable[..., Any]) -> None:
    classifier = tiny_encoder("BERT", head="ForSequenceClassification", hidden_dropout_prob=0.3)
    kept: list[Any] = []

    def keep(module: Any, given: tuple[Any, ...], output: Any) -> None:
        if module.training and module.p == 0.3:
            kept.append(output != 0)

    for module in classifier.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(keep)
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        for _ in range(2):
            run.policy.step(run.update, run.held_out)
        assert dropout.statistics()["dropped"][0] > 0
    updates = [kept[n * len(kept) // 4 : (n + 1) * len(kept) // 4] for n in range(4)]
    plain, masked, plain_next, masked_next = updates
    assert len(plain) == 8  # embeddings, two in each layer, the head
    assert all(torch.equal(a, b) for a, b in zip(plain, masked, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain_next, masked_next, strict=True))
    assert not torch.equal(plain[0], plain_next[0])


def test_the_reward_is_how_much_lower_the_masked_step_leaves_the_held_out_loss(
    classifier: Any,
) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        losses = iter([2.0, 1.5, 1.0, 1.25, 3.0, 2.75])  # plain, masked, plain, ...
        steps = [run.policy.step(run.update, lambda: torch.tensor(next(losses))) for _ in range(3)]
    assert [step.reward for step in steps] == [0.5, -0.25, 0.25]
    # the baseline: 0.5 | 0.5 | 0.9 * 0.5 - 0.1 * 0.25 = 0.425; so the surprise: 0, -0.75, -0.175
    # its mean square: none | 0.75^2 | 0.9 * 0.5625 + 0.1 * 0.030625 = 0.5093125
    expected = [0.0, -1.0, -0.175 / math.sqrt(0.5093125)]
    assert [step.advantage for step in steps] == pytest.approx(expected)


def test_rewards_of_any_size_teach_the_same(tiny_encoder: Callable[..., Any]) -> None:
    learnt = []
    for size in (1.0, 1e-4):
        classifier = tiny_encoder("BERT", head="ForSequenceClassification")
        torch.manual_seed(0)
        with attention_dropout(classifier, POLICY) as dropout:
            run = Run(classifier, dropout)
            losses = iter([size * value for value in (2, 1.5, 1, 1.25, 3, 2.75, 1, 1)])
            for _ in range(4):
                run.policy.step(run.update, lambda losses=losses: torch.tensor(next(losses)))
            learnt.append([parameter.detach().clone() for parameter in dropout.parameters()])
    torch.testing.assert_close(learnt[0], learnt[1], rtol=1e-3, atol=1e-5)


def test_rewards_that_never_change_teach_nothing_but_entropy(classifier: Any) -> None:
    config = POLICY.model_copy(update={"entropy_weight": 0.0})
    with attention_dropout(classifier, config) as dropout:
        run = Run(classifier, dropout)
        steps = [run.policy.step(run.update, lambda: torch.tensor(1.0)) for _ in range(3)]
    assert {(step.reward, step.advantage) for step in steps} == {(0.0, 0.0)}


def test_generators_learn_from_the_reward_alone(classifier: Any) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        run.update()
        assert all(parameter.grad is None for parameter in dropout.parameters())
        dropout.take_passes()
        before = [parameter.detach().clone() for parameter in dropout.parameters()]
        run.policy.step(run.update, run.held_out)
        after = dropout.parameters()
        assert all(not torch.equal(b, a) for b, a in zip(before, after, strict=True))
        dropout.step(0.5)


def held_out_of(dropout: AttentionDropout, sign: int) -> Callable[[], Any]:
    """A loss that falls (or rises) with the share that was dropped; 0 after a plain update."""
    return lambda: torch.tensor(-sign * sum(dropout.statistics().get("dropped", [0.0])))


def test_rewarded_dropping_drops_more_and_punished_less(tiny_encoder: Callable[..., Any]) -> None:
    ends = []
    for sign in (1, -1):
        classifier = tiny_encoder("BERT", head="ForSequenceClassification", layers=1)
        torch.manual_seed(0)
        with attention_dropout(classifier, POLICY) as dropout:
            run = Run(classifier, dropout)
            for _ in range(60):
                run.policy.step(run.update, held_out_of(dropout, sign))
            run.model(IDS[:2])
            ends += dropout.statistics()["drop_probability"]
    rewarded, punished = ends
    assert rewarded > 0.15
    assert punished < rewarded / 2


def test_one_optimiser_for_all_takes_the_models_step_once(classifier: Any) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        optimizer = torch.optim.AdamW(
            [
                {"params": list(classifier.parameters()), "lr": 1e-2},
                {"params": dropout.parameters(), "lr": 1e-2},
            ]
        )
        run.optimizer = optimizer
        run.policy = PolicyGradient(dropout, classifier, optimizer, optimizer)
        run.policy.step(run.update, run.held_out)
        trained = [*classifier.parameters(), *dropout.parameters()]
        assert {int(optimizer.state[p]["step"]) for p in trained if p in optimizer.state} == {1}
        assert all(p in optimizer.state for p in dropout.parameters())


def test_the_rewards_mean_is_resumed_with_the_generators(
    classifier: Any, tiny_encoder: Callable[..., Any]
) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        assert "reward_baseline" not in dropout.state_dict()
        run = Run(classifier, dropout)
        losses = iter([2.0, 1.9, 1.0, 0.7])
        for _ in range(2):
            run.policy.step(run.update, lambda: torch.tensor(next(losses)))
        state = {name: value.clone() for name, value in dropout.state_dict().items()}
        known = (dropout.reward_baseline, dropout.reward_variance)
    assert known == pytest.approx((0.9 * 0.1 + 0.1 * 0.3, 0.2**2))
    with attention_dropout(tiny_encoder("BERT"), POLICY) as resumed:
        resumed.load_state_dict(state)
        assert (resumed.reward_baseline, resumed.reward_variance) == known


def test_the_log_gets_the_mean_reward_since_it_last_asked(classifier: Any) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        assert run.policy.statistics() == {}
        losses = iter([2.0, 1.5, 1.0, 1.25])
        for _ in range(2):
            run.policy.step(run.update, lambda: torch.tensor(next(losses)))
        found = run.policy.statistics()
        assert found == pytest.approx({"reward": 0.125, "reward_baseline": 0.425})
        assert run.policy.statistics() == {}


def test_the_warm_up_trains_the_encoder_only(classifier: Any) -> None:
    with attention_dropout(classifier, AttendOut(objective="policy", warmup=0.5)) as dropout:
        run = Run(classifier, dropout)
        before = [parameter.detach().clone() for parameter in dropout.parameters()]
        step = run.policy.step(run.update, run.held_out)
        assert (step.reward, run.modes) == (0.0, [])
        assert all(torch.equal(b, a) for b, a in zip(before, dropout.parameters(), strict=True))


def test_training_past_the_policy_is_noticed(classifier: Any) -> None:
    with attention_dropout(classifier, POLICY) as dropout:
        run = Run(classifier, dropout)
        run.update()
        with pytest.raises(AttentionDropoutError, match=r"PolicyGradient\.step"):
            dropout.step(0.1)


def test_other_kinds_have_no_policy(classifier: Any) -> None:
    with (
        attention_dropout(classifier, AttendOut()) as dropout,
        pytest.raises(ValueError, match="objective = 'policy'"),
    ):
        Run(classifier, dropout)
