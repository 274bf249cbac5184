"""Files into a collection that is in use, block by block, with the index made anew as need be."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lamina_index.compaction import compact
from lamina_index.corpus import CorpusOptions, Document, FieldTypes, Rejected, read_corpus
from lamina_index.corpus.inputs import check_stable_ids, resolve_inputs
from lamina_index.encoder import Encoder
from lamina_index.errors import BacklogFullError, CollectionBusyError, WriteTooLargeError
from lamina_index.writer import CollectionWriter, Fault, Written

ROWS_AT_ONCE = 256
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class AddReport:
    """What was done with the rows of some files.

    Attributes:
        rows_read: Good and bad.
        inserted: Documents whose ids were new.
        replaced: Documents whose ids were there; of rows with one id in a block, one.
        rejected: Rows that are not stored.
        truncated: Texts that the encoder did not read to the end.
        generation: The store's, after the last block.
    """

    rows_read: int = 0
    inserted: int = 0
    replaced: int = 0
    rejected: int = 0
    truncated: int = 0
    generation: int = 0


def add_documents(
    inputs: Sequence[str | Path],
    folder: Path,
    encoder: Encoder,
    *,
    options: CorpusOptions | None = None,
    max_backlog: int | None = None,
    on_faults: Callable[[Sequence[Fault]], object] = lambda faults: None,
    on_progress: Callable[[AddReport], object] = lambda report: None,
) -> AddReport:
    """Add the documents of files to a collection; those whose ids are there are replaced.

    The collection may be searched and written to meanwhile. Each block of 256 rows, or fewer where
    they have very many parts, is durable when the next one begins; after an error or a kill the
    same call does those again, to the same end.

    Args:
        inputs: Files, folders, or `-` for standard input.
        folder: The collection's folder.
        encoder: The one that it was built with.
        options: How to read the inputs.
        max_backlog: As for `CollectionWriter.open`.
        on_faults: Told the rows of a block that are not stored.
        on_progress: Told what is done after each block.

    Raises:
        CorpusError: If an input cannot be read, or is a pipe of lines without ids.
        LaminaError: As `CollectionWriter.open` and `upsert`.
    """
    options = options or CorpusOptions()
    check_stable_ids(resolve_inputs(inputs, options))
    report = AddReport()
    with CollectionWriter.open(folder, encoder, max_backlog=max_backlog) as writer:
        types = FieldTypes(writer.fields)
        records = read_corpus(inputs, options, fields=types, check=writer.check)
        waiting: list[list[Document | Rejected]] = []
        while block := waiting.pop() if waiting else list(islice(records, ROWS_AT_ONCE)):
            try:
                written = _write(writer, block, types)
            except WriteTooLargeError:  # of texts with very many parts
                if len(block) == 1:
                    raise
                waiting += [block[len(block) // 2 :], block[: len(block) // 2]]
                continue
            types.adopt(writer.fields)
            on_faults(written.faults)
            report = AddReport(
                rows_read=report.rows_read + len(block),
                inserted=report.inserted + written.inserted,
                replaced=report.replaced + written.replaced,
                rejected=report.rejected + len(written.faults),
                truncated=report.truncated + len(written.truncated),
                generation=written.generation,
            )
            on_progress(report)
    return report


def make_room(folder: Path) -> None:
    """Make a new search index of a collection, or wait a moment if another process works on it.

    Raises:
        LaminaError: As `compact`.
    """
    try:
        compact(folder)
    except CollectionBusyError:
        time.sleep(_PAUSE_SECONDS)


def _write(
    writer: CollectionWriter, block: list[Document | Rejected], types: FieldTypes
) -> Written:
    """Store a block once there is room for it, for which a service may not be running to see to."""
    while True:
        try:
            return writer.commit(writer.prepare_documents(block, types))
        except BacklogFullError:
            if writer.backlog.rows == 0:
                raise  # a new index would make no room
            make_room(writer.folder)
