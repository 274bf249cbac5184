"""The `lamina` command: finds its sub-commands by entry point, so nothing here imports upward.

Each entry point of the group `lamina.commands` names a `typer.Typer` made with
`add_completion=False`. A sub-command's module is imported only to run it or to list it, and keeps
its own heavy imports inside its functions, so that `lamina --help` stays instant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lamina_index import __version__
from lamina_index.errors import LaminaError, RejectedRowsError

ENTRY_POINT_GROUP = "lamina.commands"


class _EntryPointGroup(TyperGroup):
    """A group whose commands are the entry points of `ENTRY_POINT_GROUP`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(entry_points(group=ENTRY_POINT_GROUP).names)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for entry_point in entry_points(group=ENTRY_POINT_GROUP, name=cmd_name):
            command = typer.main.get_command(entry_point.load())
            command.name = cmd_name
            return command
        return None


app = typer.Typer(
    cls=_EntryPointGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lamina {__version__}")
        raise typer.Exit


@app.callback()
def _lamina(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Semantic search on your own machine: index a corpus, search it, serve it, measure it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; `argv` defaults to the process's own arguments.

    Returns:
        0; 1 after an error that the user can mend (one line on stderr); 2 after wrong usage;
        3 if rows were rejected under `--strict`; 130 after an interrupt.
    """
    try:
        app(args=argv, prog_name="lamina")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0
    except RejectedRowsError as error:
        typer.echo(f"lamina: {error}", err=True)
        return 3
    except LaminaError as error:
        typer.echo(f"lamina: {error}", err=True)
        return 1
    return 0


def run() -> None:
    """Console entry point."""
    sys.exit(main())
