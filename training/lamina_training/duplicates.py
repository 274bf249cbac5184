"""Which texts of a batch say the same, so that neither is trained as a negative of the other.

Each text carries one key for each way of being a duplicate; two texts are duplicates if they share
a key of the same kind. Keys are digests, so they need no table of all texts: they can be computed
while a file streams by, and compared between processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

from lamina_index.text import normalize_text

NO_KEY = 0
"""Stands where a text has no key of a kind; it equals nothing, not even itself."""

KINDS = ("text", "cluster")
"""What the keys of a text tell, in their order."""

_FINAL_MARKS = ".?!\"'\u2019\u201d\u2026 "

Half = Literal["even", "odd"]


def text_key(text: str) -> int:
    """Digest a text without what does not make it another text for an encoder.

    Case, the amount of white space, and sentence-final punctuation are left out; a text of
    punctuation alone keeps it.
    """
    folded = " ".join(normalize_text(text).casefold().split())
    return _digest(f"text:{folded.rstrip(_FINAL_MARKS) or folded}")


def cluster_key(cluster: str | None) -> int:
    """Digest the id of a group of texts that say the same; `NO_KEY` for a text of no group."""
    return NO_KEY if cluster is None else _digest(f"cluster:{cluster}")


def duplicate_keys(text: str, cluster: str | None = None) -> list[int]:
    """Give one key for each of `KINDS`: integers of 63 bits, as int64 holds them."""
    return [text_key(text), cluster_key(cluster)]


def token_key(tokens: Iterable[int]) -> int:
    """Digest the ids of a text's tokens: the same for copies, and for nothing else."""
    return _digest(f"tokens:{','.join(map(str, tokens))}")


def sha256_half(text: str) -> Half:
    """Tell which half of a corpus a text is in, by the parity of its sha256.

    Of `wiki_sentences` the even half may be trained on; the odd one is kept for distractors.
    """
    return "odd" if hashlib.sha256(text.encode()).digest()[-1] & 1 else "even"


def sha256_tenth(text: str) -> int:
    """Tell which tenth of a corpus a text is in, 0 to 9, by its sha256."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) % 10


def _digest(tagged: str) -> int:
    digest = hashlib.sha256(tagged.encode()).digest()
    return int.from_bytes(digest[:8]) >> 1 | 1  # never NO_KEY
