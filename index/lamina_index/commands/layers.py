"""`lamina layers`: which layers of the encoder a text draws on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lamina_index.commands.options import Device, Json, Precision

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_BAR_WIDTH = 40


@app.command()
def layers(
    encoder: Annotated[
        str, typer.Argument(help="Name or folder of an encoder that keeps attention over layers.")
    ],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="One or more texts.")],
    role: Annotated[
        Literal["query", "document"], typer.Option(help="Whose prompt to put before the texts.")
    ] = "query",
    precision: Precision = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show how much of each layer a text's vector takes, as an encoder with layer attention has it.

    Layer 0 is the output of the embedding layer. "of equal" is the weight divided by what it would
    be if all layers had the same.
    """
    from lamina_index.encoder import OnnxEncoder

    loaded = OnnxEncoder.load(encoder, precision=precision, device=device)
    weights = loaded.layer_weights(texts, role=role)  # (N, layers + 1)
    if json:
        import orjson

        rows = [{"text": t, "weights": w.tolist()} for t, w in zip(texts, weights, strict=True)]
        found = {"encoder": loaded.name, "precision": loaded.precision, "role": role, "texts": rows}
        typer.echo(orjson.dumps(found, option=orjson.OPT_INDENT_2))
        return
    from lamina_index.terminal import print_table

    for number, (text, row) in enumerate(zip(texts, weights.tolist(), strict=True)):
        if number:
            typer.echo()
        print_table(_draw(text, row))


def _draw(text: str, weights: Sequence[float]) -> Table:
    """One row a layer, its bar as long as its share of the largest weight."""
    from rich.bar import Bar
    from rich.table import Table
    from rich.text import Text

    title = Text(" ".join(text.split()), no_wrap=True, overflow="ellipsis")
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("layer", justify="right", no_wrap=True)
    table.add_column("weight", justify="right", no_wrap=True)
    table.add_column("of equal", justify="right", no_wrap=True)
    table.add_column(width=_BAR_WIDTH)
    for layer, weight in enumerate(weights):
        bar = Bar(size=max(weights), begin=0, end=weight, width=_BAR_WIDTH)
        table.add_row(str(layer), f"{weight:.4f}", f"{weight * len(weights):.2f}", bar)
    return table
