"""Documents near a stored one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina_index.build import build_collection
from lamina_index.errors import DocumentNotFoundError
from lamina_index.filters import parse_filter
from lamina_index.manifest import Chunking, FieldType
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher
from vectors import unit

FIELDS: dict[str, FieldType] = {"kind": "string"}


@pytest.mark.parametrize("factory", ["Flat", "HNSW32,SQ8"])
def test_similar_documents_are_the_nearest_but_for_itself(
    make_collection: Callable[..., Any], factory: str
) -> None:
    made = make_collection(fields=FIELDS)
    rows = unit(300)
    rows[7] = rows[3]  # a twin is no other name of the document
    names = [f"shelf/é {n}" for n in range(300)]
    made.put(names, rows, metadata=[{"kind": f"k{n % 2}"} for n in range(300)])
    made.snapshot(factory)
    made.put(["new"], rows[3:4], metadata=[{"kind": "k1"}])
    with Searcher.open(made.folder) as searcher:
        for name, row in (("shelf/é 3", rows[3]), ("new", rows[3])):
            every = searcher.search_embedding(row, SearchOptions(top_k=301)).hits
            found = searcher.similar(name, SearchOptions(top_k=301, facets=("kind",)))
            assert [(hit.id, hit.score) for hit in found.hits] == [
                (hit.id, hit.score) for hit in every if hit.id != name
            ]
            assert found.total == 300
            assert sum(count for _, count in found.facets["kind"].values) == 300
        wanted = SearchOptions(
            filter=parse_filter({"kind": "k1"}, FIELDS), top_k=3, offset=1, collapse=0.99
        )
        found = searcher.similar("shelf/é 3", wanted)
        assert found.total == 150
        nearest = searcher.search_embedding(
            rows[3], SearchOptions(filter=wanted.filter, top_k=10)
        ).hits
        different = [hit.id for hit in nearest if hit.id not in ("shelf/é 3", "shelf/é 7")]
        assert [hit.id for hit in found.hits] == different[1:4]
        assert searcher.similar("new", SearchOptions(group_by="kind")).total_groups == 2


def test_nothing_is_similar_to_the_only_document(make_collection: Callable[..., Any]) -> None:
    made = make_collection()
    made.put(["only"], unit(1))
    with Searcher.open(made.folder) as searcher:
        found = searcher.similar("only", SearchOptions(collapse=0.5))
        assert (found.hits, found.total) == ([], 0)
        with pytest.raises(DocumentNotFoundError, match="has no document 'Only'"):
            searcher.similar("Only")
        with pytest.raises(ValueError, match="a vector has no words"):
            searcher.similar("only", SearchOptions(mode="hybrid"))


def test_parts_of_the_same_document_are_found_only_if_asked_for(
    tmp_path: Path, word_encoder: Any, default_encoder: Any
) -> None:
    texts = {f"d{n}": " ".join(f"Sentence {n} says thing {m}." for m in range(8)) for n in "abc"}
    rows = "".join(f"{name}\t{text}\n" for name, text in texts.items())
    (tmp_path / "rows.tsv").write_text(f"id\ttext\n{rows}")
    folder = tmp_path / "collection"
    build_collection(
        [tmp_path / "rows.tsv"],
        folder,
        default_encoder,
        chunking=Chunking(tokens=16, overlap=0),
    )
    with Searcher.open(folder) as searcher:
        first = searcher.similar("da#1", SearchOptions(top_k=100))
        assert {hit.metadata["parent"] for hit in first.hits} == {"db", "dc"}
        every = searcher.similar("da#1", SearchOptions(top_k=100), own_parts=True)
        assert every.total == searcher.count - 1
        assert {hit.metadata["parent"] for hit in every.hits} == {"da", "db", "dc"}
        grouped = searcher.similar("da#1", SearchOptions(group_by="parent", group_size=2))
        assert [hit.rank for hit in grouped.hits] == [1, 1, 2, 2]
        assert {hit.group for hit in grouped.hits} == {"db", "dc"}
