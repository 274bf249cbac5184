"""The worst difference between torch and ONNX decides, whichever cell has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from lamina_training.agreement import check_cells
from lamina_training.source import ExportError


@pytest.fixture(autouse=True)
def _three_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina_training.agreement.BATCHES", (1,))
    monkeypatch.setattr("lamina_training.agreement.LENGTHS", (1, 2, 7))


def check(*differences: float) -> dict[str, Any]:
    found: Iterator[float] = iter(differences)
    return check_cells(
        lambda ids, mask: next(found), origin=Path("model"), vocabulary=9, max_positions=None
    )


def test_the_worst_cell_is_told() -> None:
    found = check(1e-6, 3e-5, 2e-5)
    assert (found["cells"], found["smallest"], found["largest"]) == (3, [1, 1], [1, 7])
    assert (found["max_absolute_difference"], found["worst_cell"]) == (3e-5, [1, 2])


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 5.0])
def test_one_bad_cell_is_refused_wherever_it_is(bad: float, place: int) -> None:
    differences = [1e-6, 1e-6, 1e-6]
    differences[place] = bad
    length = (1, 2, 7)[place]
    message = rf"model: torch and ONNX differ by {bad:.2g} at batch 1, length {length};"
    with pytest.raises(ExportError, match=message):
        check(*differences)


def test_a_nan_does_not_hide_what_came_before_it() -> None:
    with pytest.raises(ExportError, match="differ by nan at batch 1, length 2"):
        check(5.0, float("nan"), 1e-6)
