"""Training passes without padding: the same embeddings and gradients, less to compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.merged_forward import embed_columns
from torch import Tensor
from transformers import Trainer, TrainingArguments

from lamina_training.by_length import TEXTS_A_PASS, embed_by_length
from lamina_training.run_trainer import LossByLength

WORD = "tokens"
LENGTHS = st.integers(1, 24)


@pytest.fixture(scope="module")
def model(
    make_tiny_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> SentenceTransformer:
    """In training mode, without the dropout that would give each pass other random numbers.

    In double precision, so that a wrong gradient is told from a rounded one.
    """
    folder = make_tiny_bert(tmp_path_factory.mktemp("by_length") / "bert")
    made = SentenceTransformer(str(folder), device="cpu").double().train()
    for module in made.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made


def features(model: SentenceTransformer, lengths: list[int]) -> dict[str, Any]:
    """One column of texts of so many words, padded to the longest."""
    tokenised: dict[str, Any] = model.preprocess([" ".join([WORD] * n) for n in lengths])
    return tokenised


def widths(model: SentenceTransformer, run: Callable[[], Any]) -> list[tuple[int, int]]:
    """Rows and columns of the tokens in each forward pass."""
    seen: list[tuple[int, int]] = []
    hook = model.register_forward_pre_hook(
        lambda _, given: seen.append(tuple(given[0]["input_ids"].shape))
    )
    try:
        run()
    finally:
        hook.remove()
    return seen


@given(st.lists(st.tuples(LENGTHS, LENGTHS, LENGTHS), min_size=1, max_size=20))
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_embeddings_and_gradients_are_those_of_padded_batches(
    model: SentenceTransformer, rows: list[tuple[int, int, int]]
) -> None:
    def learn(embed: Callable[..., list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
        columns = [features(model, list(lengths)) for lengths in zip(*rows, strict=True)]
        model.zero_grad()
        embeddings = embed(model, columns)
        weighted = [(n + 1) * each.pow(3) for n, each in enumerate(embeddings)]
        torch.stack([each.sum() for each in weighted]).sum().backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return embeddings, gradients

    expected, found = learn(embed_columns), learn(embed_by_length)
    assert [len(each) for each in found[0]] == [len(rows)] * 3
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-9)


def test_a_long_text_widens_only_the_texts_of_its_pass(model: SentenceTransformer) -> None:
    short, long = [3] * (2 * TEXTS_A_PASS - 1), [20]
    batch = features(model, [*long, *short])
    seen = widths(model, lambda: embed_by_length(model, [batch]))
    few = features(model, [3])["input_ids"].shape[1]
    assert seen == [(TEXTS_A_PASS, few), (TEXTS_A_PASS, batch["input_ids"].shape[1])]


def test_tokens_padded_on_the_left_are_left_as_they_are(model: SentenceTransformer) -> None:
    batch = features(model, [2, 9, *[3] * TEXTS_A_PASS])
    flipped = {
        name: value.flip(1) if isinstance(value, Tensor) else value for name, value in batch.items()
    }
    seen = widths(model, lambda: embed_by_length(model, [flipped]))
    assert seen == [tuple(batch["input_ids"].shape)]


def test_features_other_than_tokens_go_in_one_pass() -> None:
    class Linear(torch.nn.Module):
        def forward(self, given: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"sentence_embedding": given["input"] * 2}

    batch = {"input": torch.arange(6.0).reshape(3, 2)}
    (found,) = embed_by_length(Linear(), [batch])
    assert torch.equal(found, batch["input"] * 2)


def test_a_classifier_has_the_loss_and_gradients_of_a_padded_batch(
    tiny_encoder: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    classifier = tiny_encoder(kind, head="ForSequenceClassification").double().train()
    for module in classifier.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    classifier.config.attention_probs_dropout_prob = 0.0
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 20, (40, 1), generator=generator)
    mask = (torch.arange(20)[None] < lengths).long()
    mask = mask[:, : int(lengths.max())]
    tokens = torch.randint(1, 50, mask.shape, generator=generator) * mask
    labels = torch.randint(0, 2, (40,), generator=generator)
    batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
    seen: list[tuple[int, ...]] = []
    classifier.register_forward_pre_hook(
        lambda _, __, given: seen.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    trainer = LossByLength(classifier, TrainingArguments(str(tmp_path), report_to=[], use_cpu=True))

    def learn(compute_loss: Callable[..., Any]) -> tuple[Tensor, list[Tensor]]:
        classifier.zero_grad()
        loss = compute_loss(trainer, classifier, dict(batch))
        loss.backward()
        return loss.detach(), [
            p.grad.clone() for p in classifier.parameters() if p.grad is not None
        ]

    expected, found = learn(Trainer.compute_loss), learn(LossByLength.compute_loss)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    whole, *passes = seen
    assert whole == tuple(mask.shape)
    assert [rows for rows, _ in passes] == [TEXTS_A_PASS, TEXTS_A_PASS, 40 - 2 * TEXTS_A_PASS]
    assert sum(rows * width for rows, width in passes) < whole[0] * whole[1]
