"""A filter narrows search by words, and by words and meaning, as it does search by meaning."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from lamina_index.build import build_collection
from lamina_index.corpus import Document
from lamina_index.filters import parse_filter
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import DocumentStore

TEXTS = [f"red cat number {n}" for n in range(40)] + [f"blue dog number {n}" for n in range(40)]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searcher]:
    from lamina_index.encoder import OnnxEncoder

    folder = tmp_path_factory.mktemp("modes")
    rows = "".join(f"d{n}\t{text}\t{n % 4}\n" for n, text in enumerate(TEXTS))
    (folder / "rows.tsv").write_text(f"id\ttext\tpart\n{rows}")
    encoder = OnnxEncoder.load("default")
    build_collection([folder / "rows.tsv"], folder / "collection", encoder)
    with Searcher.open(folder / "collection", encoder) as searcher:
        yield searcher


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
@pytest.mark.parametrize("after", ["snapshot", "delta"])
def test_hits_under_a_filter_are_the_whole_listing_without_the_others(
    collection: Searcher, mode: Mode, after: str
) -> None:
    if after == "delta":
        with DocumentStore.open(collection.folder) as store:
            found = list(islice(store.documents(), 4))
            again = [Document(row.id, row.text, row.metadata) for row in found]
            store.upsert(again, store.vectors([row.key for row in found]))
    wanted = parse_filter({"part": 2}, collection.fields, path="filter")
    every = SearchOptions(top_k=len(TEXTS), mode=mode, lexical_weight=0.3)
    whole = collection.search("a red cat", every)
    narrow = collection.search(
        "a red cat", SearchOptions(top_k=len(TEXTS), mode=mode, lexical_weight=0.3, filter=wanted)
    )
    kept = {hit.id: hit.score for hit in whole.hits if hit.metadata["part"] == 2}
    assert {hit.id for hit in narrow.hits} == kept.keys()
    assert narrow.total == len(TEXTS) // 4
    if mode != "hybrid":  # whose scores are taken relative to the candidates of a search
        assert {hit.id: hit.score for hit in narrow.hits} == pytest.approx(kept)


def test_a_filter_that_nothing_passes_finds_nothing_in_any_mode(collection: Searcher) -> None:
    nothing = parse_filter({"part": 99}, collection.fields, path="filter")
    for mode in ("dense", "lexical", "hybrid"):
        options = SearchOptions(mode=mode, filter=nothing)  # type: ignore[arg-type]  # literals
        found = collection.search("red cat", options)
        assert found.hits == []
        assert found.total == 0
