"""`lamina index add` and `delete`: change a collection that is in use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lamina_index.commands.options import (
    Collection,
    Delimiter,
    Device,
    EncoderName,
    Format,
    IdField,
    Inputs,
    Json,
    Precision,
    Strict,
    TextField,
    Threads,
    corpus_options,
    print_json,
    read_filter,
    replaced_remark,
)

if TYPE_CHECKING:
    from lamina_index.writer import Fault

_IDS_AT_ONCE = 1000


def add(
    collection: Collection,
    inputs: Inputs,
    encoder: EncoderName = "default",
    precision: Precision = None,
    device: Device = "auto",
    file_format: Format = None,
    delimiter: Delimiter = None,
    id_field: IdField = None,
    text_field: TextField = "text",
    rejects: Annotated[
        Path | None,
        typer.Option(help="File for the rejected rows; by default they go to standard error."),
    ] = None,
    strict: Strict = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Add documents to a collection that may be served meanwhile; a known id is replaced."""
    from dataclasses import asdict

    from lamina_index.adding import add_documents
    from lamina_index.encoder import OnnxEncoder
    from lamina_index.errors import RejectedRowsError

    options = corpus_options(file_format, id_field, text_field, delimiter)
    remark = replaced_remark(inputs, options)
    loaded = OnnxEncoder.load(encoder, precision=precision, device=device, threads=threads)
    with ExitStack() as files:
        if rejects is None:
            output = typer.get_text_stream("stderr")
        else:
            output = files.enter_context(_created(rejects))

        def tell(faults: Sequence[Fault]) -> None:
            output.writelines(map(_told, faults))
            output.flush()

        report = add_documents(inputs, collection, loaded, options=options, on_faults=tell)
    if json:
        print_json({"collection": str(collection), **asdict(report)})
    else:
        from lamina_index.terminal import facts_table, print_table

        facts = asdict(report)
        if report.replaced and remark:
            facts["replaced"] = f"{report.replaced} ({remark})"
        print_table(facts_table(facts))
    if strict and report.rejected:
        raise RejectedRowsError(
            f"{report.rejected} of {report.rows_read} rows were rejected, the others are stored; "
            f"{rejects or 'the lines above'} say which and why"
        )


def delete(
    collection: Collection,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="Documents.")] = None,
    ids_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of ids, one a line; - is standard input."),
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(
            help="Delete the documents whose metadata passes: JSON, such as "
            """'{"year": {"$lt": 2000}}'."""
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Delete documents, by their ids or by a filter; what is not there is no error."""
    if sum((bool(ids), ids_from is not None, filter is not None)) != 1:
        raise typer.BadParameter("give ids, --ids-from or --filter, and one of them only")
    from lamina_index.writer import CollectionWriter

    with CollectionWriter.open(collection) as writer:
        if filter is not None:
            deleted = writer.delete_matching(read_filter(filter, writer.fields))
        else:
            given = (ids or []) if ids_from is None else _lines(ids_from)
            deleted = sum(
                writer.delete(given[start : start + _IDS_AT_ONCE])
                for start in range(0, len(given), _IDS_AT_ONCE)
            )
    if json:
        print_json({"deleted": deleted})
    else:
        typer.echo(f"{collection}: {deleted} documents deleted")


def _created(path: Path) -> Any:
    from lamina_index.errors import LaminaError

    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise LaminaError(f"{path}: cannot be written ({error.strerror})") from error


def _lines(path: Path) -> list[str]:
    """Read ids, one a line, as they stand; empty lines are none.

    Raises:
        CorpusError: If the file cannot be read, or is not UTF-8.
    """
    from lamina_index.errors import CorpusError

    try:
        if str(path) == "-":
            text = typer.get_binary_stream("stdin").read().decode()
        else:
            text = path.read_bytes().decode()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: is not UTF-8 ({error.reason} at byte {error.start})") from error
    return [line for line in text.replace("\r\n", "\n").split("\n") if line]


def _told(fault: Fault) -> str:
    """A rejected row as a line of JSON, as builds write them."""
    import orjson

    row = {"file": fault.file, "line": fault.position + 1, "reason": fault.reason, "id": fault.id}
    return orjson.dumps(row).decode() + "\n"
