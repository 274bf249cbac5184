"""What a search is asked for beside its query; every way into a search takes it whole."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Which hits of a listing are wanted.

    Attributes:
        top_k: Hits wanted, at least 1; fewer come back only where fewer match.
        offset: Hits to skip first.
        min_score: Leave out hits with a lower score.

    Raises:
        ValueError: If a number is out of range.
    """

    top_k: int = 10
    offset: int = 0
    min_score: float | None = None

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.offset < 0:
            raise ValueError(
                f"top_k is {self.top_k} and offset {self.offset}; "
                "expected at least 1 and at least 0"
            )


DEFAULT_OPTIONS = SearchOptions()
"""The ten best."""
