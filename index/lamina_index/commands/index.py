"""`lamina index`: build a collection, look into it, check and mend it, take it out, archive it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lamina_index.commands.options import (
    Collection,
    Delimiter,
    Device,
    EncoderName,
    Factory,
    Format,
    IdField,
    Inputs,
    Json,
    ManyInputs,
    Precision,
    Strict,
    TextField,
    Threads,
    corpus_options,
    print_json,
    replaced_remark,
)
from lamina_index.commands.writes import add, delete

if TYPE_CHECKING:
    from lamina_index.collection_export import DocumentsFormat
    from lamina_index.manifest import ArchiveManifest

_OTHER_FILES = frozenset(
    (".csv", ".tsv", ".json", ".ndjson", ".txt", ".npy", ".pq", ".gz", ".zst", ".bz2", ".zip")
)
"""Endings that no one gives a folder, of files that an export does not write."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Build collections and care for them.",
)
app.command(cls=ManyInputs)(add)
app.command()(delete)


@app.command(cls=ManyInputs)
def build(
    inputs: Inputs,
    collection: Annotated[Path, typer.Option(metavar="DIR", help="Folder to build.")],
    encoder: EncoderName = "default",
    precision: Precision = None,
    device: Device = "auto",
    file_format: Format = None,
    delimiter: Delimiter = None,
    id_field: IdField = None,
    text_field: TextField = "text",
    append: Annotated[
        bool, typer.Option("--append", help="Add to the collection; a known id is replaced.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Build anew, then put it in the collection's place."),
    ] = False,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Split texts into parts of so many tokens.")
    ] = None,
    overlap: Annotated[int, typer.Option(min=0, help="Tokens that neighbouring parts share.")] = 0,
    factory: Factory = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted build, or refuse.")
    ] = False,
    strict: Strict = False,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Read a corpus, embed it and make a collection that can be searched."""
    if append and replace:
        raise typer.BadParameter("give --append or --replace, not both")
    if overlap and chunk is None:
        raise typer.BadParameter("--overlap goes with --chunk")
    if chunk is not None and overlap > chunk // 2:
        raise typer.BadParameter("--overlap must be at most half of --chunk")
    from lamina_index.build import build_collection
    from lamina_index.build_view import progress_bar, report_table
    from lamina_index.chunking import longest_part
    from lamina_index.corpus.inputs import is_piped
    from lamina_index.encoder import OnnxEncoder
    from lamina_index.errors import RejectedRowsError
    from lamina_index.manifest import Chunking
    from lamina_index.row_log import REJECTS_FILE
    from lamina_index.terminal import print_table

    options = corpus_options(file_format, id_field, text_field, delimiter)
    remark = replaced_remark(inputs, options)
    loaded = OnnxEncoder.load(encoder, precision=precision, device=device, threads=threads)
    if chunk is not None and chunk > longest_part(loaded):
        raise typer.BadParameter(
            f"--chunk: {loaded.name} reads at most {longest_part(loaded)} tokens of a part"
        )
    try:
        with progress_bar() as on_progress:
            report = build_collection(
                inputs,
                collection,
                loaded,
                options=options,
                chunking=None if chunk is None else Chunking(tokens=chunk, overlap=overlap),
                factory=factory,
                threads=threads,
                mode="append" if append else "replace" if replace else "new",
                resume=resume,
                on_progress=on_progress,
            )
    except KeyboardInterrupt:
        then = "start over" if any(map(is_piped, inputs)) else "go on"
        typer.echo(f"lamina: interrupted; run the same command again to {then}", err=True)
        raise
    if json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        print_table(report_table(report, replaced_remark=remark))
    if strict and report.rows_rejected:
        raise RejectedRowsError(
            f"{report.rows_rejected} of {report.rows_read} rows were rejected, the others are "
            f"indexed; {collection / REJECTS_FILE} says which and why"
        )


@app.command()
def info(collection: Collection, json: Json = False) -> None:
    """Show what a collection holds and how it is searched."""
    from lamina_index.searcher import Searcher

    with Searcher.open(collection, None) as searcher:
        facts = searcher.info()
    del facts["verified"]  # of a service that has been through all files; here `verify` does that
    if json:
        print_json(facts)
    else:
        from lamina_index.terminal import facts_table, print_table

        print_table(facts_table(facts))


@app.command()
def verify(collection: Collection, json: Json = False) -> None:
    """Read every byte and compare it with its checksum; exit with 1 if there is damage."""
    from lamina_index.collection import verify_collection

    damage = verify_collection(collection)
    if json:
        print_json({"sound": not damage, "damage": damage})
    else:
        typer.echo("\n".join(damage) if damage else f"{collection}: sound")
    if damage:
        raise typer.Exit(1)


@app.command()
def compact(
    collection: Collection,
    factory: Annotated[
        str | None, typer.Option(help="FAISS factory string, or auto, to build another kind.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Build the index anew in any case.")] = False,
    json: Json = False,
) -> None:
    """Bring the search index up to date with the stored vectors, without embedding anything."""
    from lamina_index.compaction import compact as bring_up_to_date

    done = bring_up_to_date(collection, factory=factory, full=full).summary()
    if json:
        print_json(done)
    else:
        from lamina_index.terminal import facts_table, print_table

        print_table(facts_table(done))


@app.command()
def upgrade(collection: Collection, json: Json = False) -> None:
    """Give a collection of an older version the word index, or make a damaged one again."""
    from lamina_index.collection import open_collection, writer_lock
    from lamina_index.disk import disk_errors_told

    _, store = open_collection(collection, read_only=False)
    told = disk_errors_told(collection, when_full="it is as it was")
    with told, store, writer_lock(collection):
        done = store.upgrade()
    if json:
        print_json({"done": done})
    else:
        typer.echo(f"{collection}: {done or 'nothing to do'}")


@app.command()
def export(
    collection: Collection,
    output: Annotated[
        Path,
        typer.Option(
            help="A .jsonl or .parquet file, or -, for documents alone; else a new folder for them "
            "and embeddings.npy, row by row the same."
        ),
    ],
    documents_format: Annotated[
        Literal["jsonl", "parquet"] | None,
        typer.Option(
            "--format", help="Of the documents in a folder; jsonl. A file's name tells its own."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write all documents, and their vectors, to files that other tools and `build` can read."""
    from lamina_index.collection_export import export_documents, export_folder
    from lamina_index.disk import shown_path

    ending = output.suffix.lower()
    if ending in _OTHER_FILES:
        raise typer.BadParameter(
            f"--output {output}: found {ending}, expected .jsonl or .parquet, - or a folder"
        )
    of_file: DocumentsFormat | None = "parquet" if ending == ".parquet" else None
    if ending == ".jsonl" or str(output) == "-":
        of_file = "jsonl"
    if of_file is None:
        count = export_folder(collection, output, documents_format or "jsonl")
    elif documents_format not in (None, of_file):
        raise typer.BadParameter(f"--format {documents_format}: {output} takes {of_file}")
    else:
        count = export_documents(collection, output, of_file)
    if json and str(output) != "-":
        print_json({"documents": count, "output": shown_path(output)})
    else:
        typer.echo(f"{count} documents written to {output}", err=True)


@app.command()
def snapshot(
    collection: Collection,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to write; a new file.")],
    json: Json = False,
) -> None:
    """Write a collection to one verified file; it may be served and written to meanwhile."""
    from lamina_index.archive import write_archive

    _tell_archive(write_archive(collection, file), f"{collection} is archived in {file}", json)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `snapshot` wrote.")],
    collection: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the collection; a new one.")
    ],
    json: Json = False,
) -> None:
    """Make the collection that an archive holds, once every byte of it is found right."""
    from lamina_index.archive_restore import restore_archive

    _tell_archive(restore_archive(file, collection), f"{collection} is restored from {file}", json)


def _tell_archive(manifest: ArchiveManifest, done: str, json: bool) -> None:
    if json:
        print_json(manifest.model_dump(mode="json"))
    else:
        typer.echo(f"{manifest.documents} documents; {done}", err=True)
