"""Split a long text into overlapping chunks that an encoder reads whole."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from lamina_index.text import normalize_text

if TYPE_CHECKING:
    from lamina_index.encoder import Encoder
    from lamina_index.manifest import Chunking


def longest_part(encoder: Encoder) -> int:
    """Most tokens of a part that the encoder reads whole, special ones not counted."""
    specials = encoder.whole_text_tokenizer().num_special_tokens_to_add(is_pair=False)
    return encoder.max_tokens - int(specials)


def splitter(encoder: Encoder, chunking: Chunking | None) -> Callable[[str], list[str]] | None:
    """Make the function that splits texts as a collection wants it; None keeps them whole.

    Raises:
        ValueError: If the encoder would cut such parts.
    """
    if chunking is None:
        return None
    longest = longest_part(encoder)
    if chunking.tokens > longest:
        raise ValueError(
            f"parts of {chunking.tokens} tokens are longer than {encoder.name} reads: {longest}"
        )
    return partial(
        chunk_text,
        tokenizer=encoder.whole_text_tokenizer(),
        tokens=chunking.tokens,
        overlap=chunking.overlap,
    )


class _Cut(IntEnum):
    """How good a place to cut is; a better one is taken before a later one."""

    CHARACTER = 0  # inside what a reader sees as one character
    TOKEN = 1  # inside a word
    WORD = 2  # between what the tokenizer takes for words, such as letters and a hyphen
    SPACE = 3
    SENTENCE = 4


def chunk_text(text: str, tokenizer: Tokenizer, *, tokens: int, overlap: int) -> list[str]:
    """Cut a text into pieces of at most `tokens` tokens, at sentence ends where there are any.

    Each chunk ends at the last sentence end that fits, or else, for a sentence that is too long,
    at the last white space, word or token. Cuts lie between code points, and inside an emoji
    sequence or accented character only if that alone has more than `tokens` tokens; a piece that
    allows no cut, such as a code point of several tokens, may be longer. The chunks
    cover the text: the second and later ones begin where the one before ended, or up to
    `overlap` tokens earlier, at a sentence start if one is so near. The overlap is left out
    where it would keep a whole next sentence from fitting. Time and memory are linear.

    Args:
        text: Any string without lone surrogates.
        tokenizer: Without truncation or padding.
        tokens: Most tokens of one chunk, special ones not counted.
        overlap: Most tokens that a chunk repeats of the one before.

    Returns:
        One chunk or more; the text itself if it fits.

    Raises:
        ValueError: If tokens < 1, or overlap is not between 0 and half of tokens.
    """
    if tokens < 1:
        raise ValueError(f"tokens is {tokens}; expected 1 or more")
    if not 0 <= overlap <= tokens // 2:
        raise ValueError(f"overlap is {overlap}; expected 0 to half of tokens ({tokens // 2})")
    places = _Places(text, tokenizer, tokens)
    chunks: list[str] = []
    start = done = 0
    cut_before = _Cut.SENTENCE
    while done < places.last:
        stop, cut = places.stop(start, done)
        if start < done and cut < _Cut.SENTENCE:
            stop_alone, cut_alone = places.stop(done, done)
            if stop == done or cut_before == cut_alone == _Cut.SENTENCE:
                start, stop, cut = done, stop_alone, cut_alone
        chunks.append(places.text_between(start, stop))
        start, done, cut_before = places.repeat_from(start, stop, overlap), stop, cut
    return chunks or [text]


class _Places:
    """Where a text can be cut: place 0 is its start, `last` its end."""

    def __init__(self, text: str, tokenizer: Tokenizer, tokens: int) -> None:
        self._text = text
        self._tokenizer = tokenizer
        self._tokens = tokens
        encoding = tokenizer.encode(text, add_special_tokens=False)
        # Several tokens can start at one character: bytes of an emoji.
        self._positions = [0]
        self._tokens_before = [0]
        word_starts = set()
        word: int | None = None
        for index, ((position, _), its_word) in enumerate(
            zip(encoding.offsets, encoding.word_ids, strict=True)
        ):
            if position > self._positions[-1]:
                self._positions.append(position)
                self._tokens_before.append(index)
                if its_word != word:
                    word_starts.add(position)
            word = its_word
        if len(encoding.ids) and len(text) > 0:
            self._positions.append(len(text))
            self._tokens_before.append(len(encoding.ids))
        self.last = len(self._positions) - 1
        self._by_cut = self._rank(word_starts)

    def _rank(self, word_starts: set[int]) -> dict[_Cut, list[int]]:
        """Give for each cut, best first, the places that are as good or better."""
        sentence_starts = {
            bisect_left(self._positions, position) for position in _sentence_starts(self._text)
        }
        flag_middles = {match.start() + 1 for match in _FLAG.finditer(self._text)}
        by_cut: dict[_Cut, list[int]] = {cut: [] for cut in sorted(_Cut, reverse=True)}
        for place in range(1, self.last):
            position = self._positions[place]
            if position in flag_middles or _joined(self._text[position - 1], self._text[position]):
                found = _Cut.CHARACTER
            elif place in sentence_starts:
                found = _Cut.SENTENCE
            elif self._text[position - 1].isspace():
                found = _Cut.SPACE
            else:
                found = _Cut.WORD if position in word_starts else _Cut.TOKEN
            for cut, places in by_cut.items():
                if cut <= found:
                    places.append(place)
        return by_cut

    def text_between(self, start: int, stop: int) -> str:
        return self._text[self._positions[start] : self._positions[stop]]

    def stop(self, start: int, done: int) -> tuple[int, _Cut]:
        """Find the best end, after `done`, of a chunk from `start`, and how good it is.

        The end is `done` itself if nothing more fits beside what is repeated.
        """
        budget = self._tokens
        while True:
            furthest = bisect_right(self._tokens_before, self._tokens_before[start] + budget) - 1
            if furthest <= done:
                return (done if start < done else done + 1), _Cut.CHARACTER
            stop, cut = self._best_until(furthest, done)
            # Cut out of its surroundings a piece can have more tokens than it had there.
            excess = self._count(self.text_between(start, stop)) - self._tokens
            if excess <= 0:
                return stop, cut
            budget = self._tokens_before[stop] - self._tokens_before[start] - excess

    def _best_until(self, furthest: int, done: int) -> tuple[int, _Cut]:
        if furthest == self.last:
            return self.last, _Cut.SENTENCE
        for cut, places in self._by_cut.items():
            index = bisect_right(places, furthest) - 1
            if index >= 0 and places[index] > done:
                return places[index], cut
        raise AssertionError("every place is at least a CHARACTER cut")

    def repeat_from(self, start: int, stop: int, overlap: int) -> int:
        """Find where the chunk after [start, stop) begins: at `stop` or up to `overlap` before."""
        earliest = bisect_left(self._tokens_before, self._tokens_before[stop] - overlap)
        earliest = max(earliest, start + 1)
        for cut, places in self._by_cut.items():
            index = bisect_left(places, earliest)
            if cut > _Cut.CHARACTER and index < len(places) and places[index] < stop:
                return places[index]
        return stop

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(normalize_text(text), add_special_tokens=False).ids)


_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")
_ZERO_WIDTH_JOINER = "\u200d"
_JOINING_CATEGORIES = ("Mn", "Mc", "Me")  # accents, vowel signs, variation selectors


def _joined(before: str, after: str) -> bool:
    """Tell whether two neighbours belong to one visible character.

    The rules of Unicode Standard Annex 29 that matter in practice; pairs of regional indicators
    need more context than two characters and are found by `_FLAG`.
    """
    return (
        _ZERO_WIDTH_JOINER in (before, after)
        or unicodedata.category(after) in _JOINING_CATEGORIES
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= after <= "\U000e007f"  # tags of sub-national flags
        or "\u1160" <= after <= "\u11ff"  # Hangul vowels and final consonants
        or (before == "\r" and after == "\n")
    )


# Each alternative begins only where a run begins, so that long runs are scanned once.
_SENTENCE_END = re.compile(
    r"""(?<![.!?…])(?P<latin>[.!?…]++)["'”’»)\]]*+\s++
      | (?<![。！？])[。！？]++["'”’」』）]*+\s*+
      | (?<!\s)[^\S\n]*+\n[^\S\n]*+\n\s*+""",
    re.VERBOSE,
)
_ABBREVIATION = re.compile(
    r"(?:^|[^\w])(?:\w|Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|No|Nos|Fig|Eq|Sec|cf|vs|al|approx|ca|pp|vol)$"
)


def _sentence_starts(text: str) -> Iterator[int]:
    """Yield where sentences begin, by rule: after an end mark and white space, or a blank line.

    A single full stop ends none before a small letter, nor after a single letter ("e.g.",
    initials) or a usual abbreviation ("Dr.").
    """
    for match in _SENTENCE_END.finditer(text):
        if match["latin"] == ".":
            before = text[max(0, match.start() - 8) : match.start()]
            if text[match.end() : match.end() + 1].islower() or _ABBREVIATION.search(before):
                continue
        yield match.end()
