"""What is read out of a log, on lines that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given
from hypothesis import strategies as st

from lamina_training.run_report_history import Series, read_history

LINES = [
    {"step": 0, "seconds": 3.0, "dev_sts": 70.0},
    {"step": 5, "seconds": 5.0, "loss": 2.0, "dropped": [0.1, 0.2]},
    {"step": 10, "seconds": 7.0, "loss": 1.0, "dropped": [0.3, 0.4]},
    {"step": 10, "seconds": 10.0, "dev_sts": 75.0},
    {"step": 15, "seconds": 12.0, "loss": 1.5},
]


def test_evaluations_do_not_slow_the_rate_down_but_count_in_the_seconds() -> None:
    history = read_history(LINES)
    assert history.steps_per_second == 15 / 6  # 2 seconds for each 5 steps
    assert history.seconds == 12.0
    assert history.last_step == 15


def test_curves_have_the_lines_that_tell_them() -> None:
    history = read_history(LINES)
    assert history.loss is not None
    assert history.loss.steps.tolist() == [5, 10, 15]
    assert history.loss.values.tolist() == [2.0, 1.0, 1.5]
    assert history.scores["sts"].steps.tolist() == [0, 10]
    assert history.by_layer["dropped"].steps.tolist() == [5, 10]
    assert history.by_layer["dropped"].values.tolist() == [[0.1, 0.2], [0.3, 0.4]]


def test_an_empty_log_has_nothing() -> None:
    history = read_history([])
    assert (history.loss, history.scores, history.by_layer) == (None, {}, {})
    assert (history.last_step, history.seconds, history.steps_per_second) == (0, 0.0, None)


def test_thinning_takes_means_of_neighbours_and_the_rest_of_those_left() -> None:
    series = Series(np.arange(5.0), np.array([[0.0, 1.0], [2, 3], [4, 5], [6, 7], [9, 9]]))
    thinned = series.thinned(points=3)
    assert thinned.steps.tolist() == [0.5, 2.5, 4.0]
    assert thinned.values.tolist() == [[1.0, 2.0], [5.0, 6.0], [9.0, 9.0]]


@given(st.integers(1, 500), st.integers(1, 60))
def test_thinning_leaves_few_points_between_the_ends(count: int, points: int) -> None:
    values = np.arange(count, dtype=float)
    thinned = Series(values, values).thinned(points)
    assert 1 <= len(thinned.steps) <= points
    assert (np.diff(thinned.steps) > 0).all()
    np.testing.assert_allclose(thinned.steps, thinned.values)
    if count <= points:
        assert thinned.steps.tolist() == values.tolist()
