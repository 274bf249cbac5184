"""What a new snapshot must prove, on its files as they were written, before it takes over."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lamina_index.errors import CompactionError, DamagedError
from lamina_index.scoring import exact_scores
from lamina_index.snapshot_files import Snapshot, check_all, open_snapshot
from lamina_index.store import DocumentStore
from lamina_index.view import View

PROBES = 32
"""Stored vectors that must find themselves, half of them of the rows that were added last."""

_MISSED_SHARE = 0.125
_MOST_MISSED_SHARE = 0.5
"""How many may be missed where search is approximate, since a graph may not reach a row: so many,
or as many as the measured recall lacks, but never more than half."""

_SEED = 2


def prove(working: Path, number: int, store: DocumentStore) -> None:
    """Read a snapshot back, compare its rows with the store, and search it for rows it has.

    Args:
        working: Its folder, before it gets its name.
        number: The number that it is to have.
        store: The store that it was made from; others may write to it meanwhile.

    Raises:
        CompactionError: Naming the check that failed.
    """
    if found := check_all(working):
        raise CompactionError(f"{working}: does not read back as it was written; {found[0]}")
    try:
        snapshot = open_snapshot(working, number)
    except DamagedError as error:
        raise CompactionError(f"{working}: cannot be opened; {error}") from error
    view = _check_rows(snapshot, store)
    _check_probes(snapshot, view, store)


def _check_rows(snapshot: Snapshot, store: DocumentStore) -> View:
    """Compare the rows with those of the store; give a view as of then."""
    with store.reading() as reading:
        view = View.over(snapshot, store.dimension).buried(reading)
        stored = reading.keys(snapshot.manifest.last_key)
    held = np.delete(snapshot.keys, view.dead)
    if not np.array_equal(held, stored):
        lost, foreign = np.setdiff1d(stored, held), np.setdiff1d(held, stored)
        raise CompactionError(
            f"{snapshot.folder}: holds {len(held)} rows, the store {len(stored)}: "
            f"{len(lost)} are missing and {len(foreign)} have no document"
        )
    return view


def _check_probes(snapshot: Snapshot, view: View, store: DocumentStore) -> None:
    """Search for a sample of the rows with their own vectors."""
    alive = np.delete(snapshot.keys, view.dead)
    random = np.random.default_rng(_SEED)
    newest = alive[-max(snapshot.manifest.appended, 1) :]
    half = PROBES // 2
    chosen = np.unique(
        np.concatenate(
            [random.choice(part, min(half, len(part)), replace=False) for part in (newest, alive)]
        )
    )
    missed, first_missed = 0, 0
    for key in chosen.tolist():
        with store.reading() as reading:
            view = view.buried(reading)
            keys, rows = reading.vectors([key])
            if len(keys) == 0:  # deleted meanwhile
                continue
            own = exact_scores(rows, rows[0])[0]
            scores, _ = view.nearest(reading, rows[0], 1)
        if len(scores) == 0 or scores[0] < own:
            missed, first_missed = missed + 1, first_missed or key
    lacking = max(_MISSED_SHARE, 1 - snapshot.manifest.recall.at_10)
    allowed = 0 if snapshot.index.exact else min(lacking, _MOST_MISSED_SHARE)
    if missed > allowed * len(chosen):
        raise CompactionError(
            f"{snapshot.folder}: {missed} of {len(chosen)} stored vectors do not find themselves "
            f"in the new index, the first is that of key {first_missed}"
        )
