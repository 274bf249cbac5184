"""A search's result as JSON, of one shape in the service's replies and `lamina search --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lamina_index.hits import Hit
from lamina_index.matching import Facet
from lamina_index.search_options import SearchOptions
from lamina_index.search_stages import SearchResult

STAGES = ("queue", "encode", "search", "fetch")
RERANK_STAGE = "rerank"


def reply_values(
    result: SearchResult,
    options: SearchOptions,
    *,
    collection: str,
    took: Mapping[str, float],
    fields: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Give what a reply says; what was not asked for has no member.

    Args:
        result: Of the search.
        options: What was asked for.
        collection: The name of what was searched.
        took: From `took_milliseconds`.
        fields: Names of the metadata that hits have; None for all.
    """
    reply: dict[str, Any] = {
        "collection": collection,
        "hits": [_hit(hit, options, fields) for hit in result.hits],
        "total": result.total,
        **({} if result.total_groups is None else {"total_groups": result.total_groups}),
        "facets": {name: _facet(facet) for name, facet in result.facets.items()},
        "top_k": options.top_k,
        "offset": options.offset,
        "token_count": result.token_count,
        "truncated": result.truncated,
        "took": took,
    }
    if result.reranking is not None:
        reply["reranking"] = result.reranking
    return reply


def took_milliseconds(
    seconds: Mapping[str, float], options: SearchOptions, *, total_seconds: float
) -> dict[str, float]:
    """Give what each stage took, 0 for one that was left out, and all together."""
    stages = (*STAGES, RERANK_STAGE) if options.rerank else STAGES
    took = {stage: round(seconds.get(stage, 0.0) * 1000, 3) for stage in stages}
    return {**took, "total": round(total_seconds * 1000, 3)}


def _facet(facet: Facet) -> dict[str, Any]:
    values = [{"value": value, "count": count} for value, count in facet.values]
    return {"values": values, "others": facet.others}


def _hit(hit: Hit, options: SearchOptions, fields: Sequence[str] | None) -> dict[str, Any]:
    metadata = hit.metadata
    if fields is not None:
        metadata = {name: metadata[name] for name in fields if name in metadata}
    written: dict[str, Any] = {
        "id": hit.id,
        "score": hit.score,
        "scores": hit.scores,
        "rank": hit.rank,
        "text": hit.text,
        "metadata": metadata,
    }
    if hit.explanation is not None:
        written["explanation"] = hit.explanation
    if hit.highlights is not None:
        written["highlights"] = hit.highlights
    if options.group_by is not None:
        written["group"] = hit.group
    if hit.duplicates is not None:
        written["duplicates"] = hit.duplicates
    return written
