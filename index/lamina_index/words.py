"""Search by words: BM25 over the word index, for a few milliseconds however common the words are.

Two steps. The rarest words of a query bring the candidates, as many words as match no more rows
than a budget; then the best candidates get the share of the commoner words too. So "what" and "is"
count as they should where it matters, and no list of half the documents is read for them.
Only where those candidates are fewer than were asked for do the other words bring some, too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lamina_index.store_reading import StoreReading
from lamina_index.store_words import WordReading
from lamina_index.text_lengths import TextLengths
from lamina_index.word_tokens import FOLDING, spellings

WINDOW = 150
"""Candidates that are scored by all words of the query."""
WINDOW_CHARACTERS = 100_000
"""Fewer are, where their texts together are longer than this."""

BUDGET_ROWS = (2_000, 20_000)
BUDGET_SHARE = 0.02
"""Rows that the words which bring candidates may match together: this share of all, but never less
or more than those. Measured on Quora dev (docs/decisions.md)."""

_BELOW = 0.999
"""Highest score of a turn's candidates, as a share of the lowest score of the turn before."""

MAX_WORDS = 64
"""Different words of a query that count; of more the first ones."""

_K1, _B = 1.2, 0.75  # FTS5's own, which cannot be changed
_LEAST_IDF = 1e-6
_COMMON = 1024


@dataclass(frozen=True, slots=True)
class QueryWord:
    """A word of a query that at least one document has.

    Attributes:
        spelling: As it stands in the query.
        folded: As the word index has it.
        frequency: Number of documents with it; of common words rounded down by up to a sixteenth.
    """

    spelling: str
    folded: str
    frequency: int


@dataclass(frozen=True, slots=True)
class WordQuery:
    """The words of a query against one generation of a collection.

    Attributes:
        leading: The words that bring candidates, rarest first.
        common: The others, rarest first: they add to candidates' scores, and bring some where
            there are too few.
        documents: Number of documents of the collection.
        mean_length: Mean number of words in their texts.
    """

    leading: tuple[QueryWord, ...]
    common: tuple[QueryWord, ...]
    documents: int
    mean_length: float

    def turns(self) -> Iterator[tuple[Sequence[QueryWord], Sequence[QueryWord]]]:
        """Words that bring candidates, turn by turn, each with the words that then add to them."""
        if self.leading:
            yield self.leading, self.common
        for place, word in enumerate(self.common):
            yield (word,), self.common[place + 1 :]

    def scores(
        self, texts: Sequence[Sequence[str]], words: Sequence[QueryWord]
    ) -> NDArray[np.float64]:
        """BM25 (n,) of texts for some words, by the same formula and constants as FTS5's.

        Args:
            texts: n times the terms of a text, in order.
            words: Words of this query.

        Source: Robertson & Zaragoza 2009, "The Probabilistic Relevance Framework", eq. 3.15.
        Departs from it as FTS5 does: the weight of a word is never below 1e-6.
        """
        norms = self.norm(np.array([len(terms) for terms in texts], np.float64))
        scores = np.zeros(len(texts))
        for word in words:  # in one order, so that a score does not depend on the other texts
            counts = np.array([terms.count(word.folded) for terms in texts], np.float64)
            scores += self.weight(word.frequency) * counts * (_K1 + 1) / (counts + norms)
        return scores

    def weight(self, frequency: int) -> float:
        """The weight (idf) of a word that so many documents have."""
        absent = self.documents - frequency
        return max(_LEAST_IDF, math.log((absent + 0.5) / (frequency + 0.5)))

    def norm(self, lengths: NDArray[np.float64]) -> NDArray[np.float64]:
        """What the numbers of words (n,) of texts make of their words' counts."""
        return _K1 * (1 - _B + _B * lengths / self.mean_length)


@dataclass(frozen=True, slots=True)
class WordMatches:
    """Documents found by words.

    Attributes:
        scores: (n,) BM25, positive, descending.
        keys: (n,) their rows' keys.
    """

    scores: NDArray[np.float64]
    keys: NDArray[np.int64]


class WordSearch:
    """Word search in one collection; safe to use from many threads.

    What it finds depends on query and generation alone, whatever it was asked before and in
    whatever process, so that pages of one listing fit together.
    """

    def __init__(self) -> None:
        self._frequencies = _CommonWords()
        self._lengths = TextLengths()

    def query(self, reading: StoreReading, text: str) -> WordQuery:
        """Choose which words of a text bring candidates.

        Raises:
            NoWordIndexError: If the store has no word index.
        """
        words = reading.words()
        documents, length = words.totals()
        least, most = BUDGET_ROWS
        budget = max(least, min(int(documents * BUDGET_SHARE), most))
        age = reading.last_key(), reading.last_tombstone()
        found = []
        for folded, spelling in _distinct(text).items():
            frequency = min(
                self._frequencies.of(term, words, age, budget) for term in folded.split()
            )
            if frequency:
                found.append(QueryWord(spelling, folded, frequency))
        found.sort(key=lambda word: (word.frequency, word.folded))
        rows, leading = 0, 0
        for word in found:
            rows += word.frequency
            if rows > budget and leading:
                break
            leading += 1
        return WordQuery(
            tuple(found[:leading]),
            tuple(found[leading:]),
            documents,
            length / max(documents, 1),
        )

    def best(
        self,
        reading: StoreReading,
        query: WordQuery,
        wanted: int,
        *,
        least: int | None = None,
        allowed: NDArray[np.int64] | None = None,
    ) -> WordMatches:
        """Find the documents with the highest BM25.

        The leading words bring candidates. While there are fewer than `least`, each common word
        has a turn: the documents that it brings come after all that were there, with scores that
        are lowered where they would be higher. So the order does not depend on `wanted`.

        The first `WINDOW` candidates of a turn are scored by all of its words. Those after them
        have the score of the words that brought them alone, which is never more than any of the
        first ones have.

        Args:
            reading: The transaction that the query was made in.
            query: From `query`.
            wanted: How many, at least 1.
            least: How many are enough to let no further word have its turn, at most `wanted`; None
                for `wanted`.
            allowed: (m,) keys of the only rows that may be found; None for all.

        Returns:
            `wanted` documents or more, where more tie with the last; fewer than `least` only if
            fewer have a word of the query.
        """
        words = reading.words()
        scores, keys = np.empty(0), np.empty(0, np.int64)
        for leading, common in query.turns():
            more, rows = self._candidates(
                reading, query, leading, max(wanted, WINDOW), allowed, known=keys
            )
            if common and len(rows):
                self._add_common(words, query, common, more, rows)
            best = np.lexsort((rows, -more))
            more, rows = more[best], rows[best]
            if len(scores) and len(more) and more[0] >= scores[-1]:
                more *= _BELOW * scores[-1] / more[0]
            scores, keys = np.concatenate([scores, more]), np.concatenate([keys, rows])
            if len(keys) >= (least or wanted):
                break
        end = wanted
        while end < len(scores) and scores[end] == scores[wanted - 1]:
            end += 1
        return WordMatches(scores[:end], keys[:end])

    def scores(
        self, reading: StoreReading, query: WordQuery, keys: Sequence[int]
    ) -> dict[int, float]:
        """BM25 by all words of the query, of those rows that have any of them.

        Rows are read in the given order until `WINDOW_CHARACTERS` are; the others are left out.
        """
        everything = query.leading + query.common
        read = _texts(reading.words(), keys)
        scores = query.scores([terms for _, terms in read], everything)
        return {key: score for (key, _), score in zip(read, scores.tolist(), strict=True) if score}

    def _candidates(
        self,
        reading: StoreReading,
        query: WordQuery,
        leading: Sequence[QueryWord],
        width: int,
        allowed: NDArray[np.int64] | None,
        *,
        known: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The best rows by some words, but known ones: `width` or all that tie with the last."""
        words = reading.words()
        found = [_counts(words, word.folded) for word in leading]
        keys, owners = np.unique(np.concatenate([docs for docs, _ in found]), return_inverse=True)
        kept = np.isin(keys, known, invert=True)
        if allowed is not None:
            kept &= np.isin(keys, allowed)
        lengths = self._lengths.of(
            keys, words, last_key=reading.last_key(), documents=query.documents
        )
        counts = np.concatenate([counts for _, counts in found])
        weights = np.repeat(
            [query.weight(len(docs)) for docs, _ in found], [len(docs) for docs, _ in found]
        )
        parts = weights * counts * (_K1 + 1) / (counts + query.norm(lengths)[owners])
        scores = np.bincount(owners, parts, len(keys)).astype(np.float64, copy=False)
        if not kept.all():
            scores, keys = scores[kept], keys[kept]
        if len(scores) > width:
            kept = scores >= np.partition(scores, -width)[-width]
            scores, keys = scores[kept], keys[kept]
        order = np.lexsort((keys, -scores))
        return scores[order], keys[order]

    def _add_common(
        self,
        words: WordReading,
        query: WordQuery,
        common: Sequence[QueryWord],
        scores: NDArray[np.float64],
        keys: NDArray[np.int64],
    ) -> None:
        """Add the share of the common words to the scores of the window's rows."""
        texts = [terms for _, terms in _texts(words, keys[:WINDOW].tolist())]
        scores[: len(texts)] += query.scores(texts, common)


class _CommonWords:
    """How many documents have a word, remembered for the words where counting takes long.

    A remembered number bounds the true one, since every write since then has left its keys. It is
    used only where both bounds give the same answer, so an answer never depends on when a word was
    counted.
    """

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def of(self, term: str, words: WordReading, age: tuple[int, int], budget: int) -> int:
        """Number of documents with a term, rounded down by up to a sixteenth if above a budget.

        Args:
            term: As the word index has it.
            words: Counts where that is needed.
            age: Numbers of the last key and the last tombstone of its transaction.
            budget: At least `_COMMON`.
        """
        counted = self._counted.get(term)
        if counted is not None:
            frequency, then = counted
            added, removed = age[0] - then[0], age[1] - then[1]
            low = _rounded(frequency - removed)
            if added >= 0 and removed >= 0 and low == _rounded(frequency + added) and low > budget:
                return low
        frequency = words.frequency(term)
        if frequency < _COMMON:
            return frequency
        with self._lock:
            if len(self._counted) > 10_000:
                self._counted = {}
            self._counted[term] = frequency, age
        return frequency if frequency <= budget else max(_rounded(frequency), budget + 1)


def _rounded(frequency: int) -> int:
    """Clear all bits but the first five."""
    spare = max(frequency.bit_length() - 5, 0)
    return frequency >> spare << spare


def _distinct(text: str) -> dict[str, str]:
    """The first `MAX_WORDS` words of a text that differ when folded; how each is spelled."""
    words = list(dict.fromkeys(spellings(text)))[: 4 * MAX_WORDS]
    folded = FOLDING.words(words)
    spelled: dict[str, str] = {}
    for word in words:
        if folded[word]:
            spelled.setdefault(folded[word], word)
    return dict(list(spelled.items())[:MAX_WORDS])


def _texts(words: WordReading, keys: Sequence[int]) -> list[tuple[int, list[str]]]:
    """The folded words of rows' texts, in the order of the keys, until enough has been read."""
    read: list[tuple[int, str]] = []
    left = WINDOW_CHARACTERS
    for start in range(0, len(keys), 50):
        texts = words.texts(keys[start : start + 50])
        for key in keys[start : start + 50]:
            left -= len(texts[key])
            if left < 0 and read:
                break
            read.append((key, texts[key]))
        if left < 0:
            break
    folded = FOLDING.texts([text for _, text in read])
    return [(key, words) for (key, _), words in zip(read, folded, strict=True)]


def _counts(words: WordReading, folded: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys (n,) of the documents that have a word, ascending, and how often each (n,)."""
    terms = folded.split()
    places = words.places(folded) if len(terms) == 1 else words.phrase_places(terms)
    new = np.empty(len(places) + 1, np.bool_)
    new[:1], new[-1:] = True, True
    np.not_equal(places[1:], places[:-1], out=new[1:-1])
    starts = np.flatnonzero(new)
    return places[starts[:-1]], starts[1:] - starts[:-1]
