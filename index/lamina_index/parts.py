"""Documents that are stored as parts: `doc#1`, `doc#2`, ... without a gap, all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina_index.manifest import PARENT_FIELD, FieldType
from lamina_index.store_reading import StoreReading

PART_FIELDS: dict[str, FieldType] = {PARENT_FIELD: "string", "part": "number"}

_AT_ONCE = 16


def part_id(document_id: str, number: int) -> str:
    """Id of one part of a split document; numbers start at 1."""
    return f"{document_id}#{number}"


def parent_id(part: str) -> str:
    """Id of the document that a part is of."""
    return part.rpartition("#")[0]


def present(
    reading: StoreReading, parts: Mapping[str, int], *, chunked: bool
) -> tuple[int, list[str]]:
    """Find what of some documents is stored before they are written.

    Args:
        reading: The transaction.
        parts: For each document's id the number of its parts; 0 for one that is to go.
        chunked: Whether documents are stored as parts, even if there is but one.

    Returns:
        How many of the documents are stored, and the ids of rows that writing so many parts would
        leave behind.
    """
    if not chunked:
        known = reading.existing(list(parts))
        return len(known), [each for each in parts if each in known and not parts[each]]
    first = reading.existing([part_id(document_id, 1) for document_id in parts])
    documents = [document_id for document_id in parts if part_id(document_id, 1) in first]
    stale = [part for each in documents for part in _parts_after(reading, each, parts[each])]
    return len(documents), stale


def _parts_after(reading: StoreReading, document_id: str, number: int) -> Sequence[str]:
    """Ids of a document's parts of higher numbers."""
    found: list[str] = []
    while True:
        start = number + len(found) + 1
        asked = [part_id(document_id, each) for each in range(start, start + _AT_ONCE)]
        there = reading.existing(asked)
        found += [part for part in asked if part in there]
        if len(there) < _AT_ONCE:
            return found
