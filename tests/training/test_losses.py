"""Contrastive losses: by hand, against a loop, cached against plain, and in the trainer."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
from sentence_transformers.base.losses import column_merging_disabled
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from lamina_training.duplicates import duplicate_keys
from lamina_training.losses import (
    SCHEMES,
    CachedContrastiveLoss,
    ContrastiveLoss,
    duplicate_mask,
    info_nce,
)
from lamina_training.training_data import Example, to_dataset

# Two rows; anchor and positive agree, and each hard negative is the other row's positive.
ANCHORS = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
CANDIDATES = torch.tensor([[[1.0, 0.0], [0.0, 3.0]], [[0.0, 1.0], [1.0, 0.0]]])


class Toy(nn.Module):
    """One linear layer with dropout in place of an encoder; counts its forward passes' rows."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3).double()
        self.dropout = nn.Dropout(dropout)
        self.largest = 0

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        self.largest = max(self.largest, len(features["input"]))
        return {"sentence_embedding": self.linear(self.dropout(features["input"]))}


def toy_batch(rows: int, columns: int) -> tuple[list[dict[str, Tensor]], Tensor]:
    """Features of distinct texts, and their keys."""
    generator = torch.Generator().manual_seed(1)
    features = [
        {"input": torch.randn(rows, 4, generator=generator, dtype=torch.float64)}
        for _ in range(columns)
    ]
    return features, keys_of(
        [[f"{row} {column}" for column in range(columns)] for row in range(rows)]
    )


def keys_of(texts: list[list[str]], clusters: list[list[str | None]] | None = None) -> Tensor:
    clusters = clusters or [[None] * len(row) for row in texts]
    return torch.tensor(
        [list(map(duplicate_keys, *row)) for row in zip(texts, clusters, strict=True)]
    )


def gradients(
    loss: nn.Module, batch: list[dict[str, Tensor]], keys: Tensor
) -> tuple[float, Tensor]:
    """Loss and gradients of one step; features are copied, since a model may write into them."""
    loss.zero_grad()
    value = loss([dict(column) for column in batch], keys)
    value.backward()
    return value.item(), torch.cat([p.grad.flatten() for p in loss.model.parameters()])


# Acceptance check 9 of the method card.
# Each row: positive at cosine 1, in-batch positive 0, own hard negative 0, other hard negative 1.
#   w = 0: log(e + 1 + 1 + e) - 1 = 1.006409    w = 1: log(e + 1 + e + e) - 1 = 1.214284
@pytest.mark.parametrize(("weight", "expected"), [(0.0, 1.006409), (1.0, 1.214284)])
def test_the_hard_negative_loss_is_as_computed_by_hand(weight: float, expected: float) -> None:
    loss = info_nce(ANCHORS, CANDIDATES, temperature=1.0, hard_negative_weight=weight)
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [1, 4])
def test_equal_embeddings_give_the_logarithm_of_the_candidates(n: int) -> None:
    same = torch.ones(n, 8)
    candidates = torch.stack([same, same])
    plain = info_nce(same, candidates, temperature=0.05)
    weighted = info_nce(same, candidates, temperature=0.05, hard_negative_weight=1.0)
    assert plain.item() == pytest.approx(math.log(2 * n), abs=1e-5)
    assert weighted.item() == pytest.approx(math.log(2 * n - 1 + math.e), abs=1e-5)


def test_temperature_divides_the_cosine() -> None:
    # Cosines 1 and 0 at temperature 0.5: log(e^2 + 1) - 2 = 0.126928.
    loss = info_nce(ANCHORS, CANDIDATES[:1], temperature=0.5)
    assert loss.item() == pytest.approx(0.126928, abs=1e-6)


def loop_loss(
    anchors: Tensor, candidates: Tensor, temperature: float, weight: float, excluded: Tensor
) -> float:
    """The docstring's formula, one exponential at a time."""
    total = 0.0
    for i, anchor in enumerate(anchors):
        denominator = numerator = 0.0
        for c, column in enumerate(candidates):
            for j, candidate in enumerate(column):
                cosine = float(anchor @ candidate / (anchor.norm() * candidate.norm()))
                term = math.exp(cosine / temperature + (weight if c > 0 and j == i else 0.0))
                if (c, j) == (0, i):
                    numerator = term
                if (c, j) == (0, i) or not excluded[i, c, j]:
                    denominator += term
        total -= math.log(numerator / denominator)
    return total / len(anchors)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    columns=st.integers(1, 3),
    temperature=st.sampled_from([0.05, 0.5, 1.0]),
    weight=st.sampled_from([0.0, 1.0, -0.5]),
    texts=st.integers(1, 12),
)
def test_the_loss_equals_a_plain_loop(
    seed: int, rows: int, columns: int, temperature: float, weight: float, texts: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    candidates = torch.randn(columns, rows, 4, generator=generator, dtype=torch.float64)
    keys = torch.randint(0, texts + 1, (rows, 1 + columns, 2), generator=generator)
    excluded = duplicate_mask(keys, torch.arange(rows))
    loss = info_nce(
        anchors,
        candidates,
        temperature=temperature,
        hard_negative_weight=weight,
        excluded=excluded,
    )
    expected = loop_loss(anchors, candidates, temperature, weight, excluded)
    assert loss.item() == pytest.approx(expected, abs=1e-9)


def test_without_weight_and_duplicates_it_is_the_librarys_loss() -> None:
    generator = torch.Generator().manual_seed(3)
    columns = [torch.randn(5, 8, generator=generator) for _ in range(3)]
    library = MultipleNegativesRankingLoss(None, scale=20.0)
    expected = library.compute_loss_from_embeddings(columns, torch.empty(0))
    ours = info_nce(columns[0], torch.stack(columns[1:]), temperature=0.05)
    assert ours.item() == pytest.approx(expected.item(), abs=1e-5)


def test_autocast_does_not_round_the_scores() -> None:
    generator = torch.Generator().manual_seed(4)
    anchors = torch.randn(6, 16, generator=generator)
    candidates = (anchors + 0.1 * torch.randn(6, 16, generator=generator))[None]
    exact = info_nce(anchors, candidates, temperature=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert info_nce(anchors, candidates, temperature=0.05).item() == exact.item()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        info_nce(ANCHORS, CANDIDATES, temperature=temperature)
    with pytest.raises(ValueError, match="temperature"):
        ContrastiveLoss(Toy(), temperature=temperature)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(R, D\) and \(C, N, D\)"):
        info_nce(ANCHORS, CANDIDATES[0], temperature=1.0)
    with pytest.raises(ValueError, match="1 anchors for 2 rows"):
        info_nce(ANCHORS[:1], CANDIDATES, temperature=1.0)


def masked(texts: list[list[str]], clusters: list[list[str | None]] | None = None) -> set[Any]:
    """(anchor row, column, row) of every candidate that is no negative, but the own positives."""
    mask = duplicate_mask(keys_of(texts, clusters), torch.arange(len(texts)))
    own = {(row, 0, row) for row in range(len(texts))}
    return set(map(tuple, mask.nonzero().tolist())) - own


def test_distinct_texts_are_all_negatives() -> None:
    assert masked([["a", "b", "c"], ["d", "e", "f"]]) == set()


def test_a_duplicate_of_the_positive_is_no_negative() -> None:
    assert masked([["a", "b"], ["c", "B."]]) == {(0, 0, 1), (1, 0, 0)}


def test_a_duplicate_of_the_anchor_is_no_negative() -> None:
    assert masked([["a", "b"], ["c", "a"]]) == {(0, 0, 1)}


def test_the_positive_of_an_equal_anchor_is_no_negative() -> None:
    assert masked([["a", "b"], ["a", "c"]]) == {(0, 0, 1), (1, 0, 0)}


def test_a_hard_negative_that_is_another_rows_positive_stays_out_there_only() -> None:
    # Row 1's hard negative is row 0's positive: no negative for row 0, still one for row 1.
    assert masked([["a", "b", "x"], ["c", "d", "b"]]) == {(0, 1, 1)}


def test_texts_of_one_cluster_are_no_negatives() -> None:
    texts = [["a", "b"], ["c", "d"], ["e", "f"]]
    clusters: list[list[str | None]] = [["q1", "q1"], ["q1", "q1"], ["q2", None]]
    assert masked(texts, clusters) == {(0, 0, 1), (1, 0, 0)}


def test_texts_without_a_cluster_do_not_form_one() -> None:
    assert masked([["a", "b"], ["c", "d"]], [[None, None], [None, None]]) == set()


def test_a_batch_of_duplicates_alone_teaches_nothing() -> None:
    features, _ = toy_batch(3, 2)
    loss = ContrastiveLoss(Toy())
    value, gradient = gradients(loss, features, keys_of([["a", "b"]] * 3))
    assert value == 0.0
    assert gradient.abs().max() == 0.0


def test_without_keys_duplicates_cannot_be_told_and_it_says_so() -> None:
    features, keys = toy_batch(2, 2)
    with pytest.raises(ValueError, match=r"labels None .* mask_duplicates=False"):
        ContrastiveLoss(Toy())(features)
    with pytest.raises(ValueError, match=r"labels \(2,\)"):
        ContrastiveLoss(Toy())(features, torch.tensor([0, 1]))
    unmasked = ContrastiveLoss(Toy(), mask_duplicates=False)(features)
    assert unmasked.item() == ContrastiveLoss(Toy())(features, keys).item()


def test_each_scheme_says_which_columns_it_takes() -> None:
    features, keys = toy_batch(2, 2)
    with pytest.raises(ValueError, match="one column of texts, got 2"):
        ContrastiveLoss(Toy(), scheme="self_supervised")(features, keys)
    for scheme in ("supervised", "hybrid"):
        with pytest.raises(ValueError, match="got 1"):
            ContrastiveLoss(Toy(), scheme=scheme)(features[:1], keys[:, :1])
    with pytest.raises(ValueError, match="supervised, self_supervised, hybrid"):
        ContrastiveLoss(Toy(), scheme="both")


def test_self_supervision_pairs_a_text_with_itself_under_other_dropout() -> None:
    features, keys = toy_batch(3, 1)
    model = Toy(dropout=0.5)
    loss = ContrastiveLoss(model, scheme="self_supervised")
    torch.manual_seed(5)
    value = loss(features, keys)
    torch.manual_seed(5)
    once, again = (model(features[0])["sentence_embedding"] for _ in range(2))
    assert not torch.equal(once, again)
    assert value.item() == info_nce(once, again[None], temperature=0.05).item()


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_hybrid_adds_the_weighted_self_supervised_loss_of_the_anchors(weight: float) -> None:
    features, keys = toy_batch(4, 3)
    keys[1, 0] = keys[0, 0]  # one duplicate pair of anchors counts in both terms
    model = Toy()
    supervised = ContrastiveLoss(model)(features, keys)
    alone = ContrastiveLoss(model, scheme="self_supervised")(features[:1], keys[:, :1])
    hybrid = ContrastiveLoss(model, scheme="hybrid", self_supervised_weight=weight)
    assert hybrid(features, keys).item() == pytest.approx(
        (supervised + weight * alone).item(), abs=1e-12
    )


def test_hybrid_keeps_an_anchor_from_the_second_encoding_of_its_positives_duplicate() -> None:
    features, keys = toy_batch(3, 2)
    keys[1, 0] = keys[0, 1]  # row 1's anchor is row 0's positive
    model = Toy()
    anchors = model(features[0])["sentence_embedding"]
    excluded = torch.zeros(3, 1, 3, dtype=torch.bool)
    excluded[0, 0, 1] = True
    again = info_nce(anchors, anchors[None], temperature=0.05, excluded=excluded)
    supervised = ContrastiveLoss(model)(features, keys)
    hybrid = ContrastiveLoss(model, scheme="hybrid")(features, keys)
    assert hybrid.item() == pytest.approx((supervised + again).item(), abs=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("mini_batch_size", [1, 2, 3, 7, 100])
def test_caching_gives_the_gradients_of_the_plain_loss(scheme: Any, mini_batch_size: int) -> None:
    features, keys = toy_batch(7, 1 if scheme == "self_supervised" else 3)
    keys[3] = keys[5]  # duplicates across parts
    options = {"scheme": scheme, "self_supervised_weight": 0.3}
    plain = gradients(ContrastiveLoss(Toy(), **options), features, keys)
    model = Toy()
    cached_loss = CachedContrastiveLoss(model, mini_batch_size=mini_batch_size, **options)
    cached = gradients(cached_loss, features, keys)
    assert cached[0] == pytest.approx(plain[0], abs=1e-12)
    assert torch.allclose(cached[1], plain[1], atol=1e-12, rtol=0)
    assert plain[1].abs().max() > 1e-3
    assert model.largest == min(mini_batch_size, 7)


def test_caching_repeats_the_dropout_of_its_first_pass() -> None:
    features, keys = toy_batch(5, 3)
    plain_loss = ContrastiveLoss(Toy(dropout=0.5))
    cached_loss = CachedContrastiveLoss(Toy(dropout=0.5), mini_batch_size=5)
    torch.manual_seed(6)
    with column_merging_disabled():  # the cached loss embeds column by column
        plain = gradients(plain_loss, features, keys)
    torch.manual_seed(6)
    cached = gradients(cached_loss, features, keys)
    assert cached[0] == pytest.approx(plain[0], abs=1e-12)
    assert torch.allclose(cached[1], plain[1], atol=1e-12, rtol=0)


def test_caching_evaluates_without_gradients() -> None:
    features, keys = toy_batch(5, 2)
    with torch.no_grad():
        cached = CachedContrastiveLoss(Toy(), mini_batch_size=2)(features, keys)
        assert cached.item() == pytest.approx(ContrastiveLoss(Toy())(features, keys).item())


def test_a_mini_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="mini_batch_size must be at least 1"):
        CachedContrastiveLoss(Toy(), mini_batch_size=0)


def test_two_processes_give_the_loss_and_gradients_of_one(tmp_path: Path) -> None:
    script = tmp_path / "process.py"
    script.write_text(PROCESS, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path / "store")]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    replies = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    equal = [f"{name} {scheme} equal" for name in ("plain", "cached") for scheme in SCHEMES]
    assert [reply.splitlines()[-len(equal) :] for reply in replies] == [equal] * 2


# Each process holds half of a batch in which a row of one half duplicates a row of the other.
PROCESS = """
import sys
from functools import partial
from itertools import product
import torch
import torch.distributed
from torch import nn
from lamina_training.losses import SCHEMES, CachedContrastiveLoss, ContrastiveLoss

store, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
linear = nn.Linear(4, 3).double()

class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = linear
    def forward(self, features):
        return {"sentence_embedding": self.linear(features["input"])}

features = [torch.randn(6, 4, dtype=torch.float64) for _ in range(3)]
keys = torch.arange(1, 37).reshape(6, 3, 2)
keys[4] = keys[1]

def step(make, scheme, rows, gather):
    loss = make(Toy(), scheme=scheme, gather_across_devices=gather)
    columns = 1 if scheme == "self_supervised" else 3
    linear.zero_grad()
    batch = [{"input": column[rows]} for column in features[:columns]]
    value = loss(batch, keys[rows, :columns])
    value.backward()
    return torch.cat([value.detach()[None], linear.weight.grad.flatten(), linear.bias.grad])

cached = partial(CachedContrastiveLoss, mini_batch_size=2)
makes = (("plain", ContrastiveLoss), ("cached", cached))
for (name, make), scheme in product(makes, SCHEMES):
    whole = step(make, scheme, slice(0, 6), False)
    part = step(make, scheme, slice(3 * rank, 3 * rank + 3), True)
    torch.distributed.all_reduce(part)  # as data-parallel training averages
    equal = torch.allclose(part / 2, whole, atol=1e-12)
    print(name, scheme, "equal" if equal else f"{part / 2} is not {whole}")
torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("cached", [False, True])
def test_the_librarys_trainer_brings_the_keys_to_the_loss(
    tiny_source: Path, tmp_path: Path, cached: bool
) -> None:
    model = SentenceTransformer(str(tiny_source), device="cpu")
    before = model[0].auto_model.encoder.layer[0].output.dense.weight.detach().clone()
    words = ("the cat sits", "a dog runs", "red house", "blue tree")
    examples = [Example((word, f"{word} fast", f"{word} slow"), ("q", "q", None)) for word in words]
    loss = CachedContrastiveLoss(model, mini_batch_size=2) if cached else ContrastiveLoss(model)
    seen: list[Tensor] = []
    loss.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[1]))
    arguments = Arguments(
        str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = SentenceTransformerTrainer(
        model, arguments, train_dataset=to_dataset(examples), loss=loss
    )
    trainer.train()
    assert seen[0].shape == (4, 3, 2)
    assert not torch.equal(before, model[0].auto_model.encoder.layer[0].output.dense.weight)
