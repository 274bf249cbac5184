"""How results are laid out as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "faiss-cpu", "sentence-transformers", "torch")

Results = dict[str, dict[str, Any]]
"""By name, what `harness.write_result` wrote."""


def source(record: dict[str, Any]) -> str:
    """Say where, when and how a result was measured."""
    machine, versions = record["machine"], record["versions"]
    vnni = "with" if machine["vnni"] else "without"
    packages = ", ".join(f"{name} {versions[name]}" for name in PACKAGES if name in versions)
    return (
        f"\n<sub>{machine['cpu']}, {machine['cores']} cores, {vnni} VNNI; Python "
        f"{versions['python']}, {packages}; {record['date']}, commit {record['commit']}: "
        f"`{record['command']}`</sub>\n"
    )


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a Markdown table; all columns but the first are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def number(value: float) -> str:
    """Format to three significant digits, whole above 100."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
