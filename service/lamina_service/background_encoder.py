"""The encoder as writers see it: over all CPUs, and behind whoever waits for a search."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from lamina_index.encoder import Encoded, Encoder, Role
from lamina_index.errors import EncoderOutputError
from lamina_index.manifest import Precision

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEXTS_A_TURN = 8
"""More would make a search on the same device wait, fewer would read the weights more often."""

_NICENESS = 13
"""A twentieth of a search's share of a CPU that both want; with two workers, a tenth for both."""


class BackgroundEncoder:
    """Spreads texts over threads of low priority; safe to use from many threads.

    What needs the encoder at once (a query) has threads of its own and goes before, since the
    kernel gives these twenty times the time where there are fewer CPUs than threads. So every
    worker may use all CPUs: a list that comes to one need not wait while CPUs idle. Calls take
    turns: each has no more parts under way than there are threads, so a long list does not hold up
    a single text.
    """

    def __init__(self, encoder: Encoder, *, threads: int) -> None:
        self._encoder = encoder
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "lamina-write-encode", _lower_priority)

    @property
    def name(self) -> str:
        """The encoder's."""
        return self._encoder.name

    @property
    def precision(self) -> Precision:
        """The encoder's."""
        return self._encoder.precision

    @property
    def fingerprint(self) -> str:
        """The encoder's."""
        return self._encoder.fingerprint

    @property
    def dimension(self) -> int:
        """The encoder's."""
        return self._encoder.dimension

    @property
    def max_tokens(self) -> int:
        """The encoder's."""
        return self._encoder.max_tokens

    def whole_text_tokenizer(self) -> Tokenizer:
        """Make a tokenizer that does not cut, for chunking."""
        return self._encoder.whole_text_tokenizer()

    def close(self) -> None:
        """End the threads; the encoder itself stays open."""
        self._pool.shutdown()

    def encode(self, texts: Sequence[str], *, role: Role) -> Encoded:
        """Embed N texts, as the encoder itself does.

        Raises:
            EncoderOutputError: If it fails on some; `items` says on which of the N.
        """
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # for little padding
        parts = [order[at : at + TEXTS_A_TURN] for at in range(0, len(order), TEXTS_A_TURN)] or [[]]
        outcomes: list[Encoded | EncoderOutputError] = []
        under_way: deque[Future[Encoded]] = deque()
        for part in parts:
            if len(under_way) == self._threads:
                outcomes.append(_outcome(under_way.popleft()))
            chosen = [texts[row] for row in part]
            under_way.append(self._pool.submit(self._encoder.encode, chosen, role=role))
        outcomes += map(_outcome, under_way)
        broken = [
            part[item]
            for part, outcome in zip(parts, outcomes, strict=True)
            if isinstance(outcome, EncoderOutputError)
            for item in outcome.items or range(len(part))
        ]
        done = [outcome for outcome in outcomes if isinstance(outcome, Encoded)]
        if len(done) < len(outcomes):
            reason = next(error for error in outcomes if isinstance(error, EncoderOutputError))
            raise EncoderOutputError(str(reason), tuple(sorted(broken))) from reason
        places = np.argsort(order)
        return Encoded(
            embeddings=np.concatenate([part.embeddings for part in done])[places],
            token_counts=np.concatenate([part.token_counts for part in done])[places],
            full_token_counts=np.concatenate([part.full_token_counts for part in done])[places],
            blank=np.concatenate([part.blank for part in done])[places],
        )


def _outcome(under_way: Future[Encoded]) -> Encoded | EncoderOutputError:
    """Wait for a part; texts that the encoder fails on do not keep the others from being tried."""
    try:
        return under_way.result()
    except EncoderOutputError as error:
        return error


def _lower_priority() -> None:
    """Let the kernel run this thread after others; only Linux has priorities of threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            niceness = min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
