"""Turn the inputs of a corpus into one stream of documents and rejected records."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from lamina_index.corpus.fields import FieldTypes
from lamina_index.corpus.folders import read_folder, read_text_lines
from lamina_index.corpus.inputs import Input, resolve_inputs
from lamina_index.corpus.objects import read_objects
from lamina_index.corpus.parquet import read_parquet
from lamina_index.corpus.records import (
    Check,
    CorpusOptions,
    Document,
    Rejected,
    RowError,
    Values,
    check_id,
    check_text,
    describe,
    quote,
)
from lamina_index.corpus.sources import label
from lamina_index.corpus.tables import read_table

WINDOW_ROWS = 1000
"""Field types are found over windows of so many records of one input ..."""

WINDOW_CHARACTERS = 16 * 2**20
"""... or fewer, once their texts reach this length."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A record with good id and text whose metadata is still to be checked."""

    document: Document
    values: Values


def read_corpus(
    paths: Sequence[Path | str],
    options: CorpusOptions | None = None,
    *,
    fields: FieldTypes | None = None,
    check: Check = lambda document, values: None,
) -> Iterator[Document | Rejected]:
    """Stream the documents of all inputs, one after the other, and the records that are none.

    The same inputs give the same sequence, one item for each record, so whoever took n items
    goes on after skipping n. Nothing is remembered of earlier records: a repeated id is yielded
    again.

    Args:
        paths: Files, folders, or `-` for standard input (then `options.format` must be set).
        options: How to read them.
        fields: Types found so far; grows with the fields of these inputs, up to `WINDOW_ROWS`
            records ahead of the items taken.
        check: Refuses documents for other reasons than their metadata's types, before they can
            decide any.

    Raises:
        CorpusError: At once if an input is missing, empty, of unknown format, or its header
            lacks the id or text column; while streaming if an input cannot be read further.
        MissingExtraError: If an input is Parquet and pyarrow is not installed.
    """
    types = FieldTypes() if fields is None else fields
    inputs = resolve_inputs(paths, options or CorpusOptions())
    for source in inputs:
        # Pipes can be read but once, so what is wrong with them shows while streaming.
        if not source.piped:
            with closing(_records(source)) as records:
                next(records, None)
    return (item for source in inputs for item in _read_input(source, types, check))


def read_values(
    records: Sequence[object],
    fields: FieldTypes,
    *,
    check: Check = lambda document, values: None,
) -> Iterator[Document | Rejected]:
    """Check records that arrive as decoded JSON: `id`, `text` and, where there is any, `metadata`.

    Stricter than a file's rows: the id is a string, and other keys are refused.

    Args:
        records: Of any type; each item's `line` is its position here, counted from 1.
        fields: Types found so far; grows with the fields of these records.
        check: As for `read_corpus`.
    """
    window = [
        _passed(_checked(line, record), check) for line, record in enumerate(records, start=1)
    ]
    return _typed(window, fields, textual=False)


def _checked(line: int, record: object) -> _Candidate | Rejected:
    identity: str | None = None
    try:
        if not isinstance(record, dict):
            raise RowError(f"is {describe(record)}; expected an object")
        for name in ("id", "text"):
            if not isinstance(record.get(name), str):
                found = describe(record[name]) if name in record else "missing"
                raise RowError(f"{name} is {found}; expected a string")
        identity = check_id(record["id"])
        if others := record.keys() - {"id", "text", "metadata"}:
            raise RowError(
                f"has the key {quote(min(map(str, others)))}; expected id, text and metadata alone"
            )
        metadata = record.get("metadata")
        if not isinstance(metadata, dict | None):
            raise RowError(f"metadata is {describe(metadata)}; expected an object")
        text = check_text(record["text"])
    except RowError as error:
        return Rejected("", line, str(error), identity)
    return _Candidate(Document(identity, text, line=line), metadata or {})


def _passed(item: _Candidate | Rejected, check: Check) -> _Candidate | Rejected:
    """Reject what a check refuses."""
    if isinstance(item, _Candidate):
        try:
            check(item.document, item.values)
        except RowError as error:
            return _rejected(item.document, error)
    return item


def _rejected(document: Document, error: RowError) -> Rejected:
    return Rejected(document.file, document.line, str(error), document.id, document.text)


def _read_input(source: Input, types: FieldTypes, check: Check) -> Iterator[Document | Rejected]:
    """Yield one input's items, window by window."""
    window: list[_Candidate | Rejected] = []
    characters = 0
    for file, line, values in _records(source):
        item = _candidate(source, file, line, values)
        window.append(_passed(item, check))
        characters += len(item.document.text) if isinstance(item, _Candidate) else 0
        if len(window) == WINDOW_ROWS or characters >= WINDOW_CHARACTERS:
            yield from _typed(window, types, source.textual)
            window, characters = [], 0
    yield from _typed(window, types, source.textual)


def _typed(
    window: list[_Candidate | Rejected], types: FieldTypes, textual: bool
) -> Iterator[Document | Rejected]:
    """Find the types of new fields in a window, then check the metadata of its records."""
    types.infer((item.values for item in window if isinstance(item, _Candidate)), textual=textual)
    for item in window:
        if isinstance(item, Rejected):
            yield item
            continue
        try:
            yield replace(item.document, metadata=types.check(item.values, textual=textual))
        except RowError as error:
            yield _rejected(item.document, error)


def _records(source: Input) -> Generator[tuple[str, int, Values | RowError]]:
    """Yield file, line and values of each record, in the terms that all formats share."""
    path, name = source.path, label(source.path)
    rows: Iterator[tuple[int, Values | RowError]]
    match source.format:
        case "jsonl" | "beir":
            rows = read_objects(path)
        case "csv" | "tsv":
            rows = read_table(
                path,
                delimiter=source.delimiter,
                quoted=source.format == "csv",
                check_columns=source.check_columns,
            )
        case "parquet":
            rows = read_parquet(Path(path), check_columns=source.check_columns)
        case "text":
            rows = read_text_lines(path)
        case "folder":
            for file, values in read_folder(Path(path)):
                yield label(file), 1, values
            return
    for line, values in rows:
        yield name, line, values


def _candidate(
    source: Input, file: str, line: int, values: Values | RowError
) -> _Candidate | Rejected:
    """Take id and text out of a record's values; what is left is metadata."""
    identity: str | None = None
    try:
        if isinstance(values, RowError):
            raise values
        # An empty cell is how a table says that a row has no such value.
        rest = {k: v for k, v in values.items() if v != ""} if source.textual else dict(values)
        if source.line_ids:
            identity = f"{source.name}:{line}"
        else:
            identity = check_id(_take(rest, source.id_fields, flag="--id-field"))
        if source.format == "beir":
            _join_title(rest, source.text_field)
        text = check_text(_take(rest, (source.text_field,), flag="--text-field"))
        _unpack_metadata(rest)
    except RowError as error:
        return Rejected(file, line, str(error), identity)
    return _Candidate(Document(identity, text, file=file, line=line), rest)


def _take(values: Values, names: Sequence[str], *, flag: str) -> object:
    """Remove and give the first of the named values that is there."""
    for name in names:
        if name in values:
            return values.pop(name)
    found = ", ".join(quote(name) for name in list(values)[:8]) or "nothing"
    raise RowError(f"no {quote(names[0])}; found {found} ({flag} names another)")


def _join_title(values: Values, text_field: str) -> None:
    """Put the title before the text, as BEIR's own evaluation does; it stays as a field too."""
    title, text = values.get("title"), values.get(text_field)
    if title == "":
        del values["title"]
    elif isinstance(title, str) and isinstance(text, str):
        values[text_field] = f"{title} {text}".strip()


def _unpack_metadata(values: Values) -> None:
    """Bring the fields of an object named `metadata` up beside the others."""
    inner = values.get("metadata")
    if isinstance(inner, dict):
        del values["metadata"]
        if twice := sorted(inner.keys() & values.keys()):
            raise RowError(f'field {quote(twice[0])} stands beside "metadata" and inside it')
        values.update(inner)
