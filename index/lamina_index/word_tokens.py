"""Texts taken apart into words exactly as the word index does it: by its own tokenizer.

FTS5 gives its tokenizer to nobody, so a small table in memory, of the same kind as the one on disk,
is asked what it makes of each word. Answers are kept: a language has few words.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence

from lamina_index.store_words import words_in_memory

_WORD = re.compile("[^\\W_]+(?:[\u0300-\u036f]+[^\\W_]*)*")
_KEPT_WORDS = 100_000
_KEPT_LENGTH = 64

MAX_HIGHLIGHTS = 100
"""Ranges given of one text at most."""
HIGHLIGHTED_CHARACTERS = 20_000
"""How far into a text query words are looked for."""


def spellings(text: str) -> list[str]:
    """The words of a text as they stand there, in order: runs of letters, digits and accents."""
    return _WORD.findall(text)


class Folding:
    """Folds words to what the word index knows them by; safe to use from many threads.

    A word is folded to its term there, to several with a space between where FTS5 sees more than
    one word in it, or to nothing where it sees none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, str] = {}
        self._table = words_in_memory()

    def words(self, words: Collection[str]) -> dict[str, str]:
        """Fold each word, or whatever stands between spaces."""
        kept = self._kept
        found = {word: kept[word] for word in words if word in kept}
        if len(found) < len(words):
            new = [word for word in dict.fromkeys(words) if word not in found]
            found |= self._fold(new)
        return found

    def texts(self, texts: Sequence[str]) -> list[list[str]]:
        """Give the terms of each text, in order; what is new in any of them is folded at once."""
        kept = self._kept
        pieces = [text.split() for text in texts]  # three times as fast as finding the words
        try:
            folded = [[kept[piece] for piece in part] for part in pieces]
        except KeyError:
            new = self._fold(
                list({piece for part in pieces for piece in part if piece not in kept})
            )
            folded = [
                [kept[piece] if piece in kept else new[piece] for piece in part] for part in pieces
            ]
        return [" ".join(part).split() for part in folded]

    def _fold(self, words: list[str]) -> dict[str, str]:
        terms: dict[int, list[str]] = {}
        with self._lock:
            self._table.execute("BEGIN")
            self._table.executemany(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(words, start=1)
            )
            places = self._table.execute("SELECT doc, term FROM word_places ORDER BY doc, offset")
            for row, term in places.fetchall():
                terms.setdefault(row, []).append(term)
            self._table.execute("ROLLBACK")
            folded = {word: " ".join(terms.get(row, ())) for row, word in enumerate(words, start=1)}
            if len(self._kept) + len(folded) > _KEPT_WORDS:
                self._kept = {}
            self._kept |= {word: to for word, to in folded.items() if len(word) <= _KEPT_LENGTH}
        return folded


FOLDING = Folding()
"""The one of this process; it holds nothing of any collection but some of its words."""


def highlights(text: str, query: str) -> list[tuple[int, int]]:
    """Find where words of a query stand in a text, in whatever form the word index holds equal.

    Args:
        text: Looked through as far as `HIGHLIGHTED_CHARACTERS`.
        query: Any text.

    Returns:
        First character and the one after the last of each word, in code points, in order;
        `MAX_HIGHLIGHTS` of them at most.
    """
    wanted = set(FOLDING.words(set(spellings(query))).values()) - {""}
    places = [place.span() for place in _WORD.finditer(text, 0, HIGHLIGHTED_CHARACTERS)]
    folded = FOLDING.words({text[start:end] for start, end in places})
    found = [(start, end) for start, end in places if folded[text[start:end]] in wanted]
    return found[:MAX_HIGHLIGHTS]
