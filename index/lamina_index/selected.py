"""Nearest rows among those of a snapshot that a filter lets through.

A graph or a list index reaches the rows near the query; where a filter lets few of those through,
or none, searching it with the filter finds wrong rows and too few of them. So an answer is taken
from the index only if the rows that it gives *without* the filter contain enough matching ones:
those are then the nearest matching ones as surely as any unfiltered answer is right, however the
filter goes with the query's meaning. Otherwise every matching row is compared.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina_index.matching import Matching
from lamina_index.scoring import exact_scores
from lamina_index.snapshot_files import Snapshot
from lamina_index.store_reading import StoreReading
from lamina_index.vectors import Exclusion

Candidates: TypeAlias = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Rough scores, descending, and positions in the snapshot."""

_LEAST_DEPTH = 64
"""Matching rows looked for at least, so that the first pages of a listing come from the same
candidates."""

_MARGIN = 1.25
"""How many more rows are asked of an index than should hold enough matching ones."""

_SCANNED_FOR_ONE_FETCHED = 2000
"""Rows of an index that a scan passes over in the time that one vector takes from the store."""

_FETCHED_AT_ONCE = 4096


def nearest_selected(
    snapshot: Snapshot,
    reading: StoreReading,
    query: NDArray[np.float32],
    width: int,
    matching: Matching,
    exclusion: Exclusion | None,
) -> Candidates:
    """Find the nearest matching rows of a snapshot.

    Args:
        snapshot: The snapshot.
        reading: A transaction in which the matching rows are.
        query: (D,) unit vector.
        width: How many are wanted, at least 1.
        matching: Which rows match.
        exclusion: Deleted rows, which do not match.

    Returns:
        min(width, matching) rows; fewer only if the store lacks rows.
    """
    selected = matching.held_count
    if selected == 0:
        return np.empty(0, np.float32), np.empty(0, np.int64)
    index = snapshot.index
    if selected * _SCANNED_FOR_ONE_FETCHED <= index.count:
        return _fetched(snapshot, reading, query, width, matching)
    if (found := _from_index(snapshot, query, width, matching, exclusion)) is not None:
        return found
    return index.scan(query, width, matching.held)


def _from_index(
    snapshot: Snapshot,
    query: NDArray[np.float32],
    width: int,
    matching: Matching,
    exclusion: Exclusion | None,
) -> Candidates | None:
    """Ask the index without the filter, for more where too few of what it gives match.

    Returns:
        The rows, or None where comparing all that match is cheaper.
    """
    index = snapshot.index
    if index.effort_name == "none":
        return None
    selected = matching.held_count
    alive = index.count - (exclusion.count if exclusion else 0)
    depth = min(max(_LEAST_DEPTH, _power_of_two(width)), selected)
    asked = _power_of_two(int(_MARGIN * depth * alive / selected))
    visited = 0
    while asked <= index.count:
        effort = _effort(snapshot, asked, depth)
        visited += index.visits(effort)
        if visited > selected:
            return None
        scores, positions = index.search(query, asked, effort=effort, exclusion=exclusion)
        passed = matching.held[positions]
        found = int(np.count_nonzero(passed))
        if found >= depth:
            return scores[passed][:width], positions[passed][:width]
        asked = max(2 * asked, _power_of_two(asked * depth // max(found, 1)))
    return None


def _effort(snapshot: Snapshot, asked: int, depth: int) -> int:
    """The effort that finds so many rows as surely as the tuned one finds a page."""
    tuned = snapshot.manifest.effort
    if snapshot.index.effort_name == "efSearch":
        return max(tuned, asked)
    return tuned * -(-asked // depth)


def _fetched(
    snapshot: Snapshot,
    reading: StoreReading,
    query: NDArray[np.float32],
    width: int,
    matching: Matching,
) -> Candidates:
    """Compare the stored vectors of the matching rows."""
    positions = np.flatnonzero(matching.held)
    scores = np.full(len(positions), -np.inf, np.float32)
    for start in range(0, len(positions), _FETCHED_AT_ONCE):
        wanted = snapshot.keys[positions[start : start + _FETCHED_AT_ONCE]]
        keys, rows = reading.vectors(wanted.tolist())
        if len(keys):
            scores[start + np.searchsorted(wanted, keys)] = exact_scores(rows, query)
    best = np.argsort(-scores, kind="stable")[:width]
    best = best[scores[best] > -np.inf]
    return scores[best], positions[best]


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()
