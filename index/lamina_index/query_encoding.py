"""Queries as an encoder sees them, and whether it is the encoder of a collection."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lamina_index.encoder_files import bundled_name
from lamina_index.errors import EncoderMismatchError, EncoderOutputError
from lamina_index.manifest import CollectionManifest

if TYPE_CHECKING:
    from lamina_index.encoder import Encoder


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """A query's embedding and what happened on the way.

    Attributes:
        embedding: (D,) float32, a unit vector.
        token_count: Tokens that the encoder read, special ones included.
        truncated: Whether the query was cut at the encoder's limit.
        blank: Whether no token is left of it after normalisation.
        seconds: What encoding took, its batch mates included.
        text: The query itself.
    """

    embedding: NDArray[np.float32]
    token_count: int
    truncated: bool
    blank: bool
    seconds: float
    text: str


def encode_queries(encoder: Encoder, queries: Sequence[str]) -> list[EncodedQuery]:
    """Encode queries together, for searches of any collections that this encoder built.

    Raises:
        EncoderOutputError: If the encoder gave no finite vector.
    """
    started = time.perf_counter()
    encoded = encoder.encode(queries, role="query")
    finite = np.isfinite(encoded.embeddings).all(axis=1)
    if not finite.all():
        items = tuple(np.flatnonzero(~finite).tolist())
        raise EncoderOutputError("the encoder gave a vector that is not finite", items)
    seconds = time.perf_counter() - started
    return [
        EncodedQuery(embedding, int(tokens), bool(truncated), bool(blank), seconds, text)
        for embedding, tokens, truncated, blank, text in zip(
            encoded.embeddings,
            encoded.token_counts,
            encoded.truncated,
            encoded.blank,
            queries,
            strict=True,
        )
    ]


def check_encoder(
    folder: Path, manifest: CollectionManifest, encoder: Encoder, *, searching: bool = False
) -> None:
    """Refuse an encoder that did not make the collection's vectors.

    Args:
        folder: Of the collection, to name it.
        manifest: Its own.
        encoder: Which would be used with it.
        searching: Whether only queries will be encoded; then another precision of the encoder that
            did make them is enough, if it was loaded to `accept` that.

    Raises:
        EncoderMismatchError: Naming both.
    """
    made_by = manifest.encoder
    if made_by.fingerprint == encoder.fingerprint:
        return
    if searching and accepted_cosine(encoder, made_by.fingerprint) is not None:
        return
    bundled = bundled_name(made_by.fingerprint)
    which = f"that encoder (--encoder {bundled})" if bundled else "that encoder"
    raise EncoderMismatchError(
        f"{folder} was built by encoder {made_by.name} {made_by.precision} "
        f"({made_by.fingerprint[:12]}), loaded {encoder.name} {encoder.precision} "
        f"({encoder.fingerprint[:12]}); load {which} or build the collection again"
        + _other_precision(manifest, encoder, searching=searching)
    )


def accepted_cosine(encoder: Encoder, fingerprint: str) -> float | None:
    """Give the least cosine to vectors of another precision that is accepted; None if none is."""
    accepted: Mapping[str, float] = getattr(encoder, "accepted", {})  # only an OnnxEncoder has it
    return accepted.get(fingerprint)


def _other_precision(manifest: CollectionManifest, encoder: Encoder, *, searching: bool) -> str:
    """Say that it is the same encoder in another precision, and what that may be used for."""
    own = getattr(encoder, "manifest", None)
    for other in own.compatible_with if own is not None else ():
        if other.fingerprint == manifest.encoder.fingerprint:
            both = (
                "; both are one encoder in two precisions, with a cosine of "
                f"{other.cosine_min:g} or more between their vectors: "
            )
            if not searching:
                return f"{both}one may search what the other built, but not write to it"
            return f"{both}--accept-compatible with that number, or a lower one, searches it"
    return ""
