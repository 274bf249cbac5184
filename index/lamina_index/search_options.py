"""What a search is asked for beside its query; every way into a search takes it whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lamina_index.filters import Filter

Fusion = Literal["ranks", "scores"]
Mode = Literal["dense", "lexical", "hybrid"]
Leg = Literal["dense", "lexical", "hybrid", "rerank"]
"""What scores a hit: one leg of a search, both fused, or a reranker."""

DEFAULT_FUSION: Fusion = "scores"
DEFAULT_LEXICAL_WEIGHT = 0.15
DEFAULT_RERANK = 50
MAX_RERANK = 200
"""Each candidate costs a run of the reranker's whole graph."""
MAX_GROUP_SIZE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Which hits of a listing are wanted.

    Attributes:
        top_k: Hits wanted, at least 1; fewer come back only where fewer match.
        offset: Hits to skip first.
        min_score: Leave out hits with a lower score; for dense search only.
        mode: By meaning (`dense`), by words (`lexical`) or by both (`hybrid`).
        fusion: How a hybrid search joins the two: by their `ranks` or by their `scores`.
        lexical_weight: The share that words have in it, from 0 to less than 1.
        explain: Whether each hit tells its score and rank in each leg.
        highlight: Whether each hit tells where words of the query stand in its text.
        filter: Search only among the documents that pass; see `parse_filter`.
        group_by: Field whose values make groups: `top_k` and `offset` count groups, and each gives
            its best documents. A document without the field is a group of its own.
        group_size: Hits of each group, at most `MAX_GROUP_SIZE`.
        collapse: Leave out a document whose cosine with a better one that is listed is this or
            more; see `lamina_index.grouping`.
        facets: Fields whose values are counted over all documents that pass the filter.
        rerank: So many of the best candidates are put in a reranker's order, at most `MAX_RERANK`;
            None leaves that out. With groups of one hit each, their best hits are.

    Raises:
        ValueError: If a number is out of range, or `min_score` is given for another mode.
    """

    top_k: int = 10
    offset: int = 0
    min_score: float | None = None
    filter: Filter | None = None
    facets: tuple[str, ...] = ()
    mode: Mode = "dense"
    fusion: Fusion = DEFAULT_FUSION
    lexical_weight: float = DEFAULT_LEXICAL_WEIGHT
    explain: bool = False
    highlight: bool = False
    rerank: int | None = None
    group_by: str | None = None
    group_size: int = 1
    collapse: float | None = None

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.offset < 0:
            raise ValueError(
                f"top_k is {self.top_k} and offset {self.offset}; "
                "expected at least 1 and at least 0"
            )
        if self.min_score is not None and self.mode != "dense":
            raise ValueError(f"min_score is a cosine and goes with dense search, not {self.mode}")
        if self.rerank is not None and not 1 <= self.rerank <= MAX_RERANK:
            raise ValueError(f"rerank is {self.rerank}, expected 1 to {MAX_RERANK}")
        if self.rerank is not None and self.group_size > 1:
            raise ValueError("rerank goes with a group_size of 1")
        if not 1 <= self.group_size <= MAX_GROUP_SIZE:
            raise ValueError(f"group_size is {self.group_size}, expected 1 to {MAX_GROUP_SIZE}")
        if self.group_size > 1 and self.group_by is None:
            raise ValueError("group_size goes with group_by")
        if self.collapse is not None and not 0 < self.collapse <= 1:
            raise ValueError(f"collapse is {self.collapse}, expected more than 0 and at most 1")
        if not 0 <= self.lexical_weight < 1:
            raise ValueError(f"lexical_weight is {self.lexical_weight}, expected 0 to less than 1")


DEFAULT_OPTIONS = SearchOptions()
"""The ten best."""
