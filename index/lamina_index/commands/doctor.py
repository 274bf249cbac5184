"""`lamina doctor`."""

from __future__ import annotations

import typer

from lamina_index.commands.options import Device, EncoderName, Precision

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def doctor(
    encoder: EncoderName = "default",
    precision: Precision = None,
    device: Device = "auto",
) -> None:
    """Check versions, CPU, providers, threads and the encoder, a line each."""
    from lamina_index.doctor import examine

    wrong = False
    for finding in examine(encoder, precision, device):
        typer.echo(f"{finding.state:5}  {finding.check:12} {finding.detail}")
        wrong = wrong or finding.state == "wrong"
    if wrong:
        raise typer.Exit(1)
