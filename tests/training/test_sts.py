"""Rank correlation and its two averages, by hand and against other tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr  # the reference; sentence-transformers brings it
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from lamina_index.errors import EncoderOutputError
from lamina_training.data_rows import TrainingDataError
from lamina_training.embedding import encode_with, unit_embeddings
from lamina_training.sts import (
    TASKS,
    StsPairs,
    StsScore,
    aggregate,
    average,
    read_sts,
    read_sts_tasks,
    read_stsb,
    score_sts,
    spearman,
)

DEGREES = {"east": 0, "north-east": 45, "north": 90, "west": 180}


def compass(texts: Sequence[str]) -> NDArray[np.floating]:
    """Encode a direction as that direction, three times as long as a unit vector."""
    angles = np.radians([DEGREES[text] for text in texts])
    return 3 * np.column_stack([np.cos(angles), np.sin(angles)])


def pairs_of(*rows: tuple[str, str, float, str]) -> StsPairs:
    first, second, gold, subsets = zip(*rows, strict=True)
    return StsPairs(first, second, np.array(gold, dtype=np.float64), subsets)


# Ranks (1, 2, 3, 4) and (2, 1, 4, 3): differences of 1, so 1 - 6 * 4 / (4 * 15) = 0.6.
def test_spearman_is_as_computed_by_hand() -> None:
    assert spearman([10, 20, 30, 40], [2, 1, 4, 3]) == pytest.approx(0.6)


# Ranks (1.5, 1.5, 3) and (1, 2, 3): covariance 1.5 over sqrt(1.5 * 2).
def test_equal_values_share_their_mean_rank() -> None:
    assert spearman([5, 5, 9], [1, 2, 3]) == pytest.approx(1.5 / 3**0.5)


def test_a_constant_side_orders_nothing() -> None:
    assert spearman([1, 1, 1], [1, 2, 3]) == 0.0


@pytest.mark.parametrize("sides", [([1], [1]), ([1, 2], [1, 2, 3])])
def test_too_few_or_unequal_values_are_refused(sides: tuple[list[int], list[int]]) -> None:
    with pytest.raises(ValueError, match="two or more pairs"):
        spearman(*sides)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-1, 1)), min_size=2, max_size=30))
def test_spearman_equals_scipys(rows: list[tuple[int, float]]) -> None:
    gold, cosines = map(list, zip(*rows, strict=True))
    if len(set(gold)) > 1 and len(set(cosines)) > 1:
        assert spearman(gold, cosines) == pytest.approx(spearmanr(gold, cosines).statistic)


# Subset a (2 pairs) is in order, 1; subset b (3 pairs) reversed, -1; so wmean = (2 - 3) / 5.
# Together: cosines (.1 .2 .5 .4 .3) have ranks 1 2 5 4 3, gold 1 2 3 4 5: 1 - 6 * 8 / 120 = 0.6.
def test_the_two_averages_differ_and_are_as_computed_by_hand() -> None:
    pairs = pairs_of(*(("x", "y", gold, name) for gold, name in enumerate("aabbb")))
    score = aggregate(np.array([0.1, 0.2, 0.5, 0.4, 0.3]), pairs)
    assert score.all == pytest.approx(60.0)
    assert score.wmean == pytest.approx(-20.0)
    assert score.subsets == pytest.approx({"a": 100.0, "b": -100.0})


def test_one_set_without_subsets_has_one_score() -> None:
    pairs = pairs_of(
        ("east", "west", 0, ""), ("east", "north-east", 4, ""), ("east", "north", 2, "")
    )
    score = score_sts(compass, {"toy": pairs})["toy"]
    assert (score.all, score.wmean) == (pytest.approx(100.0), pytest.approx(100.0))


def test_each_sentence_is_encoded_once() -> None:
    calls: list[str] = []

    def counting(texts: Sequence[str]) -> NDArray[np.floating]:
        calls.extend(texts)
        return compass(texts)

    pairs = pairs_of(("east", "west", 0, ""), ("east", "north", 2, ""))
    score_sts(counting, {"one": pairs, "two": pairs})
    assert sorted(calls) == ["east", "north", "west"]


def test_tasks_weigh_the_same_in_the_average() -> None:
    scores = {"a": StsScore(80.0, 70.0, {}), "b": StsScore(60.0, 40.0, {})}
    assert average(scores, "all") == 70.0
    assert average(scores, "wmean") == 55.0
    with pytest.raises(ValueError, match="no task"):
        average({}, "all")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0])
def test_an_embedding_without_direction_is_refused_and_named(bad: float) -> None:
    def encode(texts: Sequence[str]) -> NDArray[np.floating]:
        return np.array([[1.0, 0.0], [bad, 0.0]])

    with pytest.raises(EncoderOutputError, match="1 of 2 texts, first for 'second'") as caught:
        unit_embeddings(encode, ["first", "second"])
    assert caught.value.items == (1,)


def test_a_wrong_number_of_embeddings_is_refused() -> None:
    with pytest.raises(ValueError, match=r"2 texts gave embeddings of shape \(1, 2\)"):
        unit_embeddings(lambda texts: np.ones((1, 2)), ["a", "b"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["score\tsentence1\tsentence2", "5.5\ta\tb"], r':2: column "score" is "5\.5"; .* 0 to 5'),
        (["score\tsentence1\tsentence2", "x\ta\tb"], r':2: column "score" is "x"'),
        (["score\tsentence1\tsentence2", "nan\ta\tb"], r':2: column "score" is "nan"'),
        (["score\tsentence1\tsentence2", "1\ta\tb"], r"has one pair"),
        (["score\tsentence1", "1\ta"], r':1: no column "sentence2"'),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(TrainingDataError, match=message):
        read_sts(path)


def test_the_librarys_evaluator_gives_the_same_score(tiny_source: Path) -> None:
    model = SentenceTransformer(str(tiny_source), device="cpu")
    words = ["a dog runs", "blue tree", "how ?", "cook fast", "learn why", "the slow cat sits"]
    pairs = pairs_of(  # no pair twice and none of equal texts, whose order is but rounding
        *(("the cat", two, place % 3, "") for place, two in enumerate(words)),
        *(("red house", two, place % 4, "") for place, two in enumerate(words)),
    )
    evaluator = EmbeddingSimilarityEvaluator(pairs.first, pairs.second, pairs.gold.tolist())
    expected = evaluator(model)["spearman_cosine"]
    score = score_sts(encode_with(model), {"toy": pairs})["toy"].all
    assert score == pytest.approx(100 * expected, abs=1e-3)


def test_encoding_keeps_a_model_in_training_in_training(tiny_source: Path) -> None:
    model = SentenceTransformer(str(tiny_source), device="cpu").train()
    encode = encode_with(model)
    assert np.array_equal(encode(["the cat"]), encode(["the cat"]))  # no dropout
    assert model.training
    model.eval()
    encode(["the cat"])
    assert not model.training


def test_roles_use_the_models_prompts(tiny_source: Path) -> None:
    model = SentenceTransformer(str(tiny_source), device="cpu")
    plain, query, document = (
        unit_embeddings(encode_with(model, role=role), ["the cat"])
        for role in (None, "query", "document")
    )
    assert np.allclose(query, unit_embeddings(encode_with(model), ["how : the cat"]), atol=1e-6)
    assert not np.allclose(query, document)
    assert not np.allclose(query, plain)


def test_the_seven_tasks_have_their_usual_numbers_of_pairs(shared_data: Path) -> None:
    tasks = read_sts_tasks(shared_data)
    assert tuple(tasks) == TASKS
    counts = [len(pairs.gold) for pairs in tasks.values()]
    assert counts == [3108, 1500, 3750, 3000, 1186, 1379, 4927]
    subsets = [len(set(pairs.subsets)) for pairs in tasks.values()]
    assert subsets == [5, 3, 6, 5, 5, 1, 1]
    assert len(read_stsb(shared_data, "dev").gold) == 1500
