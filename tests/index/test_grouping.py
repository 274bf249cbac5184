"""Groups and near-duplicates against an obvious walk over the ranking of all documents."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import vectors
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
from vectors import DIRECTIONS

unit = partial(vectors.unit, dimension=16)
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


_rows = st.builds(
    lambda direction, kind, size, words: Row(
        DIRECTIONS[direction],
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
        if factory != "auto":  # others do not tell all rows that tie with the last
            leg_depth, looks = 50, [look + 12 for look in looks]
        patch.setattr(ranking, "LEG_DEPTH", leg_depth)
        patch.setattr(grouping, "LOOKS", (*looks, *looks[-1:] * 60))
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
            question = asked(DIRECTIONS[query], "word other")
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


def near(
    center: NDArray[np.float32], count: int, seed: int, spread: float = 0.05
) -> NDArray[np.float32]:
    rows = center + spread * unit(count, dimension=len(center), seed=seed)
    result: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return result


@pytest.mark.parametrize("factory", ["Flat", "HNSW32,SQ8", "IVF8,SQ8"])
@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_groups_are_complete_where_the_nearest_thousands_are_of_one(
    factory: str, mode: Mode
) -> None:
    query = unit(1)[0]
    crowd = near(query, 3000, seed=1, spread=0.5)
    others = unit(40, seed=2)
    rows = {f"c{n:04}": Row(row, {"kind": "crowd"}) for n, row in enumerate(crowd)}
    rows |= {f"o{n}": Row(row, {"kind": f"k{n % 20}"}) for n, row in enumerate(others)}
    with collection_of(rows, factory=factory) as searcher:
        options = SearchOptions(group_by="kind", top_k=50, mode=mode)
        found = searcher.search_encoded(asked(query), options)
        assert found.total_groups == 21
        assert len(found.hits) == 21
        assert found.hits[0].group == "crowd"
        best = {}
        for n, row in enumerate(others):
            score = float(row @ query)
            best[f"k{n % 20}"] = max(score, best.get(f"k{n % 20}", -2.0))
        expected = sorted(best, key=lambda kind: -best[kind])
        assert [hit.group for hit in found.hits[1:]] == expected
        several = searcher.search_encoded(asked(query), replace(options, group_size=3))
        nearest = np.sort(crowd @ query)[:-4:-1]
        cosines = [hit.scores["dense"] for hit in several.hits[:3]]
        assert cosines == pytest.approx(nearest.tolist(), abs=2e-3)
        assert [hit.rank for hit in several.hits] == [1, 1, 1] + [n // 2 for n in range(4, 44)]


@pytest.mark.parametrize(
    ("mode", "fusion"),
    [("dense", "scores"), ("lexical", "scores"), ("hybrid", "scores"), ("hybrid", "ranks")],
)
@pytest.mark.parametrize("wanted", [{"group_by": "kind"}, {"collapse": 0.9}, {}])
def test_pages_of_an_approximate_index_never_overlap_and_leave_no_gap(
    mode: Mode, wanted: dict[str, Any], fusion: Any
) -> None:
    rows = {
        f"{n:04}": Row(row, {"kind": f"k{n % 700}"}, f"word w{n % 3}" if n % 5 else "other")
        for n, row in enumerate(unit(2500))
    }
    for n in range(0, 2500, 25):  # many ties
        rows[f"{n:04}"] = replace(rows[f"{n:04}"], vector=rows["0000"].vector)
    with collection_of(rows, factory="HNSW16,SQ8") as searcher:
        question = asked(unit(1, seed=7)[0], "word w1")
        options = SearchOptions(mode=mode, fusion=fusion, **wanted)
        seen: list[str] = []
        groups: list[Any] = []
        for offset in range(0, 720, 60):
            page = searcher.search_encoded(question, replace(options, top_k=60, offset=offset))
            assert [hit.rank for hit in page.hits] == [
                offset + place for place in range(1, len(page.hits) + 1)
            ]
            seen += [hit.id for hit in page.hits]
            groups += [hit.group for hit in page.hits]
        assert len(seen) == len(set(seen))
        if "group_by" in wanted:
            assert len(groups) == len(set(groups))
            assert mode == "lexical" or len(groups) == 700
            whole = searcher.search_encoded(question, replace(options, top_k=700))
            assert {hit.id for hit in whole.hits} == set(seen)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_more_hits_than_there_are_give_all_there_are(mode: Mode) -> None:
    rows = {f"{n}": Row(row, {"kind": f"k{n % 3}"}) for n, row in enumerate(unit(30))}
    with collection_of(rows) as searcher:
        for top_k in (29, 30, 31, 2**31, 2**63):
            for wanted, expected in [({}, 30), ({"group_by": "kind"}, 3), ({"collapse": 1.0}, 30)]:
                options = SearchOptions(mode=mode, top_k=top_k, **wanted)
                hits = searcher.search_encoded(asked(unit(1)[0]), options).hits
                assert len({hit.id for hit in hits}) == len(hits) == min(expected, top_k)


def test_exact_copies_are_folded_however_many_there_are() -> None:
    copy, other = unit(2)
    rows = {f"{n:04}": Row(copy, {}) for n in range(3000)} | {"other": Row(other, {})}
    with collection_of(rows, factory="HNSW16,SQ8") as searcher:
        hits = searcher.search_embedding(copy, SearchOptions(collapse=1.0)).hits
    assert [hit.id for hit in hits] == ["0000", "other"]
    assert hits[0].duplicates is not None
    assert hits[0].duplicates.count == 2999
    assert hits[0].duplicates.ids == [f"{n:04}" for n in range(1, 1 + DUPLICATE_IDS)]


def test_a_collapsed_listing_ends_after_the_rows_it_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouping, "LOOKS", (8, 16))
    query = unit(1)[0]
    rows = {f"{n:03}": Row(row, {}) for n, row in enumerate(near(query, 100, seed=3))}
    rows["far"] = Row(-query, {})
    with collection_of(rows) as searcher:
        hits = searcher.search_embedding(query, SearchOptions(collapse=0.9, top_k=5)).hits
    assert len(hits) == 1
    assert hits[0].duplicates is not None
    assert hits[0].duplicates.count == 23


def test_a_threshold_leaves_out_groups_and_members_below_it() -> None:
    rows = {
        "a": Row(np.array([1, 0], np.float32), {"kind": "x"}),
        "b": Row(np.array([0.8, 0.6], np.float32), {"kind": "x"}),
        "c": Row(np.array([0, 1], np.float32), {"kind": "x"}),
        "d": Row(np.array([0.6, 0.8], np.float32), {"kind": "y"}),
        "e": Row(np.array([-1, 0], np.float32), {}),
    }
    with collection_of(rows) as searcher:
        options = SearchOptions(group_by="kind", group_size=5, min_score=0.5)
        hits = searcher.search_embedding([1, 0], options).hits
        assert [(hit.rank, hit.id, hit.group) for hit in hits] == [
            (1, "a", "x"),
            (1, "b", "x"),
            (2, "d", "y"),
        ]
        hits = searcher.search_embedding([1, 0], SearchOptions(group_by="kind", offset=2)).hits
        assert [(hit.rank, hit.id, hit.group) for hit in hits] == [(3, "e", None)]


def test_explanations_and_highlights_come_with_groups_and_without_duplicates() -> None:
    rows = {f"{n}": Row(row, {"kind": f"k{n % 4}"}, "a word") for n, row in enumerate(unit(200))}
    with collection_of(rows) as searcher:
        for mode in ("dense", "lexical", "hybrid"):
            for wanted in ({"group_by": "kind", "group_size": 60}, {"collapse": 0.95}):
                options = SearchOptions(
                    mode=mode, explain=True, highlight=True, top_k=150, **wanted
                )
                hits = searcher.search_encoded(asked(unit(1)[0]), options).hits
                assert len(hits) >= 120
                for hit in hits:
                    assert hit.highlights == [(2, 6)]
                    assert hit.explanation is not None
                    if mode != "lexical":
                        cosine = hit.explanation["dense"].score
                        assert cosine == pytest.approx(float(rows[hit.id].vector @ unit(1)[0]))


@pytest.mark.parametrize(
    ("name", "told"), [("tags", "is a list of strings"), ("no", "no such metadata: 'no'; there is")]
)
def test_a_field_that_makes_no_groups_is_refused(name: str, told: str) -> None:
    with (
        collection_of({"a": Row(unit(1)[0], {"tags": ["x", "y"]})}) as searcher,
        pytest.raises(GroupFieldError, match=told),
    ):
        searcher.search_embedding(unit(1)[0], SearchOptions(group_by=name))


@pytest.mark.parametrize(
    "wanted",
    [
        {"group_size": 0, "group_by": "kind"},
        {"group_size": 101, "group_by": "kind"},
        {"group_size": 2},
        {"collapse": 0},
        {"collapse": 1.01},
        {"collapse": float("nan")},
    ],
)
def test_numbers_out_of_range_are_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"group_size|collapse"):
        SearchOptions(**wanted)
