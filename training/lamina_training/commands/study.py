"""`lamina study`: do the runs of a study that have no result yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lamina_training.commands.options import WEIGHTS, Cache, DataFolder
from lamina_training.commands.training_extra import quiet_transformers, training_extra

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def study(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Studies: TOML files, done in turn.")
    ],
    arms: Annotated[
        list[str] | None, typer.Option("--arm", metavar="NAME", help="Only this arm; repeatable.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--most", min=1, metavar="N", help="Stop after N runs of each.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--list", help="Tell which runs have a result, and do none.")
    ] = False,
    pages: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a page for each from its results, and do no run."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the results; beside the file by default."),
    ] = None,
    work: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs in progress.")] = Path(
        "build/studies"
    ),
    data: DataFolder = None,
    cache: Cache = WEIGHTS,
) -> None:
    """Train and measure every arm of a study with every seed, as far as it has no result yet.

    Stop it whenever you like: it goes on where it was. Several may run at once, each on other runs.
    """
    with training_extra():
        from lamina_training.study.definition import StudyError, read_study
        from lamina_training.study.page import write_index, write_page
        from lamina_training.study.results import load_results, results_file
        from lamina_training.study.runner import Place, run_study
    quiet_transformers()
    written = {}
    for file in files:
        found = read_study(file)
        unknown = [name for name in arms or () if name not in found.arms]
        if unknown:
            raise StudyError(f"{file}: no arm {unknown[0]}; it has {', '.join(found.arms)}")
        if show or pages:
            loaded = load_results(found, file, results=results)
            if pages:
                write_page(loaded, file, pages)
                written[file] = loaded
            for cell in loaded.cells if show else ():
                state = "missing" if cell in loaded.missing else "done"
                typer.echo(f"{file.stem}\t{cell.arm}\t{cell.seed}\t{state}")
            continue
        path = results_file(file, folder=results)
        done = run_study(
            found,
            Place(path, work / file.stem, cache),
            origin=str(file),
            data=data,
            arms=arms or (),
            most=most,
            tell=partial(_tell, file.stem),
        )
        typer.echo(f"{path}: {done} runs added")
    if pages:
        write_index(written, pages)


def _tell(study: str, line: str) -> None:
    typer.echo(f"{study}: {line}", err=True)
