"""Pictures are the same bytes for the same data, whole SVG, and readable on any page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

import matplotlib

from lamina_training.pictures import COLOURS, PAPER, Bars, Curve, draw_bars, draw_curves

SVG = "{http://www.w3.org/2000/svg}"


def curves() -> str:
    band = Curve([1, 2, 3], [1.0, 2.0, 1.5], "a & b", low=[0.5, 1, 1], high=[2, 3, 2])
    alone = Curve([2], [1.0], "alone", faint=True)
    return draw_curves(
        [band, alone], title="A <title>", x_label="step", y_label="loss", point=(2, 2.0, "best")
    )


def bars() -> str:
    shown = Bars(["x", "y"], [0.25, 0.75], low=[0.2, 0.5], high=[0.3, 0.9])
    return draw_bars(shown, title="Bars", x_label="layer", y_label="weight", level=(0.5, "equal"))


def texts_of(svg: str) -> list[str]:
    return [
        "".join(node.itertext()).strip() for node in ElementTree.fromstring(svg).iter(f"{SVG}text")
    ]


def test_texts_stay_text_and_name_what_is_shown() -> None:
    found = texts_of(curves())
    assert {"A <title>", "step", "loss", "a & b", "alone", "best"} <= set(found)
    found = texts_of(bars())
    assert {"Bars", "layer", "weight", "x", "y", "equal"} <= set(found)


def test_the_title_is_the_files_own() -> None:
    titles = [node.text for node in ElementTree.fromstring(curves()).iter() if "title" in node.tag]
    assert "A <title>" in titles


def test_the_page_is_opaque() -> None:
    first = next(ElementTree.fromstring(bars()).iter(f"{SVG}path"))
    assert f"fill: {PAPER}" in str(first.get("style"))


@pytest.mark.parametrize("draw", [curves, bars])
def test_the_same_data_give_the_same_bytes_whatever_the_users_settings(
    draw: Callable[[], str],
) -> None:
    before = draw()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black"}):
        assert draw() == before
        assert matplotlib.rcParams["font.size"] == 30  # the user's settings are left alone
    assert "Date" not in before


def test_no_window_system_is_loaded() -> None:
    code = "import sys, lamina_training.pictures; print('matplotlib.pyplot' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_on_a_logarithmic_axis_equal_factors_are_equal_distances() -> None:
    curve = Curve([1, 2, 3], [1.0, 0.1, 0.01])
    drawn = draw_curves([curve], title="t", x_label="rank", y_label="y", log=True, whole=True)
    paths = ElementTree.fromstring(drawn).iter(f"{SVG}path")
    line = next(p for p in paths if f"stroke: {COLOURS[0]}" in str(p.get("style")))
    heights = [
        float(part.split()[1]) for part in re.split("[ML]", str(line.get("d"))) if part.strip()
    ]
    assert heights[2] - heights[1] == pytest.approx(heights[1] - heights[0], abs=0.01)
    assert {"1", "2", "3"} <= set(texts_of(drawn))  # ranks, whole
