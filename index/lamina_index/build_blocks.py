"""The pure middle of a build: records to blocks, a block to rows with embeddings.

Blocks are cut by record counts and sizes alone, so a build that is continued at the end of a
committed block cuts the rest exactly as an undisturbed one does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from lamina_index.corpus import Check, Document, FieldTypes, Rejected, RowError
from lamina_index.encoder import Encoded, Encoder
from lamina_index.errors import EncoderOutputError, LaminaError
from lamina_index.manifest import MAX_ID_BYTES, PARENT_FIELD, FieldType
from lamina_index.parts import PART_FIELDS, part_id
from lamina_index.scoring import are_unit
from lamina_index.text import repair_text

BLOCK_ROWS = 1024
BLOCK_CHARACTERS = 2_000_000

_EXCERPT_CHARACTERS = 200
_PART_SUFFIX_BYTES = 9
_BLANK = "text is blank: no token is left of it"

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
        fields: The types that the metadata was held to.
    """

    rows: int = 0
    documents: list[Document] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    rejected: list[RejectedRow] = field(default_factory=list)
    fields: dict[str, FieldType] = field(default_factory=dict)

    def add(self, record: Document | Rejected, split: Split | None) -> None:
        """Take in a record; `split` cuts its text into parts, None keeps it whole."""
        self.rows += 1
        if isinstance(record, Rejected):
            self.rejected.append(_reject(record, record.reason))
        else:
            self.documents.append(record)
            self.texts.append(split(record.text) if split else [record.text])


@dataclass(frozen=True, slots=True)
class CutText:
    """A line of `truncated.jsonl`; counts are tokens, special ones included."""

    id: str
    tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class BlockRows:
    """A block as it is to be stored.

    Attributes:
        documents: N documents or parts of documents; an id occurs once.
        embeddings: (N, D) unit rows.
        repeated: Records that an equal id later in the block replaced.
        parts: For each document id, how many of `documents` it has become.
        cut: Documents whose text the encoder did not read to the end.
    """

    documents: list[Document]
    embeddings: NDArray[np.float32]
    repeated: int
    parts: dict[str, int]
    cut: list[CutText]


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block whose texts are embedded.

    Attributes:
        block: Where it comes from; its `rejected` has the records that failed here, too.
        texts: T texts, all parts of all documents of the block.
        encoded: What the encoder made of them, T rows.
        kept: The documents that can be stored, and which of the texts are theirs.
        chunked: Whether documents are stored as parts, even if there is but one.
    """

    block: Block
    texts: list[str]
    encoded: Encoded
    kept: list[tuple[Document, list[int]]]
    chunked: bool

    def held_to(self, fixed: Mapping[str, FieldType]) -> EncodedBlock:
        """Reject the documents that do not fit the types which others have fixed meanwhile."""
        types = FieldTypes(self.block.fields)
        kept, rejected = self.kept, self.block.rejected
        if types.adopt(fixed):
            kept, rejected = [], list(rejected)
            for document, rows in self.kept:
                try:
                    kept.append((replace(document, metadata=types.check(document.metadata)), rows))
                except RowError as error:
                    rejected.append(_reject(document, str(error)))
        return replace(
            self, kept=kept, block=replace(self.block, rejected=rejected, fields=types.known)
        )

    def rows(self) -> BlockRows:
        """Give what is to be stored; of records with the same id the last one counts."""
        latest: dict[str, tuple[Document, list[int]]] = {}
        for document, rows in self.kept:
            latest.pop(document.id, None)  # so that rows keep the order of their last occurrence
            latest[document.id] = document, rows
        order = [row for _, rows in latest.values() for row in rows]
        documents = [
            _part(document, number, self.texts[row]) if self.chunked else document
            for document, rows in latest.values()
            for number, row in enumerate(rows, start=1)
        ]
        full, read = self.encoded.full_token_counts, self.encoded.token_counts
        return BlockRows(
            documents=documents,
            embeddings=self.encoded.embeddings[order],
            repeated=len(self.kept) - len(latest),
            parts={document.id: len(rows) for document, rows in latest.values()},
            cut=[
                CutText(document.id, int(full[row]), int(read[row]))
                for document, row in zip(documents, order, strict=True)
                if full[row] > read[row]
            ],
        )


def blocks(records: Iterable[Document | Rejected], split: Split | None) -> Iterator[Block]:
    """Cut a stream of records into blocks.

    Args:
        records: What `read_corpus` yields, from the first record of a block on.
        split: Cuts a text into parts; None keeps texts whole.
    """
    block, characters = Block(), 0
    for record in records:
        block.add(record, split)
        characters += len(record.text) if isinstance(record, Document) else 0
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
    kept: list[tuple[Document, list[int]]] = []
    end = 0
    for document, document_texts in zip(block.documents, block.texts, strict=True):
        start, end = end, end + len(document_texts)
        failed = [failures[row] for row in range(start, end) if row in failures]
        rows = [row for row in range(start, end) if not encoded.blank[row]]
        if failed or not rows:
            block.rejected.append(_reject(document, failed[0] if failed else _BLANK))
        else:
            kept.append((document, rows))
    return EncodedBlock(block, texts, encoded, kept, chunked)


def _part(document: Document, number: int, text: str) -> Document:
    metadata = {**document.metadata, PARENT_FIELD: document.id, "part": number}
    return replace(document, id=part_id(document.id, number), text=text, metadata=metadata)


def check_for(encoder: Encoder, *, chunked: bool) -> Check:
    """Make the check that finds out beforehand which documents a block could not keep.

    Readers ask it before a document decides the type of a field. A text with a letter or digit is
    left to `encode_block`: it has tokens, so only an encoder that fails can refuse it.
    """

    def check(document: Document, values: Mapping[str, object]) -> None:
        if chunked:
            _check_for_parts(document.id, values)
        if not any(map(str.isalnum, document.text)):
            encoded, failures = _encode_surviving(encoder, [document.text])
            if failures or encoded.blank[0]:
                raise RowError(failures.get(0, _BLANK))

    return check


def _check_for_parts(document_id: str, values: Mapping[str, object]) -> None:
    """Refuse what leaves no room for the ids and fields of a text's parts."""
    taken = sorted(name for name in PART_FIELDS if values.get(name) is not None)
    if taken:
        raise RowError(f'metadata field "{taken[0]}" is kept for parts of texts; rename it')
    room = MAX_ID_BYTES - _PART_SUFFIX_BYTES
    if len(document_id.encode()) > room:
        raise RowError(f"id is too long for its parts; at most {room} bytes where texts are split")


def _reject(record: Document | Rejected, reason: str) -> RejectedRow:
    excerpt = None if record.text is None else record.text[:_EXCERPT_CHARACTERS]
    return RejectedRow(repair_text(record.file), record.line, reason, record.id, excerpt)


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
        except Exception as error:
            if isinstance(error, LaminaError) and not isinstance(error, EncoderOutputError):
                raise  # no text's fault, such as a service's queue that is full
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
