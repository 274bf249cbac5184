"""`lamina doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def doctor(
    encoder: Annotated[
        str, typer.Option(help="Name or folder of the encoder to test.")
    ] = "default",
) -> None:
    """Check versions, CPU, providers, threads and the encoder, a line each."""
    from lamina_index.doctor import examine

    wrong = False
    for finding in examine(encoder):
        typer.echo(f"{finding.state:5}  {finding.check:12} {finding.detail}")
        wrong = wrong or finding.state == "wrong"
    if wrong:
        raise typer.Exit(1)
