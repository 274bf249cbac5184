"""What an input path means: its format, where its ids come from, and whether it can be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lamina_index.corpus.beir import beir_corpus, is_beir_folder
from lamina_index.corpus.fields import RESERVED_FIELDS
from lamina_index.corpus.records import FORMATS, CorpusOptions, Format, quote
from lamina_index.corpus.sources import STDIN, label
from lamina_index.disk import shown_path
from lamina_index.errors import CorpusError

LINE_IDS = "line"
"""The `id_field` that makes ids of file name and line number."""

_ID_FIELDS = ("id", "_id")
_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".txt": "text",
}


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a corpus; `path` is `-` for standard input."""

    path: Path | str
    format: Format
    options: CorpusOptions

    @property
    def name(self) -> str:
        """What stands before the colon in an id made of a line number."""
        return "stdin" if self.path == STDIN else shown_path(Path(self.path).name)

    @property
    def piped(self) -> bool:
        """Whether it can be read but once, and is something else the next time."""
        return is_piped(self.path)

    @property
    def textual(self) -> bool:
        """Whether every value arrives as a string."""
        return self.format in ("csv", "tsv")

    @property
    def delimiter(self) -> str:
        """The character between columns."""
        return self.options.delimiter or ("," if self.format == "csv" else "\t")

    @property
    def line_ids(self) -> bool:
        """Whether ids are made of file name and line number."""
        return self.format == "text" or (
            self.options.id_field == LINE_IDS and self.format != "folder"
        )

    @property
    def id_fields(self) -> tuple[str, ...]:
        """Fields that may hold the id, the first one present being it; none for line ids."""
        if self.line_ids:
            return ()
        if self.options.id_field is None or self.format == "folder":
            return _ID_FIELDS
        return (self.options.id_field,)

    @property
    def text_field(self) -> str:
        """Field that holds the text."""
        return "text" if self.format in ("text", "folder") else self.options.text_field

    def check_columns(self, columns: Sequence[str]) -> None:
        """See that a table has the columns it needs, and none that cannot be kept.

        Raises:
            CorpusError: With the columns found and the flag that helps.
        """
        found = ", ".join(quote(column) for column in columns if column)
        id_field = next((name for name in self.id_fields if name in columns), None)
        if id_field is None and not self.line_ids:
            raise CorpusError(
                f"{self.path}: no column {quote(self.id_fields[0])}; found {found}; set "
                f"--id-field to one of them or to {LINE_IDS}{self._delimiter_hint(columns)}"
            )
        if self.text_field not in columns:
            raise CorpusError(
                f"{self.path}: no column {quote(self.text_field)}; found {found}; set "
                f"--text-field to one of them{self._delimiter_hint(columns)}"
            )
        for column in columns:
            if column in RESERVED_FIELDS and column not in (id_field, self.text_field):
                raise CorpusError(
                    f"{self.path}: column {quote(column)} is neither the id nor the text here, "
                    "and metadata cannot have that name; rename it"
                )

    def _delimiter_hint(self, columns: Sequence[str]) -> str:
        one = self.textual and len(columns) == 1
        return f", or --delimiter if {quote(self.delimiter)} does not separate them" if one else ""


def is_piped(path: Path | str) -> bool:
    """Whether a path is standard input or a pipe."""
    return str(path) == STDIN or Path(path).is_fifo()


def check_stable_ids(inputs: Sequence[Input]) -> None:
    """Refuse what would give the ids of stored documents to others.

    A line of a file has the same id each time the file is read, which is how it is replaced. The
    next thing to come through a pipe is another one, with lines of the same ids.

    Raises:
        CorpusError: If an input of line ids is a pipe.
    """
    for source in inputs:
        if source.piped and source.line_ids:
            raise CorpusError(
                f"{label(source.path)}: its ids would be {source.name}:1 and so on, each time of "
                "another document, which would replace the one before; name a column of ids "
                "(--id-field, and a --format that has columns), or write it to a file of its own"
            )


def resolve_inputs(paths: Sequence[Path | str], options: CorpusOptions) -> list[Input]:
    """Find each input's format, and for a BEIR folder its corpus file.

    Raises:
        CorpusError: If one is missing, of unknown or unfit format, or two would make equal ids.
    """
    inputs = [_resolve(path, options) for path in paths]
    seen: set[str] = set()
    for source in inputs:
        if source.line_ids or source.path == STDIN:
            if source.name in seen:
                raise CorpusError(
                    f"{source.path}: an input named {source.name} was given before, and ids made "
                    "of file name and line number would be the same; rename one"
                )
            seen.add(source.name)
    return inputs


def _resolve(path: Path | str, options: CorpusOptions) -> Input:
    if str(path) == STDIN:
        if options.format in (None, "parquet", "folder"):
            raise CorpusError(
                "<stdin>: set --format to what comes in: jsonl, csv, tsv, text or beir"
            )
        return Input(STDIN, options.format, options)
    path = Path(path)
    if not path.exists():
        raise CorpusError(f"{path}: no such file or folder")
    chosen = options.format or _format_of(path)
    if path.is_dir():
        if chosen == "beir":
            path = beir_corpus(path)
        elif chosen != "folder":
            raise CorpusError(f"{path}: is a folder; --format {chosen} expects a file")
    elif chosen == "folder":
        raise CorpusError(f"{path}: is a file; --format folder expects a folder")
    return Input(path, chosen, options)


def _format_of(path: Path) -> Format:
    if path.is_dir():
        return "beir" if is_beir_folder(path) else "folder"
    name = path.name.lower().removesuffix(".gz")
    suffix = Path(name).suffix
    if suffix not in _SUFFIXES:
        raise CorpusError(
            f"{path}: its name does not tell the format; set --format to one of "
            f"{', '.join(FORMATS)}"
        )
    return _SUFFIXES[suffix]
