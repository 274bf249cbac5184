"""`lamina search`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def search(
    collection: Annotated[Path, typer.Argument(help="Folder of a collection.")],
    query: Annotated[list[str], typer.Argument(help="What to look for.")],
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, max=1000, help="How many hits at most.")
    ] = 10,
    encoder: Annotated[
        str, typer.Option(help="Name or folder of the encoder that the collection was built with.")
    ] = "default",
    precision: Annotated[
        Literal["int8", "fp32", "fp16"] | None, typer.Option(help="Which of the encoder's graphs.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Find the documents of a collection that are nearest in meaning to a query."""
    from lamina_index.encoder import OnnxEncoder
    from lamina_index.search_options import SearchOptions
    from lamina_index.searcher import Searcher

    loaded = OnnxEncoder.load(encoder, precision=precision)
    text = " ".join(query)
    with Searcher.open(collection, loaded) as searcher:
        result = searcher.search(text, SearchOptions(top_k=top_k))
    if json:
        from dataclasses import asdict

        import orjson

        typer.echo(orjson.dumps({"query": text, **asdict(result)}, option=orjson.OPT_INDENT_2))
        return
    if result.truncated:
        typer.echo(f"lamina: the query was cut to {result.token_count} tokens", err=True)
    from rich.table import Table
    from rich.text import Text

    from lamina_index.terminal import print_table

    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("text")
    for hit in result.hits:
        line = Text(" ".join(hit.text.split()), no_wrap=True, overflow="ellipsis")
        table.add_row(str(hit.rank), f"{hit.score:.4f}", Text(hit.id), line)
    print_table(table)
