"""The rows of a search in looks: block after block, best first, the same whatever page is wanted.

A listing with groups or without near-duplicates cannot know how many rows its page needs. It takes
them in looks whose widths never depend on the page, and each look goes on among the rows that can
still open a group. So every page is cut from one listing, and a group of very many rows near the
query is passed over in one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lamina_index.fusion import competition_ranks
from lamina_index.hits import LegScore
from lamina_index.matching import Matching
from lamina_index.ranking import fuse, told
from lamina_index.scoring import exact_scores
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.store_reading import StoreReading
from lamina_index.view import View
from lamina_index.words import WordSearch

_READ_TOGETHER = 256
"""Rows of a group up to which they are all compared, rather than searched for."""

Scored = tuple[NDArray[np.floating], NDArray[np.int64]]
"""Scores (n,), descending, and keys (n,)."""


@dataclass(frozen=True, slots=True)
class Look:
    """The next rows of a search.

    Attributes:
        scores: (n,) descending.
        keys: (n,) all that have these scores; some may have been seen before.
        last: Whether no row is left.
    """

    scores: NDArray[np.floating]
    keys: NDArray[np.int64]
    last: bool


class Looks(Protocol):
    """A search whose rows can be asked for in looks.

    Attributes:
        legs: What each leg says of the rows given so far; empty where there is one leg only.
    """

    legs: dict[Mode, dict[int, LegScore]]

    def next(self, width: int, unseen: Matching | None) -> Look:
        """Give the next `width` rows, or a few more or less.

        Args:
            width: At least 1.
            unseen: The rows that matter by now; None for all.
        """

    def members(self, groups: Mapping[int, NDArray[np.int64]], size: int) -> dict[int, Scored]:
        """Rank the rows of some groups, each for itself.

        Args:
            groups: The keys of each group's rows, ascending.
            size: The best rows that are wanted of each, and those that tie with the last.
        """


class DenseLooks:
    """Looks by meaning."""

    def __init__(self, reading: StoreReading, view: View, embedding: NDArray[np.float32]) -> None:
        self.legs: dict[Mode, dict[int, LegScore]] = {}
        self._reading = reading
        self._view = view
        self._embedding = embedding

    def next(self, width: int, unseen: Matching | None) -> Look:
        """As `Looks.next`."""
        scores, keys = self._view.nearest(self._reading, self._embedding, width, unseen)
        if len(keys) >= (unseen.count if unseen else self._view.count):
            return Look(scores, keys, last=True)
        least = scores[width - 1]
        certain = scores >= least
        if not self._view.is_exact and scores[0] > least:
            certain = scores > least  # of those that tie with the last some may be missing
        return Look(scores[certain], keys[certain], last=False)

    def members(self, groups: Mapping[int, NDArray[np.int64]], size: int) -> dict[int, Scored]:
        """As `Looks.members`."""
        few = [keys for keys in groups.values() if len(keys) <= _READ_TOGETHER]
        read, read_scores = np.empty(0, np.int64), np.empty(0, np.float32)
        if few:
            read, rows = self._reading.vectors(np.sort(np.concatenate(few)).tolist())
            read_scores = exact_scores(rows, self._embedding)
        found = {}
        for code, keys in groups.items():
            if len(keys) <= _READ_TOGETHER:
                scores = read_scores[np.searchsorted(read, keys)]
            else:
                own = self._view.rows(keys)
                scores, keys = self._view.nearest(self._reading, self._embedding, size, own)
            found[code] = best_of(scores, keys, size)
        return found


class LexicalLooks:
    """Looks by words."""

    def __init__(
        self,
        reading: StoreReading,
        view: View,
        words: WordSearch,
        text: str,
        matching: Matching | None,
    ) -> None:
        """Read the words of a text.

        Raises:
            NoWordIndexError: If the store has no word index.
        """
        self.legs: dict[Mode, dict[int, LegScore]] = {}
        self._reading = reading
        self._words = words
        self._query = words.query(reading, text)
        self._allowed = view.keys_of(matching) if matching else None
        self._count = view.count
        self._width = 0
        self._given = 0

    def next(self, width: int, unseen: Matching | None) -> Look:
        """As `Looks.next`."""
        self._width = min(self._width + width, self._count + 1)
        scores, keys = self._best(self._width)
        first, self._given = self._given, len(keys)
        return Look(scores[first:], keys[first:], len(keys) < self._width)

    def members(self, groups: Mapping[int, NDArray[np.int64]], size: int) -> dict[int, Scored]:
        """As `Looks.members`; a row without a word of the text is left out."""
        scores, keys = self._best(self._count + 1)
        found = {}
        for code, own in groups.items():
            kept = np.isin(keys, own)
            found[code] = best_of(scores[kept], keys[kept], size)
        return found

    def _best(self, wanted: int) -> Scored:
        found = self._words.best(self._reading, self._query, wanted, allowed=self._allowed)
        return found.scores, found.keys


class HybridLooks:
    """Looks by meaning and words: the best of each leg, fused, then the others by meaning.

    Where ranks are fused, a rank by meaning counts the rows that were compared: those of a listed
    group that were passed over are not among them.
    """

    def __init__(
        self,
        reading: StoreReading,
        view: View,
        words: WordSearch,
        text: str,
        embedding: NDArray[np.float32],
        options: SearchOptions,
        matching: Matching | None,
    ) -> None:
        """Fuse the best of both legs.

        Raises:
            NoWordIndexError: If the store has no word index.
        """
        self._view = view
        self._dense = DenseLooks(reading, view, embedding)
        self._fused = fuse(reading, view, words, text, embedding, options, matching)
        self._count = matching.count if matching else view.count
        ranking = self._fused.ranking
        self._joined = set(self._fused.joined.tolist())
        self._scores = dict(zip(ranking.keys.tolist(), ranking.scores.tolist(), strict=True))
        self._scores = {key: self._scores[key] for key in self._joined}
        self.legs = {leg: dict(found) for leg, found in ranking.legs.items()}
        self._waiting = dict(self._scores)
        words_only = self._fused.joined[len(self._fused.cosines) :].tolist()
        dense = ranking.legs["dense"]
        self._words_only = np.sort([-(dense[key].score or 0.0) for key in words_only])
        self._compared = 0
        self._compared_at: dict[int, int] = {}

    def next(self, width: int, unseen: Matching | None) -> Look:
        """As `Looks.next`."""
        if self._compared == 0:
            cosines = self._fused.cosines
            ranks = competition_ranks(cosines)
            last = len(cosines) >= self._count
        else:
            look = self._dense.next(width, self._without_joined(unseen))
            cosines, last = look.scores, look.last
            ranks = self._ranks(cosines, self._compared)
            self._waiting |= self._by_meaning(look.keys, cosines, ranks)
        self._compared += len(cosines)
        least = -np.inf if last else self._fused.by_meaning(cosines[-1:], ranks[-1:])[0]
        ready = {key: score for key, score in self._waiting.items() if score >= least}
        self._waiting = {key: score for key, score in self._waiting.items() if score < least}
        self._compared_at |= dict.fromkeys(ready, self._compared)
        scores, keys = np.array(list(ready.values()), np.float64), np.array(list(ready), np.int64)
        return Look(*best_of(scores, keys, len(keys)), last)

    def members(self, groups: Mapping[int, NDArray[np.int64]], size: int) -> dict[int, Scored]:
        """As `Looks.members`."""
        joined = {code: self._joined.intersection(keys.tolist()) for code, keys in groups.items()}
        # by ranks a row that words alone have found can be below one that is nearer in no leg
        deepest = max(map(len, joined.values()), default=0)
        found = {}
        for code, (cosines, keys) in self._dense.members(groups, size + deepest).items():
            new = np.array([key not in self._scores for key in keys.tolist()], np.bool_)
            compared = max(self._compared_at.get(key, 0) for key in groups[code].tolist())
            ranks = self._ranks(cosines[new], compared)
            scores = self._by_meaning(keys[new], cosines[new], ranks)
            scores |= {key: self._scores[key] for key in keys[~new].tolist()}
            scores |= {key: self._scores[key] for key in joined[code]}
            found[code] = best_of(
                np.array(list(scores.values()), np.float64), np.array(list(scores), np.int64), size
            )
        return found

    def _without_joined(self, unseen: Matching | None) -> Matching:
        rows, joined = unseen or self._view.every, self._view.rows(self._fused.joined)
        return Matching.rows(rows.held & ~joined.held, rows.delta & ~joined.delta)

    def _ranks(self, cosines: NDArray[np.floating], compared: int) -> NDArray[np.float64]:
        """Ranks by meaning, after those that were compared, among these and the joined rows."""
        nearer = np.searchsorted(self._words_only, -cosines.astype(np.float64), "left")
        ranks: NDArray[np.float64] = compared + nearer + competition_ranks(cosines)
        return ranks

    def _by_meaning(
        self, keys: NDArray[np.int64], cosines: NDArray[np.floating], ranks: NDArray[np.float64]
    ) -> dict[int, float]:
        """Fused scores of rows that are not joined; their legs are noted."""
        self.legs["dense"] |= told(keys, cosines, ranks)
        self.legs["lexical"] |= dict.fromkeys(keys.tolist(), LegScore(None, None))
        scores = self._fused.by_meaning(cosines, ranks)
        new = dict(zip(keys.tolist(), scores.tolist(), strict=True))
        self._scores |= new
        return new


def best_of(scores: NDArray[np.floating], keys: NDArray[np.int64], size: int) -> Scored:
    """The best rows, (n,) descending: `size`, or more where more tie with the last, or all."""
    order = np.argsort(-scores, kind="stable")
    scores, keys = scores[order], keys[order]
    end = int(np.searchsorted(-scores, -scores[size - 1], "right")) if size < len(keys) else size
    return scores[:end], keys[:end]
