"""Long texts are cut so that nothing is lost and nothing is too long."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer, models, pre_tokenizers

from lamina_index.chunking import chunk_text
from lamina_index.encoder_files import BUNDLED_ENCODERS

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # three people and two joiners: one picture
FLAG = "\U0001f1e9\U0001f1ea"


def whole_words() -> Tokenizer:
    """A token for each word between white space."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def single_bytes() -> Tokenizer:
    """A token for each byte of UTF-8, so four for most emoji."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: n for n, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


WORDS = whole_words()
BYTES = single_bytes()
BUNDLED = Tokenizer.from_file(str(BUNDLED_ENCODERS / "default" / "tokenizer.json"))
TOKENIZERS = pytest.mark.parametrize(
    "tokenizer", [WORDS, BYTES, BUNDLED], ids=["words", "bytes", "bundled"]
)


def count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@TOKENIZERS
@pytest.mark.parametrize("text", ["", " \n ", "One. Two.", "one two three four five"])
def test_a_text_that_fits_stays_as_it_is(tokenizer: Tokenizer, text: str):
    assert chunk_text(text, tokenizer, tokens=30, overlap=10) == [text]


@pytest.mark.parametrize(
    ("tokens", "overlap", "text", "expected"),
    [
        # whole sentences as long as they fit
        (
            5,
            0,
            "It is so. We go. They all stay here.",
            ["It is so. We go. ", "They all stay here."],
        ),
        (4, 0, "It is so. We go. They stay.", ["It is so. ", "We go. They stay."]),
        # a sentence that is too long is cut between words
        (
            3,
            0,
            "We go. They all stay here now. Ok.",
            ["We go. ", "They all stay ", "here now. Ok."],
        ),
        # words are repeated where there is no sentence
        (4, 2, "a b c d e f g h", ["a b c d ", "c d e f ", "e f g h"]),
        # the overlap begins with a sentence if one begins in it
        (6, 3, "It is so now. We go. They stay.", ["It is so now. We go. ", "We go. They stay."]),
        # and is left out where it would cut the next sentence
        (4, 2, "It is so now. They all stay here.", ["It is so now. ", "They all stay here."]),
        # a chunk never begins where the one before began
        (
            6,
            3,
            "Aa bb cc dd ee. Ff. Gg. Hh ii jj kk ll.",
            ["Aa bb cc dd ee. Ff. ", "Ff. Gg. ", "Gg. Hh ii jj kk ll."],
        ),
        # abbreviations end nothing; quotes, blank lines and full-width marks do
        (4, 0, "Dr. No, e.g. is. He left.", ["Dr. No, e.g. is. ", "He left."]),
        (4, 0, 'He said "no way!" And left', ['He said "no way!" ', "And left"]),
        (4, 0, "a title\n\nthen some more text", ["a title\n\n", "then some more text"]),
        (2, 0, "一 二。 三 四", ["一 二。 ", "三 四"]),
    ],
)
def test_cuts_lie_where_a_reader_would_cut(
    tokens: int, overlap: int, text: str, expected: list[str]
):
    assert chunk_text(text, WORDS, tokens=tokens, overlap=overlap) == expected


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize(
    "picture",
    [
        "\U0001f600",
        FAMILY,
        FLAG,
        "\U0001f44d\U0001f3fd",  # a skin tone
        "\U0001f3f4\U000e0067\U000e0062\U000e007f",  # a flag of tags
        "e\u0301\u0323",
        "\u1112\u1161\u11ab",  # a Hangul syllable in its parts
        "\r\n",
    ],
)
def test_no_cut_goes_through_a_visible_character(shift: int, picture: str):
    text = "a" * shift + picture * 30
    # room for one picture and almost a second
    chunks = chunk_text(text, BYTES, tokens=2 * len(picture.encode()) - 1, overlap=0)
    assert "".join(chunks) == text
    assert {chunk.lstrip("a") for chunk in chunks} <= {"", picture}


def test_a_character_with_too_many_tokens_is_cut_between_code_points_at_last():
    text = FAMILY * 3
    chunks = chunk_text(text, BYTES, tokens=5, overlap=2)
    assert "".join(chunks) == text
    assert set(chunks) == set(FAMILY)
    assert chunk_text("\U0001f600" * 3, BYTES, tokens=1, overlap=0) == ["\U0001f600"] * 3


@pytest.mark.parametrize("word", ["antidisestablishmentarianism", "abcdefghijklmnopqrstuvwxyz"])
def test_a_piece_of_a_word_is_counted_as_it_stands_alone(word: str):
    chunks = chunk_text(word, BUNDLED, tokens=4, overlap=0)
    assert "".join(chunks) == word
    assert max(count(BUNDLED, chunk) for chunk in chunks) <= 4


PIECES = st.one_of(
    st.sampled_from(
        [". ", "? ", "\n\n", " ", "\u3000", "。", FAMILY, FLAG, "e\u0301", "\r\n", "\0"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["word ", "unbelievably ", "Dr. ", "don't ", "x" * 120, "漢字"]),
)


@TOKENIZERS
@settings(deadline=None, max_examples=60)  # how fast the machine is right now proves nothing
@given(
    text=st.lists(PIECES, min_size=1, max_size=40).map("".join),
    tokens=st.integers(1, 12),
    data=st.data(),
)
def test_chunks_cover_the_text_within_their_bounds(
    tokenizer: Tokenizer, text: str, tokens: int, data: st.DataObject
):
    overlap = data.draw(st.integers(0, tokens // 2))
    starts = [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]
    chunks = chunk_text(text, tokenizer, tokens=tokens, overlap=overlap)
    spans = {(-1, 0)}  # where the last chunk can lie
    for chunk in chunks:
        spans = {
            (start, start + len(chunk))
            for last_start, last_end in spans
            for start in range(last_start + 1, last_end + 1)
            if text.startswith(chunk, start)
            and start + len(chunk) >= last_end
            and sum(start <= place < last_end for place in starts) <= overlap
        }
        assert spans, f"{chunk!r} does not follow in {chunks}"
        if count(tokenizer, chunk) > tokens:  # then it cannot be cut any further
            assert any(not set(starts) & set(range(start + 1, end)) for start, end in spans)
    assert any(end == len(text) for _, end in spans)
    if overlap == 0:
        assert "".join(chunks) == text


class CountingTokenizer:
    """Counts the characters that it is asked to encode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        self.characters += len(text)
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)


def hard_texts() -> dict[str, str]:
    seeded = random.Random(3)
    return {
        "no spaces": "a.b." * 40_000,
        "dots": "." * 150_000,
        "spaces": " \n" * 75_000 + "x",
        "random words": " ".join("".join(seeded.choices("abcdefghij", k=80)) for _ in range(500)),
        "one word": "".join(seeded.choices("abcdefghij", k=12_345)),
        "flags": FLAG * 40_000,
        "accents": "e\u0301" * 75_000,
    }


@pytest.mark.parametrize("name", hard_texts())
def test_work_grows_with_the_text_and_no_faster(name: str):
    text = hard_texts()[name]
    tokenizer = CountingTokenizer(BUNDLED)
    chunks = chunk_text(text, tokenizer, tokens=254, overlap=100)
    assert max(count(BUNDLED, chunk) for chunk in chunks) <= 254
    # once as a whole, each chunk (up to twice the text for the overlap) twice with its second try
    assert tokenizer.characters <= 8 * len(text)


@pytest.mark.parametrize(("tokens", "overlap"), [(0, 0), (-1, 0), (10, -1), (10, 6), (1, 1)])
def test_counts_that_cannot_work_are_refused(tokens: int, overlap: int):
    with pytest.raises(ValueError, match="expected"):
        chunk_text("text", WORDS, tokens=tokens, overlap=overlap)
