"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_COLUMNS = 200


def print_table(table: Table) -> None:
    """Print to standard output, as wide as needed if that is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_COLUMNS)
    console.print(table)


def facts_table(facts: Mapping[str, object]) -> Table:
    """Two columns: name and value; nested facts are indented below their name."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _flat(facts, 0):
        table.add_row(Text(name), Text(value))
    return table


def _flat(facts: Mapping[str, object], depth: int) -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        label = "  " * depth + name.replace("_", " ")
        if isinstance(value, Mapping) and value:
            yield label, ""
            yield from _flat(value, depth + 1)
        elif value is None or value in ({}, []):
            yield label, "none"
        else:
            number = isinstance(value, int) and not isinstance(value, bool)
            yield label, f"{value:,}" if number else str(value)
