"""Groups and near-duplicates against an obvious walk over the ranking of all documents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina_index import grouping, ranking
from lamina_index.corpus import Document
from lamina_index.errors import GroupFieldError
from lamina_index.filters import parse_filter
from lamina_index.hits import DUPLICATE_IDS
from lamina_index.manifest import CollectionManifest, EncoderReference, FieldType, Metadata
from lamina_index.query_encoding import EncodedQuery
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore

FIELDS: dict[str, FieldType] = {"kind": "string", "size": "number", "tags": "strings"}


@dataclass(frozen=True)
class Row:
    """A document of a test: its vector and its metadata."""

    vector: NDArray[np.float32]
    metadata: Metadata
    text: str = "word"


@contextmanager
def collection_of(
    held: dict[str, Row],
    newer: dict[str, Row] | None = None,
    deleted: tuple[str, ...] = (),
    factory: str = "auto",
) -> Iterator[Searcher]:
    """A collection whose last rows are beside its snapshot."""
    dimension = len(next(iter({**held, **(newer or {})}.values())).vector)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        CollectionManifest(
            encoder=EncoderReference(name="x", precision="fp32", fingerprint="f"),
            dimension=dimension,
            text_version=1,
            fields=FIELDS,
            created="2026-01-01",
        ).write(folder / "collection.json")
        with DocumentStore.create(folder, dimension=dimension) as store:
            for batch in (held, newer or {}):
                vectors = np.array([row.vector for row in batch.values()], np.float32)
                store.upsert(
                    [Document(each, row.text, row.metadata) for each, row in batch.items()],
                    vectors.reshape(-1, dimension),
                )
                if batch is held:
                    write_snapshot(folder, store, factory=factory, threads=1)
            store.delete(list(deleted))
        with Searcher.open(folder) as searcher:
            yield searcher


def asked(vector: NDArray[np.float32], text: str = "word") -> EncodedQuery:
    return EncodedQuery(vector, 1, False, False, 0.0, text)


def reference(
    ranked: list[tuple[str, float]], rows: dict[str, Row], options: SearchOptions
) -> list[tuple[int, str, float, list[str]]]:
    """Walk over the whole ranking: rank of the group, id, score, and what is folded under it."""

    def near(one: str, other: str) -> bool:
        assert options.collapse is not None
        return float(rows[one].vector @ rows[other].vector) >= options.collapse - 1e-6

    def group_of(each: str) -> object:
        alone = object()
        return rows[each].metadata.get(options.group_by or "", alone)

    groups: list[tuple[object, str]] = []
    folded: dict[str, list[str]] = {each: [] for each in rows}
    left_out: set[str] = set()
    for each, score in ranked:
        if options.min_score is not None and score < options.min_score:
            break
        group = group_of(each)
        if any(group == other for other, _ in groups):
            continue
        if options.collapse is not None:
            first = next((best for _, best in groups if near(each, best)), None)
            if first is not None:
                folded[first].append(each)
                left_out.add(each)
                continue
        groups.append((group, each))
    listing = []
    for rank, (group, best) in enumerate(groups, 1):
        own = [each for each, _ in ranked if group_of(each) == group and each not in left_out]
        if options.collapse is not None:
            own = own[: 8 * options.group_size]
        members = [best]
        for each in own if options.group_size > 1 else []:
            if len(members) == options.group_size or each == best:
                continue
            if options.min_score is not None and dict(ranked)[each] < options.min_score:
                continue
            if options.collapse is not None:
                first = next((other for other in members if near(each, other)), None)
                if first is not None:
                    folded[first].append(each)
                    continue
            members.append(each)
        listing += [(rank, each, dict(ranked)[each], folded[each]) for each in members]
    return listing


def paged(
    listing: list[tuple[int, str, float, list[str]]], options: SearchOptions
) -> list[tuple[int, str, float, list[str]]]:
    last = options.offset + options.top_k
    return [hit for hit in listing if options.offset < hit[0] <= last]


_DIRECTIONS = np.array(
    [
        [a, b, c]
        for a in (-1, 0, 1)
        for b in (-1, 0, 1)
        for c in (-1, 0, 1)
        if (a, b, c) != (0, 0, 0)
    ],
    np.float32,
)
_DIRECTIONS /= np.linalg.norm(_DIRECTIONS, axis=1, keepdims=True)

_rows = st.builds(
    lambda direction, kind, size, words: Row(
        _DIRECTIONS[direction],
        ({} if kind is None else {"kind": kind}) | ({} if size is None else {"size": size}),
        words,
    ),
    st.integers(0, 25),
    st.sampled_from([None, "a", "b", "é"]),
    st.sampled_from([None, 1, 2.5, 2**60]),
    st.sampled_from(["word", "word word other", "other", "nothing"]),
)
_ids = st.text("abAé1", min_size=1, max_size=3)


@settings(max_examples=80, deadline=None)
@given(
    held=st.dictionaries(_ids, _rows, min_size=1, max_size=40),
    newer=st.dictionaries(_ids, _rows, max_size=8),
    deleted=st.sets(_ids, max_size=4),
    query=st.integers(0, 25),
    factory=st.sampled_from(["auto", "SQ8", "HNSW32,SQ8", "IVF2,Flat"]),
    looks=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    leg_depth=st.integers(1, 50),
    asks=st.lists(
        st.fixed_dictionaries(
            {
                "mode": st.sampled_from(["dense", "lexical", "hybrid"]),
                "group_by": st.sampled_from([None, "kind", "size"]),
                "group_size": st.integers(1, 4),
                "collapse": st.sampled_from([None, 1.0, 0.8, 0.5]),
                "top_k": st.integers(1, 12),
                "offset": st.integers(0, 8),
                "narrow": st.booleans(),
            }
        ),
        min_size=6,
        max_size=6,
    ),
)
def test_every_page_equals_a_walk_over_all_documents(
    held: dict[str, Row],
    newer: dict[str, Row],
    deleted: set[str],
    query: int,
    factory: str,
    looks: list[int],
    leg_depth: int,
    asks: list[dict[str, Any]],
) -> None:
    rows = {each: row for each, row in {**held, **newer}.items() if each not in deleted}
    with (
        collection_of(held, newer, tuple(deleted), factory) as searcher,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(ranking, "LEG_DEPTH", leg_depth)
        patch.setattr(grouping, "LOOKS", (*looks, *[5] * 60))
        for ask in asks:
            narrow = ask.pop("narrow")
            if ask["group_by"] is None:
                ask["group_size"] = 1
            options = SearchOptions(
                **ask, filter=parse_filter({"size": {"$ne": 1}}, FIELDS) if narrow else None
            )
            every = replace(
                options, group_by=None, group_size=1, collapse=None, top_k=1000, offset=0
            )
            question = asked(_DIRECTIONS[query], "word other")
            whole = searcher.search_encoded(question, every)
            found = searcher.search_encoded(question, options)
            ranked = [(hit.id, hit.score) for hit in whole.hits]
            expected = paged(reference(ranked, rows, options), options)
            assert [(hit.rank, hit.id, hit.score) for hit in found.hits] == [
                each[:3] for each in expected
            ]
            ended = len({hit.rank for hit in found.hits}) < options.top_k  # all rows were seen
            for hit, (*_, folded) in zip(found.hits, expected, strict=True):
                if hit.duplicates is None:
                    assert options.collapse is None
                    continue
                assert set(hit.duplicates.ids) <= set(folded)
                if ended:
                    assert hit.duplicates.count == len(folded)
                    assert hit.duplicates.ids == folded[:DUPLICATE_IDS]
            passing = [row for row in rows.values() if not narrow or row.metadata.get("size") != 1]
            assert found.total == len(passing)
            if options.group_by is not None:
                values = [row.metadata.get(options.group_by) for row in passing]
                alone = values.count(None)
                assert found.total_groups == alone + len({*values} - {None})
                for hit in found.hits:
                    assert hit.group == rows[hit.id].metadata.get(options.group_by)
