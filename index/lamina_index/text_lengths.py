"""How many words each row's text has, remembered: BM25 asks it of thousands of rows a query."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina_index.store_words import WordReading

_TAIL_ROWS = 10_000
_TAIL_SHARE = 8


@dataclass(frozen=True, slots=True)
class _Rows:
    """Lengths (n,) of rows, by their ascending keys (n,)."""

    keys: NDArray[np.int64]
    lengths: NDArray[np.uint32]

    def followed_by(self, other: _Rows) -> _Rows:
        return _Rows(
            np.concatenate([self.keys, other.keys]), np.concatenate([self.lengths, other.lengths])
        )

    def look_up(self, keys: NDArray[np.int64], into: NDArray[np.float64]) -> None:
        if not len(self.keys):
            return
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        found = self.keys[places] == keys
        into[found] = self.lengths[places[found]]


_NONE = _Rows(np.empty(0, np.int64), np.empty(0, np.uint32))


@dataclass(frozen=True, slots=True)
class _Kept:
    """All rows with keys up to `last_key` that some transaction saw, most of them in `base`."""

    base: _Rows
    tail: _Rows
    last_key: int


class TextLengths:
    """Number of words of each row's text, 12 bytes a row; safe to use from many threads.

    A row's text never changes, so what was read once holds in every transaction that sees the row.
    """

    def __init__(self) -> None:
        self._kept = _Kept(_NONE, _NONE, 0)
        self._reading = threading.Lock()

    def of(
        self, keys: NDArray[np.int64], words: WordReading, *, last_key: int, documents: int
    ) -> NDArray[np.float64]:
        """Lengths (n,) of rows that a transaction sees.

        Args:
            keys: (n,) of these rows.
            words: Of the transaction.
            last_key: The highest key in it.
            documents: How many there are in it.
        """
        kept = self._kept
        if kept.last_key < last_key:
            with self._reading:
                kept = self._kept
                if kept.last_key < last_key:
                    kept = self._kept = _extended(kept, words, last_key, documents)
        lengths = np.full(len(keys), -1.0)
        kept.base.look_up(keys, lengths)
        kept.tail.look_up(keys, lengths)
        unknown = lengths < 0  # of an older transaction, and deleted when later ones were read
        if unknown.any():
            found = dict(words.lengths(keys[unknown].tolist()))
            lengths[unknown] = [found[key] for key in keys[unknown].tolist()]
        return lengths


def _extended(kept: _Kept, words: WordReading, last_key: int, documents: int) -> _Kept:
    tail = kept.tail.followed_by(_rows(words, kept.last_key))
    if len(tail.keys) <= max(_TAIL_ROWS, len(kept.base.keys) // _TAIL_SHARE):
        return _Kept(kept.base, tail, last_key)
    if len(kept.base.keys) + len(tail.keys) > 2 * documents + _TAIL_ROWS:
        return _Kept(_rows(words, 0), _NONE, last_key)  # most of what was kept has been deleted
    return _Kept(kept.base.followed_by(tail), _NONE, last_key)


def _rows(words: WordReading, after_key: int) -> _Rows:
    parts = [
        _Rows(np.array(keys, np.int64), np.array(lengths, np.uint32))
        for keys, lengths in words.lengths_after(after_key)
    ]
    if not parts:
        return _NONE
    return _Rows(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.lengths for part in parts]),
    )
