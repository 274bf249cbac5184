"""The errors that a user of Lamina can meet and mend.

A caller's programming mistake is a `ValueError`. Everything here is about files, formats, versions
and machines; each message says what, where, found, expected and the remedy. The service maps each
class to one HTTP status, so a new class needs a line in its table too (a test sees to that), even
one that only a command meets, such as `MissingExtraError` or `CorpusError`.
"""

from __future__ import annotations


class LaminaError(Exception):
    """Base of every error that a user can mend."""


class MissingExtraError(LaminaError):
    """An optional package is needed; the message says which extra installs it."""


class FormatError(LaminaError):
    """A manifest or folder is not in a format that this version reads."""


class EncoderLoadError(LaminaError):
    """An encoder's or reranker's folder is absent, incomplete or altered."""


class EncoderProbeError(LaminaError):
    """An encoder or reranker does not give here what its manifest promises."""


class EncoderOutputError(LaminaError):
    """An encoder returned no finite unit vector of its dimension, or a reranker no finite score.

    Attributes:
        items: Positions, in the call's list, of the texts without a usable result.
    """

    def __init__(self, message: str, items: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.items = items


class EncoderMismatchError(LaminaError):
    """A collection was built by another encoder than the one at hand."""


class DeviceError(LaminaError):
    """The asked-for device does not run the graph."""


class BlankTextError(LaminaError):
    """A text has no token left after normalisation, so there is nothing to search for."""


class CorpusError(LaminaError):
    """An input file cannot be read at all (single bad rows are rejected instead)."""


class RejectedRowsError(LaminaError):
    """Rows were rejected and the caller asked for none (`--strict`)."""


class CollectionNotFoundError(LaminaError):
    """No collection lies where one was named."""


class CollectionExistsError(LaminaError):
    """A collection lies where a new one was to be made."""


class ResumeError(LaminaError):
    """What an interrupted build left is not of the inputs and options that are to continue it."""


class CollectionBusyError(LaminaError):
    """Another process is writing to the collection."""


class CompactionError(LaminaError):
    """A new search index did not hold what it should; the one there was is in use as before."""


class DamagedError(LaminaError):
    """A file is missing, cut or altered; the message names it and the remedy."""


class IndexDamagedError(DamagedError):
    """A search index is missing, cut or altered; it can be made again from `documents.sqlite`."""


class NoWordIndexError(LaminaError):
    """The collection was made by a version without a word index; `lamina index upgrade` adds it."""


class IndexFactoryError(LaminaError):
    """A FAISS factory string names no index that can be built, or searched with deletions, here."""


class FilterError(LaminaError):
    """A filter is malformed, too large, or does not fit the collection's fields.

    Attributes:
        path: Where in the request, such as `filter.year.$gte`.
        found: What is there and what was expected.
    """

    def __init__(self, path: str, found: str) -> None:
        super().__init__(f"{path}: {found}")
        self.path = path
        self.found = found


class GroupFieldError(LaminaError):
    """The collection has no such field to group by, or its documents have several values of it."""


class CursorError(LaminaError):
    """A cursor is none that a listing of this collection, as it is now, could have given.

    Attributes:
        found: What is there and what was expected.
    """

    def __init__(self, found: str) -> None:
        super().__init__(f"cursor: {found}")
        self.found = found


class DocumentNotFoundError(LaminaError):
    """No document has the id."""


class StorageFullError(LaminaError):
    """No space is left on the device; what was there before is untouched."""


class ReadOnlyError(LaminaError):
    """A file or folder is on a read-only disk, or this user may not write to it."""


class EvaluationError(LaminaError):
    """Queries, relevance judgements and corpus do not fit together."""


class BacklogFullError(LaminaError):
    """More writes wait for the search index than a search may look through."""


class WriteTooLargeError(LaminaError):
    """One write has more rows than a collection takes at once, however empty its backlog is."""
