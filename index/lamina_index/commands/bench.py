"""`lamina bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lamina_index.commands.options import (
    AcceptCompatible,
    Collection,
    Device,
    EncoderName,
    Json,
    Precision,
    print_json,
)

if TYPE_CHECKING:
    from lamina_index.bench import BenchReport

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    collection: Collection,
    encoder: EncoderName = "default",
    precision: Precision = None,
    device: Device = "auto",
    accept_compatible: AcceptCompatible = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Text file of queries, one a line; by default made of documents."),
    ] = None,
    count: Annotated[
        int, typer.Option(min=10, max=100_000, help="How many searches of each kind.")
    ] = 200,
    top_k: Annotated[
        int, typer.Option("--top-k", "-k", min=1, max=1000, help="Hits of each search.")
    ] = 10,
    json: Json = False,
) -> None:
    """Measure how fast a collection is searched on this machine, and how fast it could be built.

    Times one search after the other: the embedding of the query, and searches by meaning, by words
    and by both, in turns; then searches from several threads at once, and documents embedded in
    bulk. All in this process: a service adds what HTTP takes.
    """
    from lamina_index.bench import bench as measure
    from lamina_index.bench import read_queries
    from lamina_index.encoder import OnnxEncoder
    from lamina_index.errors import EvaluationError

    asked = None
    if queries is not None:
        try:
            with queries.open(encoding="utf-8-sig") as lines:
                asked = read_queries(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluationError(f"{queries}: cannot be read ({error})") from error
    loaded = OnnxEncoder.load(encoder, precision=precision, device=device, accept=accept_compatible)
    report = measure(
        collection, loaded, queries=asked, query_source=str(queries), count=count, top_k=top_k
    )
    if json:
        from dataclasses import asdict

        values = asdict(report)
        values["queries_per_second"] = {
            str(threads): rate for threads, rate in report.queries_per_second.items()
        }
        print_json(values)
        return
    _print(report)


def _print(report: BenchReport) -> None:
    from rich.table import Table
    from rich.text import Text

    from lamina_index.terminal import print_table

    index = report.index or "no snapshot"
    typer.echo(f"{report.collection}: {report.documents:,} documents, {index}")
    typer.echo(f"encoder {report.encoder} {report.precision} on {report.provider}")
    typer.echo(f"{report.cpu}, {report.threads} threads; queries: {report.query_source}")
    typer.echo()
    times = Table(box=None, pad_edge=False)
    for name in ("one after the other", "median ms", "p95 ms"):
        times.add_column(name, justify="left" if name.startswith("one") else "right", no_wrap=True)
    for name, spread in report.milliseconds.items():
        times.add_row(Text(name), f"{spread.median:.2f}", f"{spread.p95:.2f}")
    print_table(times)
    typer.echo()
    for threads, rate in report.queries_per_second.items():
        at_once = "one thread" if threads == 1 else f"{threads} threads"
        typer.echo(f"dense searches from {at_once}: {rate:,.1f} a second")
    typer.echo(f"documents embedded in bulk: {report.documents_per_second:,.1f} a second")
