"""What a collection must answer before an alias is led to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lamina_index.search_options import SearchOptions
from lamina_service.collection_schemas import CanaryQuery, CanaryRequest
from lamina_service.errors import CanaryFailedError

if TYPE_CHECKING:
    from lamina_index.searcher import Searcher
    from lamina_service.service import Service

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary's outcome: how many queries, and the mean overlap where one was asked for."""

    queries: int
    overlap: float | None


@dataclass(frozen=True, slots=True)
class _Trial:
    """A query with what was found: the expected ids that are missing, and the overlap, if asked."""

    missing: list[str]
    found: list[str]
    overlap: float | None


async def try_canary(
    service: Service, asked: CanaryRequest, collection: str, present: str | None
) -> Canary:
    """Ask a collection, and the one that an alias leads to now, and compare.

    Args:
        service: Its queue of searches is used, so that searches of others go on.
        asked: What is demanded.
        collection: The new one.
        present: The one to compare with; None where there is none, and nothing to compare.

    Raises:
        CanaryFailedError: If an expected id is missing or the overlap is too small.
        LaminaError: If a collection cannot be searched, or a query is blank.
    """
    service.check_batch("canary.queries", len(asked.queries))
    for position, query in enumerate(asked.queries):
        service.check_text(f"canary.queries[{position}].query", query.query)
    compared = present if asked.min_overlap is not None else None
    work = partial(_try, service, SearchOptions(top_k=asked.top_k), collection, compared)
    weights = [1 if compared is None else 2] * len(asked.queries)  # searches that a trial makes
    trials = await service.searches.map(work, asked.queries, weights=weights)
    overlaps = [trial.overlap for trial in trials if trial.overlap is not None]
    overlap = sum(overlaps) / len(overlaps) if overlaps else None
    failures = [
        (f"canary.queries[{position}].expected", _told(trial, asked.top_k))
        for position, trial in enumerate(trials)
        if trial.missing
    ]
    if overlap is not None and asked.min_overlap is not None and overlap < asked.min_overlap:
        told = f"overlap with {present!r} is {overlap:.3f}, expected at least {asked.min_overlap:g}"
        failures.append(("canary.min_overlap", told))
    if failures:
        raise CanaryFailedError(
            f"{collection!r} fails {len(failures)} of what the canary demands, so the alias stays "
            f"as it is; the first, {failures[0][0]}: {failures[0][1]}",
            failures,
        )
    return Canary(len(trials), overlap)


def _try(
    service: Service,
    options: SearchOptions,
    collection: str,
    compared: str | None,
    asked: CanaryQuery,
) -> _Trial:
    def ids(searcher: Searcher) -> list[str]:
        return [hit.id for hit in searcher.search(asked.query, options).hits]

    found = service.catalog.using(collection, ids)
    missing = [wanted for wanted in asked.expected if wanted not in found]
    overlap = None
    if compared is not None:
        overlap = overlap_of(found, service.catalog.using(compared, ids))
    return _Trial(missing, found, overlap)


def overlap_of(one: Sequence[str], other: Sequence[str]) -> float:
    """Share of the longer list that both have; 1 where both are empty."""
    longer = max(len(one), len(other))
    return len(set(one) & set(other)) / longer if longer else 1.0


def _told(trial: _Trial, top_k: int) -> str:
    found = ", ".join(map(repr, trial.found[:_SHOWN])) or "nothing"
    more = ", ..." if len(trial.found) > _SHOWN else ""
    return f"{trial.missing[0]!r} is not among the first {top_k} hits; found {found}{more}" + (
        f" ({len(trial.missing)} are missing)" if len(trial.missing) > 1 else ""
    )
