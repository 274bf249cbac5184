"""Searches under a filter, and facets, against comparing every matching document."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lamina_index import view_columns
from lamina_index.cli import main
from lamina_index.corpus import Document
from lamina_index.filters import parse_filter
from lamina_index.manifest import (
    CollectionManifest,
    EncoderReference,
    FieldType,
    Metadata,
    SnapshotManifest,
)
from lamina_index.matching import FACET_VALUES
from lamina_index.scoring import exact_scores
from lamina_index.search_options import SearchOptions
from lamina_index.search_stages import SearchResult
from lamina_index.searcher import Searcher
from lamina_index.snapshot import write_snapshot
from lamina_index.store import DocumentStore
from lamina_index.vectors import VectorIndex
from vectors import unit

MakeCollection = Callable[..., Any]

FIELDS: dict[str, FieldType] = {"group": "number", "name": "string", "tags": "strings"}
INDEXES = [
    "Flat",
    "SQ8",
    "HNSW16,SQ8",
    "HNSW16,Flat",
    "PCA32,HNSW16,SQ8",
    "HNSW16,SQ8,Refine(Flat)",
    "IVF16,SQ8",
    "IVF16,PQ8x4fs,Refine(SQfp16)",
]


def ids_of(result: SearchResult) -> list[str]:
    return [hit.id for hit in result.hits]


def options(wanted: dict[str, Any] | None = None, **rest: Any) -> SearchOptions:
    parsed = None if wanted is None else parse_filter(wanted, FIELDS)
    return SearchOptions(filter=parsed, **rest)


def brute_force(
    rows: dict[str, NDArray[np.float32]], query: NDArray[np.float32]
) -> list[tuple[float, str]]:
    scored = [(-float(exact_scores(row[np.newaxis], query)[0]), each) for each, row in rows.items()]
    return sorted(scored)


@pytest.fixture
def built(make_collection: MakeCollection) -> Callable[..., Any]:
    """Make a snapshot of 2000 documents d0..d1999 whose group is their number modulo 1000."""

    def build(factory: str, dimension: int = 32) -> Any:
        made = make_collection(name=f"c{len(factory)}", dimension=dimension, fields=FIELDS)
        metadata: list[Metadata] = [
            {"group": n % 1000, "name": f"n{n % 7}", "tags": [f"t{n % 3}", f"u{n % 2}"]}
            for n in range(2000)
        ]
        made.put([f"d{n}" for n in range(2000)], unit(2000, dimension), metadata=metadata)
        made.snapshot(factory)
        return made

    return build


@pytest.mark.parametrize("factory", INDEXES)
@pytest.mark.parametrize("share", [0.9, 0.5, 0.05, 0.001])
def test_every_kind_of_index_finds_the_nearest_that_match(
    built: Callable[..., Any], factory: str, share: float
) -> None:
    made = built(factory)
    rows = unit(2000)
    bound = int(share * 1000)
    matching = {f"d{n}": rows[n] for n in range(2000) if n % 1000 < bound}
    found = 0
    with Searcher.open(made.folder) as searcher:
        for query in unit(20, seed=1):
            result = searcher.search_embedding(query, options({"group": {"$lt": bound}}))
            assert result.total == len(matching)
            ids = ids_of(result)
            assert len(ids) == min(10, len(matching))
            assert set(ids) <= set(matching)
            rank = {each: -score for score, each in brute_force(matching, query)}
            assert [hit.score for hit in result.hits] == pytest.approx(
                [rank[each] for each in ids], abs=1e-6
            )
            expected = [each for _, each in brute_force(matching, query)[:10]]
            found += len(set(ids) & set(expected))
    exact = share * 2000 <= 2 or factory.endswith(("Flat", "SQ8", "Refine(Flat)"))
    assert found >= 20 * min(10, len(matching)) * (0.99 if exact else 0.8)


@pytest.mark.parametrize("factory", ["Flat", "HNSW16,SQ8", "IVF16,SQ8"])
def test_a_filter_that_nothing_passes_gives_nothing(
    built: Callable[..., Any], factory: str
) -> None:
    made = built(factory)
    with Searcher.open(made.folder) as searcher:
        result = searcher.search_embedding(unit(1)[0], options({"group": -1}, facets=("name",)))
    assert (result.hits, result.total) == ([], 0)
    assert result.facets["name"].values == []


@pytest.mark.parametrize("factory", ["Flat", "HNSW16,SQ8", "IVF16,SQ8"])
def test_all_that_match_are_listed_however_many_are_asked_for(
    built: Callable[..., Any], factory: str
) -> None:
    made = built(factory)
    wanted = options({"group": {"$in": [5, 9, 11]}}, top_k=1000)
    with Searcher.open(made.folder) as searcher:
        ids = ids_of(searcher.search_embedding(unit(1, seed=4)[0], wanted))
    assert sorted(ids) == ["d1005", "d1009", "d1011", "d11", "d5", "d9"]


@pytest.mark.parametrize("factory", ["Flat", "HNSW16,SQ8"])
def test_pages_under_a_filter_never_overlap(built: Callable[..., Any], factory: str) -> None:
    made = built(factory)
    query = unit(1, seed=2)[0]
    with Searcher.open(made.folder) as searcher:
        for bound in (20, 900):
            wanted = {"group": {"$lt": bound}}
            whole = ids_of(searcher.search_embedding(query, options(wanted, top_k=40)))
            pages = [
                ids_of(searcher.search_embedding(query, options(wanted, top_k=8, offset=8 * n)))
                for n in range(5)
            ]
            assert [each for page in pages for each in page] == whole


def test_deleted_replaced_and_new_documents_are_as_the_last_write_left_them(
    built: Callable[..., Any],
) -> None:
    made = built("HNSW16,SQ8")
    wanted = options({"group": 7}, top_k=50, facets=("name",))
    query = unit(1, seed=3)[0]
    with Searcher.open(made.folder) as searcher:
        assert sorted(ids_of(searcher.search_embedding(query, wanted))) == ["d1007", "d7"]
        made.store.delete(["d7"])
        assert ids_of(searcher.search_embedding(query, wanted)) == ["d1007"]
        made.put(["d1007"], unit(1, seed=5), metadata=[{"group": 8}])
        assert ids_of(searcher.search_embedding(query, wanted)) == []
        made.put(["new", "d7"], unit(2, seed=6), metadata=[{"group": 7, "name": "x"}] * 2)
        result = searcher.search_embedding(query, wanted)
        assert sorted(ids_of(result)) == ["d7", "new"]
        assert result.facets["name"].values == [("x", 2)]
        made.store.delete(["new"])
        result = searcher.search_embedding(query, wanted)
        assert (ids_of(result), result.total) == (["d7"], 1)
        assert result.facets["name"].values == [("x", 1)]
        made.snapshot("HNSW16,SQ8")
        assert ids_of(searcher.search_embedding(query, wanted)) == ["d7"]


@pytest.mark.parametrize("factory", ["Flat", "HNSW16,SQ8"])
def test_equal_vectors_that_do_not_match_are_not_brought_in(
    make_collection: MakeCollection, factory: str
) -> None:
    made = make_collection(fields=FIELDS)
    same = np.repeat(unit(1), 600, axis=0)
    metadata: list[Metadata] = [{"group": n % 3} for n in range(600)]
    made.put([f"{n:03}" for n in range(600)], same, metadata=metadata)
    made.snapshot(factory)
    made.put(["delta 0", "delta 1"], same[:2], metadata=[{"group": 1}, {"group": 2}])
    with Searcher.open(made.folder) as searcher:
        result = searcher.search_embedding(same[0], options({"group": 1}, top_k=250))
    assert ids_of(result) == [f"{n:03}" for n in range(1, 600, 3)] + ["delta 0"]


def test_min_score_applies_to_hits_but_not_to_what_is_counted(built: Callable[..., Any]) -> None:
    made = built("Flat")
    wanted = options({"name": "n3"}, min_score=0.999, facets=("tags",))
    with Searcher.open(made.folder) as searcher:
        result = searcher.search_embedding(unit(2000)[3], wanted)
    assert ids_of(result) == ["d3"]
    assert result.total == len(range(3, 2000, 7))
    assert sum(count for value, count in result.facets["tags"].values if value[0] == "t") == 286  # type: ignore[index] # texts


def test_the_index_alone_is_asked_where_enough_of_what_it_gives_matches(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built("HNSW16,SQ8")
    query = unit(1, seed=8)[0]
    monkeypatch.setattr("lamina_index.vectors._ROWS_PER_EF", 1)  # as if the graph were far quicker
    scanned = []
    original = VectorIndex.scan
    monkeypatch.setattr(
        VectorIndex, "scan", lambda *given: scanned.append(given) or original(*given)
    )
    with Searcher.open(made.folder) as searcher:
        wide = searcher.search_embedding(query, options({"group": {"$lt": 800}}))
        assert not scanned
        near = ids_of(searcher.search_embedding(query, options(top_k=600)))
        groups = sorted(set(range(1000)) - {int(each[1:]) % 1000 for each in near})
        anti = searcher.search_embedding(query, options({"group": {"$in": groups}}))
        assert scanned  # the nearest that match lie beyond what the graph gave
    rows = unit(2000)
    for result, chosen in ((wide, range(800)), (anti, groups)):
        matching = {f"d{n}": rows[n] for n in range(2000) if n % 1000 in chosen}
        assert ids_of(result) == [each for _, each in brute_force(matching, query)[:10]]


# Facets


def test_facets_count_every_document_where_there_is_no_filter(built: Callable[..., Any]) -> None:
    made = built("Flat")
    made.put(["new"], unit(1), metadata=[{"name": "n0", "tags": ["zz"]}])
    with Searcher.open(made.folder) as searcher:
        result = searcher.search_embedding(unit(1)[0], options(facets=("name", "tags", "group")))
    assert result.total == 2001
    expected = Counter(f"n{n % 7}" for n in range(2000)) + Counter(["n0"])
    assert result.facets["name"].values == sorted(
        expected.items(), key=lambda item: (-item[1], item[0])
    )
    assert result.facets["tags"].values == [
        ("u0", 1000),
        ("u1", 1000),
        ("t0", 667),
        ("t1", 667),
        ("t2", 666),
        ("zz", 1),
    ]
    group = result.facets["group"]
    assert group.values == [(n, 2) for n in range(FACET_VALUES)]
    assert group.others == 1000 - FACET_VALUES


def test_facets_of_dates_and_booleans_are_values_of_their_type(
    make_collection: MakeCollection,
) -> None:
    types: dict[str, FieldType] = {"day": "date", "open": "boolean"}
    made = make_collection(fields=types)
    metadata: list[Metadata] = [
        {"day": "2024-01-01", "open": True},
        {"day": "2024-01-01T01:00+01:00", "open": False},
        {"day": "2024-01-02T12:00Z", "open": True},
    ]
    made.put(["a", "b", "c"], unit(3), metadata=metadata)
    with Searcher.open(made.folder) as searcher:
        result = searcher.search_embedding(unit(1)[0], options(facets=("day", "open")))
    assert result.facets["day"].values == [("2024-01-01", 2), ("2024-01-02T12:00:00Z", 1)]
    assert result.facets["open"].values == [(True, 2), (False, 1)]


# Random histories against brute force

_META = st.fixed_dictionaries(
    {},
    optional={
        "group": st.integers(0, 3),
        "name": st.sampled_from(["a", "ab", "b"]),
        "tags": st.lists(st.sampled_from(["x", "y"]), max_size=2),
    },
)
_WRITES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 30), _META),
        st.tuples(st.just("delete"), st.integers(0, 30), st.just({})),
        st.tuples(st.just("snapshot"), st.just(0), st.just({})),
        st.tuples(st.just("search"), st.integers(0, 3), st.just({})),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(writes=_WRITES, factory=st.sampled_from(["Flat", "HNSW8,SQ8", "IVF2,Flat"]))
def test_after_any_writes_a_filtered_search_is_that_of_the_documents_there_are(
    writes: list[tuple[str, int, Metadata]], factory: str
) -> None:
    rows = unit(64, dimension=8, seed=9)
    model: dict[str, tuple[NDArray[np.float32], Metadata]] = {}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        reference = EncoderReference(name="none", precision="fp32", fingerprint="0" * 64)
        CollectionManifest(
            encoder=reference, dimension=8, text_version=1, fields=FIELDS, created="2026-01-01"
        ).write(folder / "collection.json")
        store = stack.enter_context(DocumentStore.create(folder, dimension=8))
        searcher = stack.enter_context(Searcher.open(folder))
        for step, (action, number, metadata) in enumerate([*writes, ("search", 1, {})]):
            if action == "put":
                row = rows[(step * 7 + number) % 64]
                store.upsert([Document(str(number), "text", metadata)], row[np.newaxis])
                model[str(number)] = (row, metadata)
            elif action == "delete":
                store.delete([str(number)])
                model.pop(str(number), None)
            elif action == "snapshot":
                write_snapshot(folder, store, factory=factory, threads=1)
            else:
                wanted = {"$or": [{"group": {"$lte": number}}, {"tags": "x"}]}
                found = searcher.search_embedding(
                    rows[number], options(wanted, top_k=5, facets=("name",))
                )
                matching = {
                    each: row
                    for each, (row, held) in model.items()
                    if held.get("group", 9) <= number  # type: ignore[operator] # group is a number
                    or "x" in held.get("tags", [])  # type: ignore[operator] # tags is a list
                }
                best = [each for _, each in brute_force(matching, rows[number])[:5]]
                assert ids_of(found) == best
                assert found.total == len(matching)
                names = Counter(
                    model[each][1]["name"] for each in matching if "name" in model[each][1]
                )  # type: ignore[misc] # a name is a string
                assert dict(found.facets["name"].values) == names


# Formats


def _without_columns(snapshot: Path) -> None:
    """Make a snapshot what format 1 was."""
    (snapshot / "columns.safetensors").unlink()
    manifest = SnapshotManifest.read(snapshot / "snapshot.json")
    files = {name: file for name, file in manifest.files.items() if name != "columns.safetensors"}
    older = manifest.model_copy(update={"format_version": 1, "files": files})
    older.model_copy(update={"checksum": older.digest()}).write(snapshot / "snapshot.json")


def test_a_snapshot_of_format_1_is_filtered_all_the_same(built: Callable[..., Any]) -> None:
    made = built("HNSW16,SQ8")
    wanted = options({"group": 7}, facets=("name",))
    query = unit(1)[0]
    with Searcher.open(made.folder) as searcher:
        expected = searcher.search_embedding(query, wanted)
    _without_columns(made.folder / "snapshots" / "1")
    with Searcher.open(made.folder) as searcher:
        for _ in range(2):
            found = searcher.search_embedding(query, wanted)
            assert (found.hits, found.facets) == (expected.hits, expected.facets)
        made.store.delete(["d7"])
        assert ids_of(searcher.search_embedding(query, wanted)) == ["d1007"]


def test_columns_made_in_memory_are_made_once(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = built("Flat")
    _without_columns(made.folder / "snapshots" / "1")
    calls = []
    original = view_columns.columns_of
    monkeypatch.setattr(
        view_columns, "columns_of", lambda *given: calls.append(1) or original(*given)
    )
    with Searcher.open(made.folder) as searcher:
        for turn in range(3):
            made.put([f"new {turn}"], unit(1), metadata=[{"group": 1}])
            searcher.search_embedding(unit(1)[0], options({"group": 7}))
    assert calls == [1]


def test_a_field_that_is_newer_than_the_snapshot_is_filtered(
    make_collection: MakeCollection,
) -> None:
    made = make_collection(fields={"group": "number"})
    made.put(["old"], unit(1), metadata=[{"group": 1}])
    made.snapshot("Flat")
    path = made.folder / "collection.json"
    manifest = CollectionManifest.read(path)
    manifest.model_copy(update={"fields": FIELDS}).write(path)
    made.put(["new"], unit(1), metadata=[{"name": "n"}])
    with Searcher.open(made.folder) as searcher:
        assert ids_of(searcher.search_embedding(unit(1)[0], options({"name": "n"}))) == ["new"]
        absent = options({"name": {"$exists": False}})
        assert ids_of(searcher.search_embedding(unit(1)[0], absent)) == ["old"]


# The command


def test_the_command_takes_a_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "corpus.jsonl"
    lines = [{"id": str(n), "text": f"a dog number {n}", "year": 2000 + n} for n in range(4)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = str(tmp_path / "c")
    assert main(["index", "build", "--input", str(source), "--collection", folder]) == 0
    capsys.readouterr()
    wanted = '{"year": {"$gte": 2002}}'
    assert main(["search", folder, "dog", "--json", "--filter", wanted]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {hit["id"] for hit in found["hits"]} == {"2", "3"}
    assert main(["search", folder, "dog", "--filter", '{"year": "2002"}']) == 1
    assert "--filter.year: '2002', expected a finite number" in capsys.readouterr().err
    assert main(["search", folder, "dog", "--filter", "{year: 2002}"]) == 1
    assert "is no JSON" in capsys.readouterr().err
