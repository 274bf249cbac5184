"""The encoder as writers see it gives the same, at the lowest cost to who searches."""

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lamina_index.encoder import Encoded, OnnxEncoder
from lamina_index.errors import EncoderOutputError
from lamina_service.background_encoder import TEXTS_A_TURN, BackgroundEncoder


@pytest.fixture
def background(default_encoder: OnnxEncoder) -> Iterator[BackgroundEncoder]:
    encoder = BackgroundEncoder(default_encoder, threads=2)
    yield encoder
    encoder.close()


@pytest.mark.parametrize("count", [0, 1, TEXTS_A_TURN, 50])
def test_texts_get_the_vectors_that_the_encoder_gives_them_alone(
    count: int, background: BackgroundEncoder, default_encoder: OnnxEncoder
) -> None:
    texts = [f"text {number} " * (number % 7) for number in range(count)]
    found = background.encode(texts, role="document")
    alone = [default_encoder.encode([text], role="document") for text in texts]
    assert found.embeddings.shape == (count, default_encoder.dimension)
    for row, one in enumerate(alone):
        np.testing.assert_allclose(found.embeddings[row], one.embeddings[0], atol=1e-6)
        assert found.token_counts[row] == one.token_counts[0]
        assert found.full_token_counts[row] == one.full_token_counts[0]
        assert found.blank[row] == one.blank[0]


class _Recording:
    """An encoder that notes who calls it, and fails on texts that say so."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        self.gate = threading.Event()
        self.calls: list[list[str]] = []
        self.niceness: set[int] = set()
        self._encoder = encoder

    def encode(self, texts: list[str], *, role: Any) -> Encoded:
        assert self.gate.wait(60)
        self.calls.append(texts)
        self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        if broken := tuple(place for place, text in enumerate(texts) if "NaN" in text):
            raise EncoderOutputError("the graph returned NaN", broken)
        return self._encoder.encode(texts, role=role)


@pytest.fixture
def recording(default_encoder: OnnxEncoder) -> _Recording:
    return _Recording(default_encoder)


def test_texts_without_a_vector_are_named_by_their_place_in_the_call(recording: Any) -> None:
    encoder = BackgroundEncoder(recording, threads=2)
    recording.gate.set()
    texts = ["NaN" if number in (3, 30) else f"text {number}" for number in range(40)]
    with pytest.raises(EncoderOutputError) as raised:
        encoder.encode(texts, role="document")
    assert raised.value.items == (3, 30)
    encoder.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_it_runs_behind_the_process_it_belongs_to(recording: Any) -> None:
    encoder = BackgroundEncoder(recording, threads=2)
    recording.gate.set()
    ours = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    encoder.encode(["text"] * 40, role="document")
    assert min(recording.niceness) > ours or ours == 19
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == ours
    encoder.close()


def test_a_long_list_does_not_hold_up_a_short_one(recording: Any) -> None:
    encoder = BackgroundEncoder(recording, threads=1)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(encoder.encode, ["long"] * TEXTS_A_TURN * 10, role="document")
        while encoder._pool._work_queue.qsize() or not encoder._pool._threads:
            threading.Event().wait(0.01)  # the first part of the long list is at the gate
        short = pool.submit(encoder.encode, ["short"], role="document")
        while not encoder._pool._work_queue.qsize():
            threading.Event().wait(0.01)
        recording.gate.set()
        long.result()
        short.result()
    assert recording.calls.index(["short"]) <= 2
    encoder.close()
