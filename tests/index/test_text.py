from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina_index.text import normalize_text, repair_text

any_text = st.text(st.characters(codec=None))  # lone surrogates included


@pytest.mark.parametrize(
    ("given_text", "repaired"),
    [
        ("a\udbc0b", "a\ufffdb"),
        ("a\x00b", "a\ufffdb"),
        ("\ufeffkept", "\ufeffkept"),
        ("emoji \U0001f600", "emoji \U0001f600"),
        ("tab\tand\nline", "tab\tand\nline"),
    ],
)
def test_only_lone_surrogates_and_nul_are_repaired(given_text: str, repaired: str) -> None:
    assert repair_text(given_text) == repaired


def test_normal_form_is_composed_and_stripped() -> None:
    assert normalize_text("  cafe\u0301 \n") == "caf\u00e9"


@given(any_text)
def test_repaired_text_is_always_storable(text: str) -> None:
    assert b"\x00" not in repair_text(text).encode("utf-8")


@given(any_text)
def test_normalization_is_idempotent_and_composed(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once
    assert unicodedata.is_normalized("NFC", once)
