"""Markdown for the pages of runs and studies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int | None = None
) -> list[str]:
    """Lay out a table, a line each; columns from `numbers` on are aligned to the right."""
    right = len(header) if numbers is None else numbers
    rules = ["---" if place < right else "---:" for place in range(len(header))]
    return [f"| {' | '.join(row)} |" for row in (header, rules, *rows)]
