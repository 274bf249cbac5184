"""How a build looks on a terminal: its progress and its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from lamina_index.build import BuildStatus
from lamina_index.build_report import BuildReport
from lamina_index.terminal import facts_table

_SPEED_SECONDS = 30.0


class _RowsPerSecond(ProgressColumn):
    """Speed over the last half minute."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} docs/s")


@contextmanager
def progress_bar() -> Iterator[Callable[[BuildStatus], None]]:
    """Show rows, speed and remaining time on standard error; nothing if that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda status: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RowsPerSecond(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, speed_estimate_period=_SPEED_SECONDS
    ) as bar:
        rows = bar.add_task("embedding", total=None)
        index = bar.add_task("building the index", total=None, visible=False)

        place = bar.add_task("waiting for another process to end", total=None, visible=False)
        tasks = {"rows": rows, "index": index, "place": place}

        def show(status: BuildStatus) -> None:
            task = tasks[status.stage]
            bar.update(task, completed=status.rows, total=status.total_rows, visible=True)

        yield show


def report_table(report: BuildReport, *, replaced_remark: str = "") -> Table:
    """Lay out what a build did; the remark stands behind the number of replaced rows."""
    cut = report.truncation
    seconds = ", ".join(f"{stage} {value:.1f}" for stage, value in report.stage_seconds.items())
    facts = {
        "collection": report.collection,
        "rows read": _number(report.rows_read),
        "indexed": _number(report.rows_indexed),
        "of these replaced": _number(report.rows_replaced, replaced_remark),
        "rejected": _number(report.rows_rejected, "see rejects.jsonl"),
        "truncated": _number(
            cut.texts,
            f"longest {cut.longest_tokens:,} tokens, {cut.max_tokens:,} are read; see "
            "truncated.jsonl, or use --chunk",
        ),
        "in the collection": f"{report.documents:,}",
        "seconds": f"{report.total_seconds:.1f} ({seconds})",
        "docs/s": f"{report.rows_per_second:,.0f}",
        "peak memory": f"{report.peak_memory_bytes / 2**20:,.0f} MiB",
        "encoder": f"{report.encoder.name} {report.encoder.precision}",
    }
    return facts_table({**facts, "index": report.index})


def _number(count: int, remark: str = "") -> str:
    return f"{count:,} ({remark})" if count and remark else f"{count:,}"
