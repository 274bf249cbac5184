"""What the readers yield, and the rules that one record must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from lamina_index.manifest import MAX_ID_BYTES, Metadata
from lamina_index.text import repair_text

Format = Literal["jsonl", "csv", "tsv", "parquet", "text", "folder", "beir"]
FORMATS: tuple[Format, ...] = get_args(Format)

MAX_RECORD_BYTES = 16 * 2**20
"""Longest line, CSV record or text file; a longer one is rejected unread."""


Values = dict[str, object]
"""The parsed values of one record, by column or key, before they are checked."""


class RowError(ValueError):
    """One record cannot be used; the message is the reason that the user reads."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus, as it will be stored.

    Attributes:
        id: Non-blank, at most `MAX_ID_BYTES` bytes of UTF-8.
        text: Repaired (`repair_text`), not normalised.
        metadata: Values that `FieldTypes` has checked.
        file: Where it was read, for messages; no part of the document.
        line: The line, row or 1, counted from 1; 0 if it comes from no file.
    """

    id: str
    text: str
    metadata: Metadata = field(default_factory=dict)
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is not indexed, where it stands, why, and its id and text if those are good."""

    file: str
    line: int
    reason: str
    id: str | None = None
    text: str | None = field(default=None, compare=False)


Check = Callable[[Document, Values], None]
"""Raises `RowError` for a document that cannot be stored, given its metadata as it was read."""


@dataclass(frozen=True, slots=True)
class Query:
    """A question of an evaluation; `split` is None where the file has no such column."""

    id: str
    text: str
    split: str | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """How relevant a document is to a query; a grade of 0 or less means not relevant."""

    query_id: str
    document_id: str
    grade: float = 1
    split: str | None = None


@dataclass(frozen=True)
class CorpusOptions:
    """How to read the inputs of a corpus.

    Attributes:
        format: None takes it from each file's suffix.
        id_field: Column or key of the id; None means `id`, or else `_id`; `line` makes ids of
            file name and line number.
        text_field: Column or key of the text.
        delimiter: One character between columns; None means a comma in CSV and a tab in TSV.

    Raises:
        ValueError: If the format is unknown or the delimiter cannot separate columns.
    """

    format: Format | None = None
    id_field: str | None = None
    text_field: str = "text"
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"format {self.format!r} is not one of {', '.join(FORMATS)}")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n'):
            raise ValueError(
                f"delimiter {self.delimiter!r} must be one character, no quote or line break"
            )


def check_id(value: object) -> str:
    """Give a record's id as a string; an integer becomes its exact decimal digits.

    Nothing is repaired or trimmed here: that could make one id of two.

    Raises:
        RowError: If it is of another type, blank, too long or holds unstorable characters.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise RowError(f"id is {describe(value)}; expected a string or an integer")
    if not value.strip():
        raise RowError("id is blank")
    if repair_text(value) != value:
        raise RowError("id holds a NUL or a lone surrogate, which cannot be stored")
    size = len(value.encode())
    if size > MAX_ID_BYTES:
        raise RowError(f"id has {size} bytes; at most {MAX_ID_BYTES} are allowed")
    return value


def check_text(value: object) -> str:
    """Give a record's text, repaired.

    Raises:
        RowError: If it is no string, blank, or longer than a record may be.
    """
    if not isinstance(value, str):
        raise RowError(f"text is {describe(value)}; expected a string")
    if not value.strip():
        raise RowError("text is blank")
    if len(value) > MAX_RECORD_BYTES:
        raise RowError(f"text has {len(value)} characters; at most {MAX_RECORD_BYTES} are allowed")
    return repair_text(value)


def describe(value: object) -> str:
    """Name a value's JSON type for a message, with a short excerpt where that helps."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return f"the number {quote(value)}"
        case str():
            return f"the string {quote(value)}"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return f"of type {type(value).__name__}"


def quote(value: object) -> str:
    """Show a value in a message: on one line, short, strings in double quotes."""
    shown = str(value)
    if len(shown) > 40:
        shown = f"{shown[:37]}..."
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return f'"{shown}"' if isinstance(value, str) else shown
