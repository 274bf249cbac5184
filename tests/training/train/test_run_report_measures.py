"""Which dev texts a report measures, and how it sums up the layers that they draw on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.build_encoder import build_encoder
from lamina_training.dev_retrieval import RetrievalTask
from lamina_training.dev_scores import DevTasks
from lamina_training.layer_pooling_config import LayerPoolingConfig
from lamina_training.run_report_measures import dev_pairs, layer_weights, spread_of
from lamina_training.sts import StsPairs


def test_scored_pairs_are_taken_evenly_from_the_whole_file() -> None:
    names = tuple("abcdefghij")
    pairs = StsPairs(names, tuple(name * 2 for name in names), np.arange(10.0), ("",) * 10)
    found = dev_pairs(DevTasks(pairs, None), most=4)
    assert found.first == ("a", "c", "f", "h")
    assert found.second == ("aa", "cc", "ff", "hh")
    assert found.gold.tolist() == [0, 2, 5, 7]
    assert dev_pairs(DevTasks(pairs, None)).first == names


def test_a_query_stands_with_its_first_relevant_document_that_is_there() -> None:
    task = RetrievalTask(
        queries={"q1": "one", "q2": "two", "q3": "three"},
        relevant={
            "q1": frozenset({"d3", "d1"}),
            "q2": frozenset({"d0", "d2"}),
            "q3": frozenset({"d9"}),
        },
        documents={"d1": "uno", "d2": "dos", "d3": "tres"},
    )
    found = dev_pairs(DevTasks(None, task))
    assert (found.first, found.second) == (("one", "two"), ("uno", "dos"))
    assert found.gold.tolist() == [5, 5]  # all alike


def test_layer_weights_are_those_of_each_text_alone(base: Path, tmp_path: Path) -> None:
    pooling = LayerPoolingConfig(mode="layer_attention")
    model = build_encoder(base, pooling, cache=tmp_path, seed=0).eval()
    with torch.no_grad():
        for parameter in model[1].parameters():
            parameter.mul_(15)  # so that texts differ
    texts = [f"the {noun} " * length for noun in ("cat", "dog") for length in range(1, 50)]
    found = layer_weights(model, texts)
    assert found.shape == (98, 3)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-6)
    with torch.no_grad():
        alone = [model(model.preprocess([text]))["layer_weights"][0].numpy() for text in texts]
    np.testing.assert_allclose(found, np.stack(alone), atol=1e-5)
    assert np.ptp(found, axis=0).max() > 1e-3


def test_the_spread_is_over_texts() -> None:
    shares = np.linspace(0, 1, 11)  # 0%, 10%, ... 100%
    found = spread_of(np.stack([shares, 1 - shares, np.zeros(11)], axis=1))
    assert found.texts == 11
    assert found.mean == pytest.approx((0.5, 0.5, 0))
    assert found.low == pytest.approx((0.1, 0.1, 0))
    assert found.high == pytest.approx((0.9, 0.9, 0))
    assert found.deviation == pytest.approx((0.1**0.5, 0.1**0.5, 0))
