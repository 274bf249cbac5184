"""Curves and bars as SVG: a pure function of the data, the same bytes each time.

The page is opaque and light, so that a picture reads the same in a dark viewer; letters stay text
in the viewer's own sans-serif, so that files are small and can be searched.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

SIZE_INCHES = (7.2, 3.4)
INK, GRID, PAPER = "#1f2933", "#d9dee4", "#ffffff"
COLOURS = ("#3e6fb0", "#d55e00", "#1b8a5a", "#a64d79", "#8a6d00", "#56606b")
"""Told apart also by those who see few colours; the first is that of `lamina evaluate`."""
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lamina",  # else names inside the file are random
    "svg.fonttype": "none",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True)
class Curve:
    """One line of a picture.

    Attributes:
        x, y: P points each.
        label: In the legend; None leaves it out.
        low, high: P points each: edges of a band around the line, such as an interval.
        faint: Drawn thin and pale, as the raw values behind a smoothed line.
        marked: Each point has a dot.
    """

    x: Sequence[float]
    y: Sequence[float]
    label: str | None = None
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    faint: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars side by side, each with the range of what it is the mean of.

    Attributes:
        names: Below each of N bars.
        values: Their heights.
        low, high: Ends of the ranges.
    """

    names: Sequence[str]
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def draw_curves(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str,
    y_label: str,
    ordered: bool = False,
    log: bool = False,
    whole: bool = False,
    point: tuple[float, float, str] | None = None,
) -> str:
    """Draw lines over a common axis.

    Args:
        curves: At least one.
        title: Above the picture, and the file's own title.
        x_label, y_label: What the axes measure, with the unit.
        ordered: The curves have an order, such as layers: colours run from dark to light, and faint
            ones do not count.
        log: Whether y is on a logarithmic axis; its values are above 0 then.
        whole: Whether x counts things, so that its ticks are whole numbers.
        point: x, y and name of a point to be marked.
    """
    with _page(title, x_label, y_label) as (figure, axes):
        number = 0
        bold = sum(not curve.faint for curve in curves)
        for curve in curves:
            colour = _ordered(number, bold) if ordered else COLOURS[number % len(COLOURS)]
            if curve.low is not None and curve.high is not None:
                axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.18, lw=0)
            axes.plot(
                curve.x,
                curve.y,
                color=colour,
                label=curve.label,
                linewidth=0.8 if curve.faint else 1.8,
                alpha=0.45 if curve.faint else 1.0,
                marker="o" if curve.marked or len(curve.x) == 1 else None,
                markersize=4,
            )
            number += not curve.faint
        if point is not None:
            x, y, name = point
            axes.plot([x], [y], "o", color=INK, markersize=7, markerfacecolor="none", label=name)
        if log:
            axes.set_yscale("log")
        if whole:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if any(curve.label for curve in curves) or point is not None:
            entries = len(axes.get_legend_handles_labels()[1])
            figure.legend(loc="outside right upper", ncols=1 + entries // 15)
        return _svg(figure, title)


def draw_bars(
    bars: Bars, *, title: str, x_label: str, y_label: str, level: tuple[float, str] | None = None
) -> str:
    """Draw bars from 0 with their ranges.

    Args:
        bars: What to draw.
        title: Above the picture, and the file's own title.
        x_label, y_label: What the axes measure, with the unit.
        level: Height and name of a dashed line across all bars.
    """
    with _page(title, x_label, y_label) as (figure, axes):
        axes.grid(visible=False, axis="x")
        places = range(len(bars.names))
        axes.bar(places, bars.values, color=COLOURS[0], width=0.7)
        axes.vlines(places, bars.low, bars.high, color=INK, linewidth=1.5)
        for ends in (bars.low, bars.high):
            axes.plot(places, ends, "_", color=INK, markersize=9, markeredgewidth=1.5)
        axes.set_xticks(list(places), bars.names)
        if level is not None:
            axes.axhline(level[0], color=COLOURS[1], linestyle="--", label=level[1])
            figure.legend(loc="outside right upper")
        axes.set_ylim(bottom=0)
        return _svg(figure, title)


def _ordered(number: int, count: int) -> Any:
    return colormaps["viridis"](0.9 * number / max(count - 1, 1))


@contextmanager
def _page(title: str, x_label: str, y_label: str) -> Iterator[tuple[Figure, Axes]]:
    """Give an empty picture in our style, whatever the user's own settings of matplotlib are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=SIZE_INCHES, layout="constrained", facecolor=PAPER)
        axes = figure.add_subplot()
        axes.set_title(title)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        yield figure, axes


def _svg(figure: Figure, title: str) -> str:
    stream = io.StringIO()
    nothing = {"Date": None, "Creator": None}  # which would differ by time and version
    figure.savefig(stream, format="svg", metadata={**nothing, "Title": title})
    return stream.getvalue()
