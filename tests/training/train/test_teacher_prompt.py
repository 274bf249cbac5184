"""A teacher with a default prompt embeds a text alike, before the run and beside the student."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_index.errors import LaminaError
from lamina_training.distil_loss import Teacher
from lamina_training.encoder_folder import find_encoder, load_encoder
from lamina_training.prompt_tokens import PromptTokens
from lamina_training.teacher_embeddings import teacher_embeddings
from lamina_training.train import train
from lamina_training.train_config import TrainConfig

PROMPT = "the house : "
TEXTS = ["the cat", "a dog runs fast in the red house", "why"]


@pytest.fixture
def make_teacher(make_tiny_bert: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A tiny teacher with a default prompt."""

    def make(prompt: str = PROMPT, **pooling: Any) -> Path:
        folder = make_tiny_bert(tmp_path / "teacher", **({"pooling_mode": "mean"} | pooling))
        settings = {"prompts": {"say": prompt}, "default_prompt_name": "say"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
        return folder

    return make


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode": "mean"},
        {"pooling_mode": "cls"},
        {"pooling_mode": "mean", "include_prompt": False},
    ],
    ids=str,
)
def test_a_prompt_stands_before_a_text_beside_the_student_as_before_the_run(
    pooling: dict[str, Any], make_teacher: Callable[..., Path], base: Path, tmp_path: Path
) -> None:
    folder = make_teacher(**pooling)
    made = teacher_embeddings(str(folder), TEXTS, cache=tmp_path, device=torch.device("cpu"))
    student = load_encoder(find_encoder(str(base), cache=tmp_path))
    model = load_encoder(find_encoder(str(folder), cache=tmp_path))
    beside, states = Teacher(model, (0, 1)).read(student.preprocess(TEXTS))
    unit = torch.nn.functional.normalize(beside, dim=-1)
    torch.testing.assert_close(unit, made, rtol=1e-4, atol=1e-5)
    without = torch.from_numpy(model.encode(TEXTS, prompt=""))
    assert not torch.allclose(without, beside, atol=1e-2)
    tokens = student.preprocess(TEXTS)["input_ids"]
    assert [layer.shape for layer in states] == [(*tokens.shape, 32)] * 2


def test_the_states_are_those_of_the_texts_own_tokens_behind_the_prompt(
    make_teacher: Callable[..., Path], tmp_path: Path
) -> None:
    model = load_encoder(find_encoder(str(make_teacher()), cache=tmp_path))
    own = model.preprocess(["the red cat"])  # [CLS] the red cat [SEP]
    _, (found,) = Teacher(model, (1,)).read(own)
    whole = model.preprocess([PROMPT + "the red cat"])
    assert whole["input_ids"].shape[1] == own["input_ids"].shape[1] + 3
    with torch.no_grad():
        states = (
            model[0]
            .auto_model(input_ids=whole["input_ids"], attention_mask=whole["attention_mask"])
            .last_hidden_state
        )
    torch.testing.assert_close(found, states[:, [0, 4, 5, 6, 7]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("prompt", ["", None])
def test_without_a_default_prompt_nothing_is_put_before(prompt: str | None, base: Path) -> None:
    model = load_encoder(find_encoder(str(base), cache=base))
    if prompt is not None:
        model.prompts["say"], model.default_prompt_name = prompt, "say"
    model.prompts["query"] = "how : "  # never the default
    assert PromptTokens.of(model) is None


def distil_config(
    make_config: Callable[..., TrainConfig], teacher: Path, **tables: Any
) -> TrainConfig:
    distil = {"teacher": str(teacher), "together": True, "token_weight": 1.0}
    return make_config("distil", distil=distil, **tables)


def test_a_run_beside_a_teacher_with_a_prompt_ends(
    make_teacher: Callable[..., Path], make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = distil_config(make_config, make_teacher(), run={"steps": 2})
    train(config, tmp_path / "run", cache=tmp_path)


def test_a_prompt_whose_end_joins_the_first_word_is_refused(
    make_teacher: Callable[..., Path], make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    config = distil_config(make_config, make_teacher("how"))  # howthe
    with pytest.raises(LaminaError, match="joins the end of its prompt 'how' to the first word"):
        train(config, tmp_path / "run", cache=tmp_path)


def test_texts_and_prompt_have_to_fit_into_what_the_teacher_reads(
    make_teacher: Callable[..., Path], make_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    folder = make_teacher()
    config = distil_config(make_config, folder, encoder={"max_tokens": 510})
    message = r"encoder\.max_tokens is 510, .* reads 512 tokens, 3 of them its prompt's; .* to 509"
    with pytest.raises(LaminaError, match=message):
        train(config, tmp_path / "run", cache=tmp_path)
