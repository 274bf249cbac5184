"""A student comes to embed as its teacher does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.errors import LaminaError
from lamina_training.build_encoder import reinitialize_layers
from lamina_training.distil_loss import (
    DistilLoss,
    Teacher,
    similarity_divergence,
    unexplained_variance,
)
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.metrics_log import read_metrics
from lamina_training.teacher_embeddings import teacher_embeddings
from lamina_training.train import train
from lamina_training.train_config import TrainConfig


def test_divergence_is_that_of_the_hand_computed_distributions() -> None:
    # Text 0 is at cosine 1 and 0 to the others for the teacher, at 0 and 1 for the student.
    teacher = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    student = torch.tensor([[0.0, 1.0], [5.0, 0.0], [0.0, 1.0]])
    found = similarity_divergence(student, teacher, temperature=1.0, rows=slice(0, 1))
    likely = math.e / (math.e + 1)
    expected = likely * math.log(math.e) + (1 - likely) * math.log(1 / math.e)
    assert float(found) == pytest.approx(expected, abs=1e-6)


def test_divergence_equals_a_loop_and_is_0_for_equal_similarities() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(5, d, generator=generator) for d in (3, 4))
    total = 0.0
    for i in range(5):
        others = [j for j in range(5) if j != i]
        p, q = (
            torch.softmax(
                torch.stack([torch.cosine_similarity(e[i], e[j], dim=0) / 0.1 for j in others]), 0
            )
            for e in (teacher, student)
        )
        total += float((p * (p / q).log()).sum()) / 5
    found = similarity_divergence(student, teacher, temperature=0.1)
    assert float(found) == pytest.approx(total, abs=1e-5)
    rotated = student @ torch.linalg.qr(torch.randn(3, 3, generator=generator))[0]
    assert float(similarity_divergence(rotated, student, temperature=0.1)) == pytest.approx(
        0, abs=1e-5
    )


def test_two_texts_are_too_few() -> None:
    with pytest.raises(ValueError, match="three or more"):
        similarity_divergence(torch.eye(2), torch.eye(2), temperature=1.0)


class Fixed(torch.nn.Module):
    """Gives the embeddings it was made with."""

    def __init__(self, embeddings: torch.Tensor) -> None:
        super().__init__()
        self.embeddings = torch.nn.Parameter(embeddings)

    def get_embedding_dimension(self) -> int:
        return self.embeddings.shape[1]

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.embeddings}


def test_loss_is_one_minus_cosine_to_the_labelled_rows_of_the_teacher() -> None:
    teacher = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    model = Fixed(torch.tensor([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    loss = DistilLoss(model, teacher, vector_weight=2.0, similarity_weight=0.0, temperature=1.0)
    cosines = (1 + 1 + math.sqrt(0.5)) / 3
    found = loss([{}], torch.tensor([[1], [0], [0]])).detach()
    assert float(found) == pytest.approx(2 * (1 - cosines), abs=1e-6)


def test_a_student_of_another_width_gets_a_projection_for_training_only(
    make_config: Callable[..., TrainConfig],
    make_tiny_bert: Callable[..., Path],
    tmp_path: Path,
) -> None:
    loss = DistilLoss(
        Fixed(torch.eye(3)), torch.eye(5), vector_weight=1, similarity_weight=1, temperature=1
    )
    assert [tuple(p.shape) for p in loss.projection.parameters()] == [(5, 3)]


def test_unexplained_variance_is_0_for_equal_states_and_1_for_their_mean() -> None:
    teacher = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [9.0, 9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    mean = torch.tensor([2.0, 2.0]).expand(1, 3, 2)
    near = teacher + torch.tensor([1.0, 0.0])  # 2 missed of (1 + 4) + (1 + 4)
    found = [float(unexplained_variance([(s, teacher, mask)])) for s in (teacher, mean, near)]
    assert found == pytest.approx([0.0, 1.0, 0.2])
    halves = [(near[:, [n]], teacher[:, [n]], mask[:, [n]]) for n in range(2)]
    assert float(unexplained_variance(halves)) == pytest.approx(0.2)


TEXTS = ["the cat", "a dog runs fast in the red house", "why"]


@pytest.fixture
def teacher(base: Path, tmp_path: Path) -> Any:
    return load_encoder(find_encoder(str(base), cache=tmp_path)).eval()


@pytest.fixture
def student(base: Path, tmp_path: Path) -> Any:
    model = load_encoder(find_encoder(str(base), cache=tmp_path)).eval()
    reinitialize_layers(model[0].auto_model, 1)
    return model


@pytest.mark.parametrize("layers", [(1,), (0, 1), (1, 1)])
def test_tokens_of_each_layer_are_compared_without_padding(
    layers: tuple[int, ...], teacher: Any, student: Any
) -> None:
    loss = DistilLoss(
        student,
        Teacher(teacher, layers),
        vector_weight=0,
        similarity_weight=0,
        temperature=1,
        token_weight=2.0,
    )
    found = loss([student.preprocess(TEXTS)], torch.arange(3))
    own, its = ([alone(model, text) for text in TEXTS] for model in (student, teacher))
    missed = []
    for place, layer in enumerate(layers):
        number = place + 2 - len(layers)  # one alone is compared with the student's last
        s, t = (torch.cat([hidden[n] for hidden in h]) for h, n in ((own, number), (its, layer)))
        spread = sum(float((token - t.mean(dim=0)).square().sum()) for token in t)
        missed.append(float((s - t).square().sum()) / spread)
    assert float(found.detach()) == pytest.approx(2 * sum(missed) / len(missed), rel=1e-4)
    found.backward()
    assert all(weight.grad is None for weight in teacher.parameters())
    assert any(weight.grad is not None for weight in student.parameters())
    assert {id(weight) for weight in loss.parameters()} == {id(w) for w in student.parameters()}


def alone(model: Any, text: str) -> list[torch.Tensor]:
    """States (T, H) of one text after each layer."""
    features = model.preprocess([text])
    with torch.no_grad():
        found = model[0].auto_model(
            input_ids=features["input_ids"],
            attention_mask=features["attention_mask"],
            output_hidden_states=True,
        )
    return [states[0] for states in found.hidden_states[1:]]


def test_a_teacher_that_reads_beside_gives_the_loss_of_embeddings_made_before(
    base: Path, tmp_path: Path, teacher: Any, student: Any
) -> None:
    made = teacher_embeddings(str(base), TEXTS, cache=tmp_path, device=torch.device("cpu"))
    weights = {"vector_weight": 1.0, "similarity_weight": 2.0, "temperature": 0.5}
    features = [student.preprocess(TEXTS)]
    before, beside = (
        float(DistilLoss(student, of, **weights)(features, torch.arange(3)[:, None]).detach())
        for of in (made, Teacher(teacher, ()))
    )
    assert beside == pytest.approx(before, rel=1e-4)


def test_texts_of_all_columns_are_compared_together(teacher: Any, student: Any) -> None:
    loss = DistilLoss(
        student, Teacher(teacher, ()), vector_weight=1, similarity_weight=1, temperature=0.5
    )
    other = ["a tree", "the slow dog", "learn to cook"]
    columns = [student.preprocess(texts) for texts in (TEXTS, other)]
    together = loss(columns, torch.zeros(3, dtype=torch.long)).detach()
    alone = loss([student.preprocess(TEXTS + other)], torch.arange(6)).detach()
    assert float(together) == pytest.approx(float(alone), rel=1e-4)
    stored = DistilLoss(
        student,
        teacher.encode(["why", *TEXTS, *other], convert_to_tensor=True),
        vector_weight=1,
        similarity_weight=1,
        temperature=0.5,
    )
    places = torch.tensor([[1, 4], [2, 5], [3, 6]])  # of each row's text and other text
    assert float(stored(columns, places).detach()) == pytest.approx(float(alone), rel=1e-4)
    for wrong in (torch.arange(3), places[:, :1]):
        with pytest.raises(ValueError, match=r"labels .* are not the places \(B, 2\)"):
            stored(columns, wrong)


class Wide(Teacher):
    """A teacher that is wider than the students here."""

    widths = (20, 24)


def test_tokens_of_another_width_get_projections_of_their_own(teacher: Any, student: Any) -> None:
    loss = DistilLoss(
        student,
        Wide(teacher, (0, 1)),
        vector_weight=1,
        similarity_weight=0,
        temperature=1,
        token_weight=1,
    )
    width = student.get_embedding_dimension()
    assert [tuple(p.shape) for p in loss.token_projections.parameters()] == [(24, width)] * 2
    assert [tuple(p.shape) for p in loss.projection.parameters()] == [(20, width)]


def test_tokens_need_a_teacher_that_reads_and_layers_that_fit(teacher: Any, student: Any) -> None:
    weights = {"vector_weight": 0, "similarity_weight": 0, "temperature": 1, "token_weight": 1}
    with pytest.raises(ValueError, match="embeddings have no tokens"):
        DistilLoss(student, torch.eye(16), **weights)
    with pytest.raises(ValueError, match="3 of the teacher's layers; the student has 2"):
        DistilLoss(student, Teacher(teacher, (0, 1, 1)), **weights)


@pytest.mark.parametrize("layers", [[2], [0, 1, 1]])
def test_layers_that_a_teacher_lacks_or_a_student_cannot_match_are_refused(
    layers: list[int], make_config: Callable[..., TrainConfig], base: Path, tmp_path: Path
) -> None:
    distil = {"teacher": str(base), "token_weight": 1.0, "token_layers": layers}
    with pytest.raises(LaminaError, match=r"token_layers: .*expected one layer, or 2.* 0 to 1"):
        train(make_config("distil", distil=distil), tmp_path / "run", cache=tmp_path)


def test_rows_are_read_beside_the_teacher_which_needs_no_embeddings_kept(
    make_config: Callable[..., TrainConfig], base: Path, tmp_path: Path
) -> None:
    columns = ["anchor", "positive", "hard_negative"]
    config = make_config(
        "distil",
        encoder={"reinitialize_top": 1},
        distil={"teacher": str(base), "together": True, "token_weight": 1.0},
        data={"train": [{"file": "triplets.tsv", "columns": columns}]},
        run={"steps": 40, "batch_size": 4},
    )
    train(config, tmp_path / "run", cache=tmp_path)
    assert not (tmp_path / "teachers").exists()
    losses = [
        line["loss"] for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line
    ]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.fixture
def of_other_tokens(make_tiny_bert: Callable[..., Path], tmp_path: Path) -> Path:
    """A teacher whose tokenizer knows another word."""
    other = make_tiny_bert(tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["zebra"] = vocabulary.pop("cat")
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    return other


def test_tokens_of_another_tokenizer_are_refused(
    make_config: Callable[..., TrainConfig], of_other_tokens: Path, tmp_path: Path
) -> None:
    config = make_config("distil", distil={"teacher": str(of_other_tokens), "token_weight": 1.0})
    with pytest.raises(LaminaError, match="has other tokens than the student's"):
        train(config, tmp_path / "run", cache=tmp_path)


def test_rows_of_near_texts_are_learned_from_a_teacher_of_other_tokens_too(
    make_config: Callable[..., TrainConfig], of_other_tokens: Path, tmp_path: Path
) -> None:
    columns = ["anchor", "positive", "hard_negative"]
    config = make_config(
        "distil",
        encoder={"reinitialize_top": 1},
        distil={"teacher": str(of_other_tokens), "together": True},
        data={"train": [{"file": "triplets.tsv", "columns": columns}]},
        run={"steps": 40, "batch_size": 4},
    )
    train(config, tmp_path / "run", cache=tmp_path)
    assert len(list((tmp_path / "teachers").iterdir())) == 1
    losses = [
        line["loss"] for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line
    ]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_teacher_embeddings_are_computed_once(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the cat sits", "a dog runs", "how ?"]
    first = teacher_embeddings(str(base), texts, cache=tmp_path, device=torch.device("cpu"))
    assert first.norm(dim=1).tolist() == pytest.approx([1, 1, 1])
    monkeypatch.setattr("lamina_training.teacher_embeddings.load_encoder", None)
    again = teacher_embeddings(str(base), texts, cache=tmp_path, device=torch.device("cpu"))
    assert torch.equal(first, again)
    cpu = torch.device("cpu")
    for other in ({"texts": texts[::-1]}, {"texts": texts, "precision": "bf16"}):  # another file
        with pytest.raises(TypeError):
            teacher_embeddings(str(base), cache=tmp_path, device=cpu, **other)


def test_a_teacher_with_the_same_weights_and_another_pooling_has_vectors_of_its_own(
    make_tiny_bert: Callable[..., Path], tmp_path: Path
) -> None:
    mean, first = (
        make_tiny_bert(tmp_path / mode, pooling_mode=mode)  # the same random weights
        for mode in ("mean", "cls")
    )
    assert (mean / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    for teacher in (mean, first):
        fresh = tmp_path / f"alone-{teacher.name}"
        kept = teacher_embeddings(str(teacher), TEXTS, cache=tmp_path, device=torch.device("cpu"))
        alone = teacher_embeddings(str(teacher), TEXTS, cache=fresh, device=torch.device("cpu"))
        assert torch.equal(kept, alone)
    assert len(list((tmp_path / "teachers").iterdir())) == 2


def test_a_student_with_a_new_top_layer_comes_closer_to_its_teacher(
    make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = make_config("distil", encoder={"reinitialize_top": 1}, run={"steps": 40})
    train(config, tmp_path / "run", cache=tmp_path)
    losses = [
        line["loss"] for line in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in line
    ]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
