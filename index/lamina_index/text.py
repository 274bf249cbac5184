"""The only text normalisation, shared by indexing, search and evaluation."""

from __future__ import annotations

import re
import unicodedata

TEXT_VERSION = 1
"""Version of `normalize_text`; part of every encoder's fingerprint."""

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def repair_text(text: str) -> str:
    """Replace what cannot be stored as UTF-8 text: lone surrogates and NUL become U+FFFD.

    This is the text that a collection keeps and returns; a paired surrogate escape has already
    become its character when JSON was parsed, so it is not touched.
    """
    return _UNSTORABLE.sub("\ufffd", text)


def normalize_text(text: str) -> str:
    """Give the form of a text that the encoder reads.

    Repairs unstorable characters, composes (Unicode NFC) and strips outer white space. Case,
    inner white space and everything else is the tokenizer's business.
    """
    return unicodedata.normalize("NFC", repair_text(text)).strip()
