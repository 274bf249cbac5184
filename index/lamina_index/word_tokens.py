"""Texts taken apart into words exactly as the word index does it: by its own tokenizer.

FTS5 gives its tokenizer to nobody, so a small table in memory, of the same kind as the one on disk,
is asked what it makes of each word. Answers are kept: a language has few words.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Collection

from lamina_index.store_words import TOKENIZER

_WORD = re.compile("[^\\W_]+(?:[\u0300-\u036f]+[^\\W_]*)*")
_KEPT_WORDS = 50_000
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
        self._table = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._table.execute(
            f"CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = '{TOKENIZER}')"
        )
        self._table.execute("CREATE VIRTUAL TABLE places USING fts5vocab (words, 'instance')")

    def words(self, words: Collection[str]) -> dict[str, str]:
        """Fold each word."""
        kept = self._kept
        found = {word: kept[word] for word in words if word in kept}
        if len(found) < len(words):
            new = [word for word in dict.fromkeys(words) if word not in found]
            found |= self._fold(new)
        return found

    def text(self, text: str) -> list[str]:
        """Fold the words of a text, in order."""
        words, kept = _WORD.findall(text), self._kept
        try:
            return [kept[word] for word in words]
        except KeyError:
            folded = self.words(set(words))
            return [folded[word] for word in words]

    def _fold(self, words: list[str]) -> dict[str, str]:
        terms: dict[int, list[str]] = {}
        with self._lock:
            self._table.execute("BEGIN")
            self._table.executemany(
                "INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(words, start=1)
            )
            places = self._table.execute("SELECT doc, term FROM places ORDER BY doc, offset")
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
    wanted = set(FOLDING.text(query)) - {""}
    places = [place.span() for place in _WORD.finditer(text, 0, HIGHLIGHTED_CHARACTERS)]
    folded = FOLDING.words({text[start:end] for start, end in places})
    found = [(start, end) for start, end in places if folded[text[start:end]] in wanted]
    return found[:MAX_HIGHLIGHTS]
