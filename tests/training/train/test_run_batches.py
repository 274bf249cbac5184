"""The batches of a run are a function of its seed, whoever shares them."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")  # never skipped in CI: see pytest_sessionstart

from hypothesis import given
from hypothesis import strategies as st

from lamina_training.run_batches import RunBatches


def make(sizes: list[int], batches: int, *, processes: int = 1, seed: int = 0) -> RunBatches:
    return RunBatches(sizes, batch_size=4, processes=processes, batches=batches, seed=seed)


def test_a_pass_has_every_row_once() -> None:
    first, second = list(make([4, 8], 6))[:3], list(make([4, 8], 6))[3:]
    for batches in (first, second):
        assert sorted(row for batch in batches for row in batch) == list(range(12))
    assert first != second


def test_rows_left_over_sit_out_one_pass_and_not_the_next() -> None:
    rows = {row for batch in make([6], 20) for row in batch}
    assert rows == set(range(6))


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=3).filter(lambda s: max(s) >= 4),
    batches=st.integers(1, 30),
    seed=st.integers(0, 9),
)
def test_a_batch_is_of_one_source_and_processes_share_it(
    sizes: list[int], batches: int, seed: int
) -> None:
    whole = list(make(sizes, batches, seed=seed))
    assert len(whole) == len(make(sizes, batches)) == batches
    limits = [sum(sizes[:n]) for n in range(len(sizes) + 1)]
    for batch in whole:
        assert len(set(batch)) == 4
        assert any(
            low <= min(batch) and max(batch) < high for low, high in itertools.pairwise(limits)
        )
    parts = list(make(sizes, batches, processes=2, seed=seed))
    assert [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)] == whole


def test_a_longer_run_begins_with_the_batches_of_a_shorter_one() -> None:
    assert list(make([9], 7))[:3] == list(make([9], 3))


def test_another_seed_gives_another_order() -> None:
    assert list(make([20], 5)) != list(make([20], 5, seed=1))


def test_what_cannot_be_batched_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 2\] rows have no batch of 4"):
        make([3, 2], 1)
    with pytest.raises(ValueError, match="cannot be shared by 3 processes"):
        make([9], 1, processes=3)
