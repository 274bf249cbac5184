"""`lamina search`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lamina_index.commands.options import (
    AcceptCompatible,
    Collection,
    Device,
    EncoderName,
    Fusion,
    Json,
    LexicalWeight,
    Mode,
    Precision,
    RerankerFolder,
    print_json,
    read_filter,
)
from lamina_index.search_options import (
    DEFAULT_FUSION,
    DEFAULT_LEXICAL_WEIGHT,
    DEFAULT_RERANK,
    MAX_GROUP_SIZE,
    MAX_RERANK,
    SearchOptions,
)

if TYPE_CHECKING:
    from lamina_index.hits import LegScore

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def search(
    collection: Collection,
    query: Annotated[list[str] | None, typer.Argument(help="What to look for.")] = None,
    similar: Annotated[
        str | None,
        typer.Option(help="Instead of a query: id of a stored document to find similar ones to."),
    ] = None,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, max=1000, help="How many hits at most.")
    ] = 10,
    offset: Annotated[
        int, typer.Option(min=0, max=9999, help="How many hits, or groups, to pass over.")
    ] = 0,
    min_score: Annotated[
        float | None,
        typer.Option(
            min=-1,
            max=1,
            help="Leave out hits whose cosine is lower; with --mode dense only.",
            show_default=False,
        ),
    ] = None,
    filter: Annotated[
        str | None,
        typer.Option(
            help="Search only among documents whose metadata passes: JSON, such as "
            """'{"year": {"$gte": 2000}}'."""
        ),
    ] = None,
    encoder: EncoderName = "default",
    precision: Precision = None,
    device: Device = "auto",
    accept_compatible: AcceptCompatible = None,
    mode: Mode = "dense",
    fusion: Fusion = DEFAULT_FUSION,
    lexical_weight: LexicalWeight = DEFAULT_LEXICAL_WEIGHT,
    rerank: RerankerFolder = None,
    depth: Annotated[
        int, typer.Option(min=1, max=MAX_RERANK, help="How many hits it puts in order.")
    ] = DEFAULT_RERANK,
    group_by: Annotated[
        str | None, typer.Option(help="Field of which each value gives its best documents.")
    ] = None,
    group_size: Annotated[
        int, typer.Option(min=1, max=MAX_GROUP_SIZE, help="How many documents each value gives.")
    ] = 1,
    collapse: Annotated[
        float | None,
        typer.Option(
            help="Leave out a document whose cosine with a better one is this or more.",
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show each hit's score and rank in each leg.")
    ] = False,
    json: Json = False,
) -> None:
    """Find the documents of a collection that are nearest to a query, in meaning or in words."""
    from lamina_index.encoder import OnnxEncoder
    from lamina_index.searcher import Searcher
    from lamina_index.text import repair_text

    if (query is None) == (similar is None):
        raise typer.BadParameter("expected either a query or --similar")
    try:
        options = SearchOptions(
            top_k=top_k,
            offset=offset,
            min_score=min_score,
            mode=mode,
            fusion=fusion,
            lexical_weight=lexical_weight,
            group_by=group_by,
            group_size=group_size,
            collapse=collapse,
            explain=explain,
            highlight=json and similar is None,
            rerank=None if rerank is None else depth,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if similar is not None and mode != "dense":
        raise typer.BadParameter("--similar goes by meaning, so with --mode dense only")
    if similar is not None and rerank is not None:
        raise typer.BadParameter("--rerank reads a query, and does not go with --similar")
    reranker = None
    if rerank is not None:
        from lamina_index.reranker import OnnxReranker

        reranker = OnnxReranker.load(rerank, device=device)
    needs_encoder = similar is None and mode != "lexical"
    loaded = None
    if needs_encoder:
        loaded = OnnxEncoder.load(
            encoder, precision=precision, device=device, accept=accept_compatible
        )
    text = repair_text(" ".join(query or ()))  # a terminal may send bytes that are not UTF-8
    with Searcher.open(collection, loaded, reranker) as searcher:
        if filter is not None:
            options = replace(options, filter=read_filter(filter, searcher.fields))
        started = time.perf_counter()
        if similar is None:
            result = searcher.search(text, options)
        else:
            result = searcher.similar(similar, options)
        total_seconds = time.perf_counter() - started
    if json:
        from lamina_index.search_reply import reply_values, took_milliseconds

        asked = {"query": text} if similar is None else {"similar": similar}
        took = took_milliseconds(result.took, options, total_seconds=total_seconds)
        name = collection.absolute().name
        print_json({**asked, **reply_values(result, options, collection=name, took=took)})
        return
    if result.truncated:
        typer.echo(f"lamina: the query was cut to {result.token_count} tokens", err=True)
    if result.reranking is not None and result.reranking.truncated:
        typer.echo(
            f"lamina: {result.reranking.truncated} of {result.reranking.candidates} texts were cut "
            "for the reranker",
            err=True,
        )
    from rich.table import Table
    from rich.text import Text

    from lamina_index.terminal import print_table
    from lamina_index.word_tokens import highlights

    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    legs = list(result.hits[0].explanation or ()) if result.hits else []
    for leg in legs:
        table.add_column(f"{leg} (rank)", justify="right", no_wrap=True)
    if collapse is not None:
        table.add_column("folded", justify="right", no_wrap=True)
    if group_by is not None:
        table.add_column(Text(group_by), no_wrap=True)
    table.add_column("id", no_wrap=True)
    table.add_column("text")
    for hit in result.hits:
        line = Text(" ".join(hit.text.split()), no_wrap=True, overflow="ellipsis")
        for start, end in highlights(line.plain, text):
            line.stylize("bold", start, end)
        told = [_told((hit.explanation or {})[leg]) for leg in legs]
        if hit.duplicates is not None:
            told.append(str(hit.duplicates.count))
        group = [Text("-" if hit.group is None else str(hit.group))] if group_by else []
        table.add_row(str(hit.rank), f"{hit.score:.4f}", *told, *group, Text(hit.id), line)
    print_table(table)


def _told(leg: LegScore) -> str:
    score = "-" if leg.score is None else f"{leg.score:.4f}"
    return f"{score} ({'-' if leg.rank is None else leg.rank})"
