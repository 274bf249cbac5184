"""Copies of a text in a batch take no part of what its likeness to others is compared by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
from torch.nn import functional

from lamina_training import distil_loss
from lamina_training.build_encoder import reinitialize_layers
from lamina_training.distil_loss import DistilLoss, Teacher, similarity_divergence
from lamina_training.duplicates import token_key
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.teacher_embeddings import teacher_embeddings

TEMPERATURE = 0.05


def embeddings(texts: int) -> tuple[Any, Any]:
    """Of student and teacher."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(texts, 6, generator=generator), torch.randn(texts, 8, generator=generator)


def divergence_by_loop(student: Any, teacher: Any, keys: list[Any], rows: range) -> float:
    total = 0.0
    for i in rows:
        others = [j for j in range(len(keys)) if keys[j] != keys[i]]
        if not others:
            continue
        p, q = (
            torch.softmax(
                torch.stack(
                    [torch.cosine_similarity(e[i], e[j], dim=0) / TEMPERATURE for j in others]
                ),
                dim=0,
            )
            for e in (teacher, student)
        )
        total += float((p * (p / q).log()).sum())
    return total / len(rows)


def test_without_copies_the_divergence_is_the_same_to_the_last_bit() -> None:
    student, teacher = embeddings(9)
    own = torch.eye(9, dtype=torch.bool)
    logs = []
    for each in (student, teacher):
        units = functional.normalize(each, dim=-1)
        others = (units @ units.T / TEMPERATURE).masked_select(~own).view(9, 8)
        logs.append(functional.log_softmax(others, dim=-1))
    plain = functional.kl_div(*logs, log_target=True, reduction="batchmean")
    for keys in (None, torch.arange(9)):
        found = similarity_divergence(student, teacher, temperature=TEMPERATURE, keys=keys)
        assert torch.equal(found, plain)


@pytest.mark.parametrize("rows", [range(6), range(2, 4)])
def test_a_text_is_compared_with_all_but_its_copies(rows: range) -> None:
    student, teacher = embeddings(6)
    keys = [5, 7, 5, 9, 7, 5]
    found = similarity_divergence(
        student,
        teacher,
        temperature=TEMPERATURE,
        rows=slice(rows.start, rows.stop),
        keys=torch.tensor(keys),
    )
    expected = divergence_by_loop(student, teacher, keys, rows)
    assert float(found) == pytest.approx(expected, rel=1e-4)


def test_a_text_with_copies_alone_counts_nothing_and_has_a_gradient_of_0() -> None:
    student, teacher = embeddings(3)
    student.requires_grad_()
    same = torch.ones(3, dtype=torch.long)
    found = similarity_divergence(student, teacher, temperature=TEMPERATURE, keys=same)
    found.backward()
    assert float(found.detach()) == 0
    assert torch.equal(student.grad, torch.zeros(3, 6))


def test_a_copy_teaches_the_others_but_not_its_twin() -> None:
    student, teacher = (torch.cat([each, each[:1]]) for each in embeddings(4))
    keys = torch.tensor([0, 1, 2, 3, 0])
    first = slice(0, 1)
    alone, unmasked, masked = (
        float(similarity_divergence(*pair, temperature=TEMPERATURE, rows=first, keys=k))
        for pair, k in (
            ((student[:4], teacher[:4]), None),
            ((student, teacher), None),
            ((student, teacher), keys),
        )
    )
    assert masked == pytest.approx(alone, rel=1e-5)
    assert unmasked < 0.1 * alone  # the twin takes nearly all, on both sides


def test_keys_tell_tokens_apart_by_their_order_and_bounds() -> None:
    assert token_key([1, 23]) == token_key(iter([1, 23]))
    assert len({token_key(ids) for ids in ([1, 23], [12, 3], [23, 1], [1, 2, 3], [])}) == 5


FIRST = ["the cat sits", "a dog runs fast in the red house", "why"]
SECOND = ["a tree", "the cat sits", "learn to cook"]


@pytest.fixture
def models(base: Path, tmp_path: Path) -> tuple[Any, Any]:
    """Student and teacher."""
    student, teacher = (
        load_encoder(find_encoder(str(base), cache=tmp_path)).eval() for _ in range(2)
    )
    reinitialize_layers(student[0].auto_model, 1)
    return student, teacher


def expected_of(models: tuple[Any, Any], texts: list[str], rows: range) -> float:
    student, teacher = (torch.from_numpy(model.encode(texts)) for model in models)
    return divergence_by_loop(student, teacher, texts, rows)


def loss_of(models: tuple[Any, Any], teacher: Any, **options: Any) -> DistilLoss:
    return DistilLoss(
        models[0],
        teacher,
        vector_weight=0,
        similarity_weight=1,
        temperature=TEMPERATURE,
        **options,
    )


def test_a_batch_finds_the_copies_in_all_its_columns(models: tuple[Any, Any]) -> None:
    loss = loss_of(models, Teacher(models[1], ()))
    columns = [models[0].preprocess(texts) for texts in (FIRST, SECOND)]
    assert columns[0]["input_ids"].shape != columns[1]["input_ids"].shape
    found = float(loss(columns, torch.zeros(3, dtype=torch.long)).detach())
    assert found == pytest.approx(expected_of(models, FIRST + SECOND, range(6)), rel=1e-3)


def test_copies_are_found_where_the_teachers_embeddings_were_made_before(
    models: tuple[Any, Any], base: Path, tmp_path: Path
) -> None:
    texts = [*FIRST, "The CAT sits"]  # the same tokens
    made = teacher_embeddings(str(base), texts, cache=tmp_path, device=torch.device("cpu"))
    places = torch.arange(4)[:, None]
    found = loss_of(models, made)([models[0].preprocess(texts)], places).detach()
    lower = [text.lower() for text in texts]
    assert float(found) == pytest.approx(expected_of(models, lower, range(4)), rel=1e-3)


def test_copies_are_found_among_the_texts_of_all_processes(
    models: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    student, teacher = (torch.from_numpy(model.encode(SECOND)) for model in models)
    features = models[0].preprocess(SECOND)
    rows = zip(features["input_ids"].tolist(), features["attention_mask"].tolist(), strict=True)
    keys = torch.tensor([token_key(ids[: sum(mask)]) for ids, mask in rows])
    theirs = {torch.float32: teacher, torch.int64: keys}
    monkeypatch.setattr(distil_loss, "gather_rows", lambda own: torch.cat([own, student]))
    monkeypatch.setattr(distil_loss, "all_gather", lambda own: torch.cat([own, theirs[own.dtype]]))
    loss = loss_of(models, Teacher(models[1], ()), gather_across_devices=True)
    found = loss([models[0].preprocess(FIRST)], torch.arange(3)).detach()
    expected = expected_of(models, FIRST + SECOND, range(3))
    assert float(found) == pytest.approx(expected, rel=1e-3)
