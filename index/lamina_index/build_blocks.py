"""The pure middle of a build: records to blocks, a block to rows with embeddings.

Blocks are cut by record counts and sizes alone, so a build that is continued at the end of a
committed block cuts the rest exactly as an undisturbed one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lamina_index.corpus import Document, Rejected
from lamina_index.encoder import Encoded, Encoder
from lamina_index.errors import EncoderOutputError
from lamina_index.manifest import MAX_ID_BYTES, PARENT_FIELD, FieldType
from lamina_index.scoring import are_unit
from lamina_index.text import repair_text

BLOCK_ROWS = 1024
BLOCK_CHARACTERS = 2_000_000
PART_FIELDS: dict[str, FieldType] = {PARENT_FIELD: "string", "part": "number"}

_EXCERPT_CHARACTERS = 200
_PART_SUFFIX_BYTES = 9

Split = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A line of `rejects.jsonl`."""

    file: str
    line: int
    reason: str
    id: str | None = None
    text: str | None = None


@dataclass(slots=True)
class Block:
    """Consecutive records of the inputs.

    Attributes:
        rows: How many records, good or bad.
        documents: The good ones.
        texts: For each document its parts; the text itself where texts are not split.
        rejected: The bad ones.
    """

    rows: int = 0
    documents: list[Document] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    rejected: list[RejectedRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CutText:
    """A line of `truncated.jsonl`; counts are tokens, special ones included."""

    id: str
    tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block ready to be stored.

    Attributes:
        block: Where it comes from; its `rejected` now has the rows that failed here too.
        indexed: How many records became documents.
        documents: N documents or parts of documents; an id occurs once, its last row counts.
        embeddings: (N, D) unit rows.
        repeated: Records that an equal id later in the block replaced.
        parts: For each document id, how many of `documents` it has become.
        cut: Documents whose text the encoder did not read to the end.
    """

    block: Block
    indexed: int
    documents: list[Document]
    embeddings: NDArray[np.float32]
    repeated: int
    parts: dict[str, int]
    cut: list[CutText]


def blocks(records: Iterable[Document | Rejected], split: Split | None) -> Iterator[Block]:
    """Cut a stream of records into blocks.

    Args:
        records: What `read_corpus` yields, from the first record of a block on.
        split: Cuts a text into parts; None keeps texts whole.
    """
    block, characters = Block(), 0
    for record in records:
        block.rows += 1
        fault = _fault_for_parts(record) if split and isinstance(record, Document) else None
        if isinstance(record, Rejected):
            block.rejected.append(
                RejectedRow(repair_text(record.file), record.line, record.reason, record.id)
            )
        elif fault:
            block.rejected.append(_reject(record, fault))
        else:
            block.documents.append(record)
            block.texts.append(split(record.text) if split else [record.text])
            characters += len(record.text)
        if block.rows == BLOCK_ROWS or characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = Block(), 0
    if block.rows:
        yield block


def encode_block(block: Block, encoder: Encoder, *, chunked: bool) -> EncodedBlock:
    """Embed a block; a record that the encoder cannot embed is rejected, the others stay.

    Args:
        block: Its `rejected` grows by the records that fail here.
        encoder: Called with all texts of the block at once.
        chunked: Whether documents are stored as parts, even if there is but one.

    Raises:
        EncoderOutputError: If the encoder gives no usable vector for anything.
    """
    texts = [text for document_texts in block.texts for text in document_texts]
    encoded, failures = _encode_surviving(encoder, texts)
    latest: dict[str, tuple[Document, list[int]]] = {}
    indexed = end = 0
    for document, document_texts in zip(block.documents, block.texts, strict=True):
        start, end = end, end + len(document_texts)
        failed = [failures[row] for row in range(start, end) if row in failures]
        kept = [row for row in range(start, end) if not encoded.blank[row]]
        if failed or not kept:
            reason = failed[0] if failed else "text is blank: no token is left of it"
            block.rejected.append(_reject(document, reason))
            continue
        indexed += 1
        latest.pop(document.id, None)  # so that rows keep the order of their last occurrence
        latest[document.id] = document, kept
    rows = [row for _, kept in latest.values() for row in kept]
    documents = [
        _part(document, number, texts[row]) if chunked else document
        for document, kept in latest.values()
        for number, row in enumerate(kept, start=1)
    ]
    return EncodedBlock(
        block=block,
        indexed=indexed,
        documents=documents,
        embeddings=encoded.embeddings[rows],
        repeated=indexed - len(latest),
        parts={document.id: len(kept) for document, kept in latest.values()},
        cut=[
            CutText(
                document.id, int(encoded.full_token_counts[row]), int(encoded.token_counts[row])
            )
            for document, row in zip(documents, rows, strict=True)
            if encoded.full_token_counts[row] > encoded.token_counts[row]
        ],
    )


def part_id(document_id: str, number: int) -> str:
    """Id of one part of a split document; numbers start at 1."""
    return f"{document_id}#{number}"


def _part(document: Document, number: int, text: str) -> Document:
    metadata = {**document.metadata, PARENT_FIELD: document.id, "part": number}
    return replace(document, id=part_id(document.id, number), text=text, metadata=metadata)


def _fault_for_parts(document: Document) -> str | None:
    taken = sorted(PART_FIELDS.keys() & document.metadata.keys())
    if taken:
        return f'metadata field "{taken[0]}" is kept for parts of texts; rename it'
    room = MAX_ID_BYTES - _PART_SUFFIX_BYTES
    if len(document.id.encode()) > room:
        return f"id is too long for its parts; at most {room} bytes where texts are split"
    return None


def _reject(document: Document, reason: str) -> RejectedRow:
    excerpt = document.text[:_EXCERPT_CHARACTERS]
    return RejectedRow(repair_text(document.file), document.line, reason, document.id, excerpt)


def _encode_surviving(encoder: Encoder, texts: Sequence[str]) -> tuple[Encoded, dict[int, str]]:
    """Encode N texts, halving where the encoder fails until the texts at fault are alone.

    Returns:
        Encoded: N rows, zeros where it failed.
        Failures: Position to reason.
    """
    result = Encoded(
        embeddings=np.zeros((len(texts), encoder.dimension), dtype=np.float32),
        token_counts=np.zeros(len(texts), dtype=np.int32),
        full_token_counts=np.zeros(len(texts), dtype=np.int32),
        blank=np.zeros(len(texts), dtype=np.bool_),
    )
    failures: dict[int, str] = {}
    spans = [slice(0, len(texts))] if texts else []
    while spans:
        span = spans.pop()
        try:
            found, usable = _encode_checked(encoder, texts[span])
        except Exception as error:  # noqa: BLE001 - whatever one text does must not lose the others
            if not failures and span.stop - span.start == len(texts):
                _prove_alive(encoder, error)
            if span.stop - span.start == 1:
                failures[span.start] = f"the encoder failed on it: {error}"
            else:
                middle = (span.start + span.stop) // 2
                spans += [slice(middle, span.stop), slice(span.start, middle)]
            continue
        result.embeddings[span] = found.embeddings
        result.token_counts[span] = found.token_counts
        result.full_token_counts[span] = found.full_token_counts
        result.blank[span] = found.blank
        for row in np.flatnonzero(~usable).tolist():
            failures[span.start + row] = "the encoder gave no finite unit vector for it"
    if texts and len(failures) == len(texts):
        _prove_alive(encoder, None)
    return result, failures


def _encode_checked(encoder: Encoder, texts: Sequence[str]) -> tuple[Encoded, NDArray[np.bool_]]:
    """Encode texts and tell which rows are finite unit vectors."""
    encoded = encoder.encode(texts, role="document")
    expected = (len(texts), encoder.dimension)
    if encoded.embeddings.shape != expected:
        raise EncoderOutputError(
            f"encoder {encoder.name} returned an array of shape {encoded.embeddings.shape}, "
            f"expected {expected}"
        )
    return encoded, are_unit(encoded.embeddings)


def _prove_alive(encoder: Encoder, cause: Exception | None) -> None:
    """Stop the build if the encoder is what fails, and not some texts."""
    try:
        _, usable = _encode_checked(encoder, ["search"])
    except Exception as error:
        raise EncoderOutputError(
            f"encoder {encoder.name} cannot embed even a plain word ({cause or error}); "
            "`lamina doctor` tests it"
        ) from error
    if not usable.all():
        raise EncoderOutputError(
            f"encoder {encoder.name} gives no finite unit vector even for a plain word; "
            "`lamina doctor` tests it"
        ) from cause
