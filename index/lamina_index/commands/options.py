"""Options that several commands on collections share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from lamina_index import search_options

if TYPE_CHECKING:
    from lamina_index.corpus import CorpusOptions
    from lamina_index.filters import Filter
    from lamina_index.manifest import FieldType

Collection = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a collection.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
FormatName = Literal["jsonl", "csv", "tsv", "parquet", "text", "folder", "beir"]
PrecisionName = Literal["int8", "fp32", "fp16"]
DeviceName = Literal["auto", "cpu", "cuda"]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input", metavar="F [F...]", help="Files or folders to read; - is standard input."
    ),
]
EncoderName = Annotated[
    str,
    typer.Option(
        envvar="LAMINA_ENCODER",
        help="Name (default, fast) or folder of the encoder; a collection keeps to the one that "
        "built it.",
    ),
]
Precision = Annotated[
    PrecisionName | None,
    typer.Option(
        envvar="LAMINA_PRECISION",
        help="Which of the encoder's graphs; by default the fastest that is right.",
    ),
]
Device = Annotated[DeviceName, typer.Option(envvar="LAMINA_DEVICE", help="Where it runs.")]
AcceptCompatible = Annotated[
    float | None,
    typer.Option(
        "--accept-compatible",
        metavar="COSINE",
        envvar="LAMINA_ACCEPT_COMPATIBLE",
        min=0,
        max=1,
        help="Search what another precision of the encoder built, if the export measured this "
        "cosine or more between vectors of the two.",
    ),
]
Format = Annotated[
    FormatName | None,
    typer.Option("--format", help="Format of the inputs; by default from their names."),
]
Delimiter = Annotated[str | None, typer.Option(help="Between columns of CSV and TSV.")]
IdField = Annotated[
    str | None,
    typer.Option(help="Field of the id (by default id or _id); `line` makes ids of lines."),
]
TextField = Annotated[str, typer.Option(help="Field of the text.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 if a row was rejected.")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Encoder threads; by default all CPUs given to it.")
]
Mode = Annotated[search_options.Mode, typer.Option(help="Search by meaning, by words, or by both.")]
Fusion = Annotated[search_options.Fusion, typer.Option(help="How a hybrid search joins the two.")]
LexicalWeight = Annotated[
    float, typer.Option(min=0, max=0.999, help="Share of words in a hybrid search.")
]
RerankerFolder = Annotated[
    Path | None, typer.Option(help="Folder of a reranker that puts the best hits in order.")
]
Factory = Annotated[str, typer.Option(help="FAISS factory string; auto chooses by size.")]


class ManyInputs(TyperCommand):
    """Takes `--input a b c` for `--input a --input b --input c`, so that a shell's `*` works."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        after_input = False
        for argument in args:
            if argument.startswith("-") and argument != "-":
                after_input = argument.split("=")[0] == "--input"
            elif after_input and spread[-1] != "--input":
                spread.append("--input")
            spread.append(argument)
        return super().parse_args(ctx, spread)


def corpus_options(
    file_format: FormatName | None,
    id_field: str | None,
    text_field: str,
    delimiter: str | None,
) -> CorpusOptions:
    """Take together how the inputs are to be read.

    Raises:
        BadParameter: If that cannot be.
    """
    from lamina_index.corpus import CorpusOptions

    try:
        return CorpusOptions(file_format, id_field, text_field, delimiter)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def replaced_remark(inputs: Sequence[str], options: CorpusOptions) -> str:
    """Say by what documents are replaced where ids are made of lines; nothing where they are not.

    Raises:
        CorpusError: If an input is missing or of unknown format.
    """
    from lamina_index.corpus.inputs import resolve_inputs

    by_line = any(source.line_ids for source in resolve_inputs(inputs, options))
    return "by lines of a file of the same name" if by_line else ""


def print_json(value: object) -> None:
    """Write a value as indented JSON on standard output."""
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2))


def read_filter(text: str, fields: Mapping[str, FieldType]) -> Filter:
    """Read a filter from the command line.

    Raises:
        FilterError: If it is no JSON, or no filter on these fields.
    """
    import orjson

    from lamina_index.errors import FilterError
    from lamina_index.filters import parse_filter

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FilterError("--filter", f"{text!r} is no JSON ({error}); mind the quotes") from error
    return parse_filter(value, fields, path="--filter")
