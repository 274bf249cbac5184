"""`lamina train`: a TOML file -> a run folder with the best weights, a log and checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lamina_training.commands.options import WEIGHTS, Cache, DataFolder
from lamina_training.commands.training_extra import quiet_transformers, training_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def train(
    config: Annotated[Path, typer.Option(metavar="FILE", help="What to train: a TOML file.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Folder to make; runs/ and the file's name by default."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run's last whole checkpoint.")
    ] = False,
    data: DataFolder = None,
    cache: Cache = WEIGHTS,
) -> None:
    """Train an encoder or a classifier as a file says.

    Shows a progress bar on a terminal and writes metrics.jsonl. The folder ends with the best
    weights by the dev score, as sentence-transformers and `lamina export` take them, and a report.
    Under torchrun each batch is shared by the processes.
    """
    with training_extra():
        from accelerate import PartialState

        from lamina_training.run_report import write_run_report
        from lamina_training.train import train as run
        from lamina_training.train_config import read_train_config
    quiet_transformers()
    result = run(
        read_train_config(config, data_folder=data),
        out or Path("runs", config.stem),
        cache=cache,
        resume=resume,
    )
    if not PartialState().is_main_process:
        return
    line = f"{result.folder}: {result.steps} steps in {result.seconds:.0f} s"
    if result.score is not None:
        line += f", best {result.score_name} {result.score:.4f} at step {result.best_step}"
    typer.echo(line)
    typer.echo(f"report: {write_run_report(Path(result.folder), cache=cache)}")
