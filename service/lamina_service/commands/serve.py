"""`lamina serve`: the REST service on a data folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lamina_service.commands.service_extra import check_service_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def serve(
    data: Annotated[Path | None, typer.Option(help="Folder of the collections.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind; 7650.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that answer; 1.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Bundled encoder's name or folder.")] = None,
    precision: Annotated[str | None, typer.Option(help="int8, fp16 or fp32.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    accept_compatible: Annotated[
        float | None,
        typer.Option(
            metavar="COSINE",
            help="Search what another precision of the encoder built, if the export measured this "
            "cosine or more between vectors of the two.",
        ),
    ] = None,
    reranker: Annotated[
        Path | None, typer.Option(help="Folder of a reranker; none by default.")
    ] = None,
    max_rerank: Annotated[
        int | None, typer.Option(help="Most candidates of a search to be reranked; 200.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Texts encoded at once by a worker; CPUs / workers, for documents CPUs."),
    ] = None,
    queue_size: Annotated[
        int | None, typer.Option(help="Texts waiting in a worker before it answers 429; 128.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="/metrics: key, open or off.")] = None,
    docs: Annotated[bool | None, typer.Option(help="Whether /docs exists.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve every collection of a folder over HTTP.

    A folder that is missing is made: collections can be made over HTTP, too.
    Each option is also a variable LAMINA_<OPTION>; the option wins. Without a key (`lamina keys
    create`) only loopback addresses are served. Ctrl-C stops it.
    """
    check_service_extra()
    from lamina_service.database import make_data_folder
    from lamina_service.server import bind, run, url_of
    from lamina_service.settings import Settings

    settings = Settings.load(
        data=data,
        host=host,
        port=port,
        workers=workers,
        encoder=encoder,
        precision=precision,
        device=device,
        accept_compatible=accept_compatible,
        reranker=reranker,
        max_rerank=max_rerank,
        threads=threads,
        queue_size=queue_size,
        metrics=metrics,
        docs=docs,
        log_level=log_level,
    )
    if make_data_folder(settings.data):
        typer.echo(f"{settings.data} was missing and was made; it has no collection yet", err=True)
    with bind(settings) as listener:
        ready = f"Lamina serves {settings.data} on {url_of(listener)}"
        if not run(settings, listener, on_ready=lambda: typer.echo(ready)):
            raise typer.Exit(1)
