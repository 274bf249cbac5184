from __future__ import annotations

import hashlib

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given
from hypothesis import strategies as st

from lamina_training.duplicates import NO_KEY, duplicate_keys, sha256_half, sha256_tenth, text_key


@pytest.mark.parametrize(
    "other",
    ["how are you", "How are  YOU?", " how are you?? ", "how are you\u2026", "how\u00a0are you ."],
)
def test_case_white_space_and_final_marks_make_no_other_text(other: str) -> None:
    assert text_key(other) == text_key("How are you?")


@pytest.mark.parametrize("other", ["how are you not", "howareyou", "how, are you", "are how you"])
def test_words_and_inner_marks_do(other: str) -> None:
    assert text_key(other) != text_key("how are you")


def test_texts_of_marks_alone_stay_apart() -> None:
    assert text_key("?") != text_key("...")


def test_composed_and_decomposed_letters_are_one_text() -> None:
    assert text_key("caf\u00e9") == text_key("cafe\u0301")


def test_a_cluster_is_no_text_of_the_same_name() -> None:
    text, cluster = duplicate_keys("a", "a")
    assert text != cluster
    assert duplicate_keys("a")[1] == NO_KEY


@given(st.text(max_size=20), st.text(max_size=20))
def test_keys_fit_an_int64_and_are_never_the_missing_one(text: str, cluster: str) -> None:
    assert all(NO_KEY < key < 2**63 for key in duplicate_keys(text, cluster))


@given(st.text(max_size=20).filter(lambda text: text.isascii()))
def test_halves_are_by_the_parity_of_the_digest(text: str) -> None:
    odd = int(hashlib.sha256(text.encode()).hexdigest(), 16) % 2
    assert sha256_half(text) == ("odd" if odd else "even")


def test_tenths_are_the_last_decimal_digit_of_the_digest() -> None:
    assert sha256_tenth("abc") == 5  # FIPS 180's example, 0xba7816bf...f20015ad
    shares = [sum(sha256_tenth(str(n)) == tenth for n in range(2000)) for tenth in range(10)]
    assert min(shares) > 150
