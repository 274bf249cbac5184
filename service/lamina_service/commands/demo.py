"""`lamina demo`: index a corpus and serve it, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lamina_service.commands.service_extra import check_service_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    corpus: Annotated[
        Path | None,
        typer.Option(help="Your file or folder; without it the standard library's docstrings."),
    ] = None,
    data: Annotated[
        Path, typer.Option(envvar="LAMINA_DATA", help="Folder for the collection.")
    ] = Path("data/demo"),
    host: Annotated[str, typer.Option(envvar="LAMINA_HOST", help="Address to bind.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="LAMINA_PORT", help="Port; if it is taken, a free one.")
    ] = 7650,
    id_field: Annotated[str | None, typer.Option(help="Field of the id, or `line`.")] = None,
    text_field: Annotated[str, typer.Option(help="Field of the text.")] = "text",
) -> None:
    """Index a corpus where that is not done yet, serve it, and print calls to try."""
    check_service_extra()
    from lamina_index.build_view import progress_bar
    from lamina_index.corpus import CorpusOptions
    from lamina_index.encoder import OnnxEncoder
    from lamina_service import demo as steps
    from lamina_service.database import make_data_folder
    from lamina_service.server import bind_or_free_port, run, url_of
    from lamina_service.settings import Settings

    settings = Settings.load(data=data, host=host, port=port)
    make_data_folder(data)
    name = steps.collection_name(corpus)
    if corpus is None:
        typer.echo("Reading the docstrings of this Python's standard library")
        corpus = steps.stdlib_corpus(data)
    encoder = OnnxEncoder.load(
        settings.encoder, precision=settings.precision, device=settings.device
    )
    options = CorpusOptions(id_field=id_field, text_field=text_field)
    with progress_bar() as on_progress:
        report = steps.ensure_collection(corpus, data / name, encoder, options, on_progress)
    encoder.close()
    typer.echo(
        f"{report.documents} documents in {data / name} "
        f"({report.index['factory']}, recall@10 {report.index['recall@10']:.3f})"
    )
    with bind_or_free_port(settings) as listener:
        if not run(settings, listener, lambda: _show(url_of(listener), port, name, data)):
            raise typer.Exit(1)


def _show(url: str, port: int, name: str, data: Path) -> None:
    """Print the address and what to try."""
    from lamina_service.demo import example_calls

    if not url.endswith(f":{port}"):
        typer.echo(f"Port {port} is taken; this is a free one.")
    typer.echo(f"\nSearch page: {url}   API documentation: {url}/docs\n")
    for call in example_calls(url, name, data):
        typer.echo(f"{call}\n")
    typer.echo("Ctrl-C stops it.")
