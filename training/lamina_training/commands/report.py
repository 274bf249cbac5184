"""`lamina report`: what a training run was and how it went, in Markdown and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lamina_training.commands.options import WEIGHTS, Cache, DataFolder
from lamina_training.commands.training_extra import quiet_transformers, training_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A folder that `lamina train` made.")],
    data: DataFolder = None,
    cache: Cache = WEIGHTS,
) -> None:
    """Write RUN/report anew: Markdown, JSON and pictures.

    `lamina train` writes it when it ends. This works at any time, also for a run that was broken
    off or still goes on; what is measured is then the best checkpoint so far.
    """
    with training_extra():
        from lamina_training.run_report import write_run_report
    quiet_transformers()
    typer.echo(write_run_report(run, cache=cache, data=data))
