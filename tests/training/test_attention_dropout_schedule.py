"""Rates by layer and progress: the ramp, and a recorded table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lamina_training.attention_dropout import (
    AttendOut,
    AttentionDropoutConfig,
    AttentionDropoutError,
    NoChange,
    ScheduledBernoulli,
    read_rate_table,
    write_rate_table,
)
from lamina_training.attention_dropout.schedule import make_schedule

READ = TypeAdapter(AttentionDropoutConfig)


def test_the_ramp_starts_alike_and_ends_on_a_line_from_low_to_high_layers() -> None:
    schedule = make_schedule(ScheduledBernoulli(), 3)
    assert schedule.rates(0.0) == [0.1, 0.1, 0.1]
    assert schedule.rates(0.25) == pytest.approx([0.2, 0.15, 0.1])
    for progress in (0.5, 0.75, 1.0):
        assert schedule.rates(progress) == pytest.approx([0.3, 0.2, 0.1])


def test_one_layer_ends_at_the_low_rate() -> None:
    assert make_schedule(ScheduledBernoulli(low_layer=0.9), 1).rates(1.0) == [0.9]


def test_without_a_ramp_the_end_holds_from_the_start() -> None:
    assert make_schedule(ScheduledBernoulli(ramp=0.0), 2).rates(0.0) == [0.3, 0.1]


@given(progress=st.floats(0, 1), layers=st.integers(1, 24))
def test_lower_layers_never_drop_less_than_higher_ones(progress: float, layers: int) -> None:
    rates = make_schedule(ScheduledBernoulli(), layers).rates(progress)
    assert all(low >= high - 1e-12 for low, high in itertools.pairwise(rates))
    assert all(0.1 - 1e-12 <= rate <= 0.3 + 1e-12 for rate in rates)


@given(steps=st.integers(1, 3000), data=st.data())
def test_a_table_with_a_row_for_each_step_gives_each_step_its_row(
    steps: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(0, steps - 1))
    from lamina_training.attention_dropout.schedule import Replay

    table = tuple((number / steps,) for number in range(steps))
    assert Replay(table).rates(step / steps) == [step / steps]


def test_a_written_table_is_replayed_exactly(tmp_path: Path) -> None:
    rows = [[0.1, 0.123456789012345], [0.9, 0.3], [1.0, 0.0]]
    path = tmp_path / "rates.json"
    write_rate_table(path, rows)
    schedule = make_schedule(ScheduledBernoulli(table=path), 2)
    assert [schedule.rates(step / 3) for step in range(3)] == rows
    assert schedule.rates(1.0) == rows[-1]


def test_a_row_that_was_noted_for_ten_steps_is_in_force_for_those_ten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"drop_probability": [0.{n:02}]}}\n' for n in range(24)))
    schedule = make_schedule(ScheduledBernoulli(table=path), 1)
    found = [schedule.rates(step / 240) for step in range(240)]
    assert found == [[step // 10 / 100] for step in range(240)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("[[0.1,", "cannot be read as JSON"),
        ("[]", "expected a list of rows"),
        ('{"rates": 1}', "expected a list of rows"),
        ("[[0.1, 0.2], [0.1]]", "row 1 has 1 values, expected 2, one a layer"),
        ("[0.1, 0.2]", r"row 0 has 0\.1, expected 2"),
        ("[[0.1, 1.5]]", r"row 0 has 1\.5, expected a probability"),
        ('[[0.1, "x"]]', "row 0 has 'x', expected a probability"),
        ("[[0.1, NaN]]", "row 0 has nan, expected a probability"),
    ],
)
def test_a_table_that_does_not_fit_says_where(
    tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "rates.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(AttentionDropoutError, match=message):
        read_rate_table(path, layers=2)


def test_what_a_run_noted_is_a_table_and_a_run_without_rates_is_none(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"loss": 1}\n{"drop_probability": [0.1, 0.2]}\n{"drop_probability": [0, 1]}\n')
    assert read_rate_table(path, layers=2) == ((0.1, 0.2), (0.0, 1.0))
    path.write_text('{"loss": 1}\n3\n')
    with pytest.raises(AttentionDropoutError, match=r"or metrics\.jsonl of a run that had them"):
        read_rate_table(path, layers=2)


def test_kinds_are_told_apart_by_name_and_keep_to_their_keys() -> None:
    assert READ.validate_python({"kind": "attendout", "target": [0.3, 0.1]}) == AttendOut(
        target=(0.3, 0.1)
    )
    assert READ.validate_python({"kind": "none"}) == NoChange()
    for wrong in (
        {"kind": "attendout", "rate": 0.1},
        {"kind": "drop_head", "rate": 0.95},
        {"kind": "atendout"},
        {},
    ):
        with pytest.raises(ValidationError):
            READ.validate_python(wrong)
