"""The best candidates come in the reranker's order, the rest behind them, on every page."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina_index.corpus import Document
from lamina_index.errors import EncoderOutputError
from lamina_index.filters import parse_filter
from lamina_index.reranker import OnnxReranker, Reranked
from lamina_index.search_options import Mode, SearchOptions
from lamina_index.searcher import Searcher
from lamina_index.store import STORE_FILE

QUERY = "how to learn the old guitar"
NOUNS = ("guitar", "drums", "bread", "moon", "stocks", "cats", "river")
FILLERS = ("how", "learn", "the", "old", "new", "best", "why", "to")
COUNT, DEPTH = 60, 12


@pytest.fixture(scope="module")
def reranker(overlap_reranker: Path) -> OnnxReranker:
    return OnnxReranker.load(overlap_reranker, threads=1)


@pytest.fixture
def searcher(
    make_collection: Callable[..., Any], word_encoder: Any, reranker: OnnxReranker
) -> Iterator[Searcher]:
    """Sixty texts, of which some are equal; even ones have `kind` even."""
    made = make_collection(fields={"kind": "string"})
    rng = np.random.default_rng(3)
    texts = [" ".join([*rng.choice(FILLERS, 3), rng.choice(NOUNS)]) for _ in range(COUNT)]
    documents = [
        Document(f"d{number:02}", text, {"kind": ("even", "odd")[number % 2]})
        for number, text in enumerate(texts)
    ]
    made.store.upsert(documents, word_encoder.encode(texts, role="document").embeddings)
    with Searcher.open(made.folder, word_encoder, reranker) as opened:
        yield opened


def ids(searcher: Searcher, **options: Any) -> list[str]:
    return [hit.id for hit in searcher.search(QUERY, SearchOptions(**options)).hits]


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_candidates_are_ordered_by_the_reranker_and_the_rest_stays_behind(
    searcher: Searcher, reranker: OnnxReranker, mode: Any
) -> None:
    before = searcher.search(QUERY, SearchOptions(top_k=COUNT, mode=mode)).hits
    scores = {hit.id: reranker.score(QUERY, [hit.text]).scores[0] for hit in before[:DEPTH]}
    expected = sorted(scores, key=lambda name: (-scores[name], name))
    expected += [hit.id for hit in before[DEPTH:]]
    options = SearchOptions(top_k=COUNT, mode=mode, rerank=DEPTH)
    found = searcher.search(QUERY, options)
    assert [hit.id for hit in found.hits] == expected
    assert [hit.id for hit in before] != expected  # or nothing was shown
    assert [hit.rank for hit in found.hits] == list(range(1, len(before) + 1))
    head, tail = found.hits[:DEPTH], found.hits[DEPTH:]
    assert [hit.score for hit in head] == pytest.approx([scores[hit.id] for hit in head], abs=1e-4)
    assert [hit.scores["rerank"] for hit in head] == [hit.score for hit in head]
    assert [hit.score for hit in tail] == [hit.score for hit in before[DEPTH:]]
    assert {hit.scores["rerank"] for hit in tail} == {None}
    assert list(found.took)[-1] == "rerank"
    assert found.reranking is not None
    assert (found.reranking.candidates, found.reranking.truncated) == (DEPTH, 0)


@pytest.mark.parametrize("size", [1, 5, 7, DEPTH, 25])
def test_pages_are_cut_from_one_listing(searcher: Searcher, size: int) -> None:
    whole = ids(searcher, top_k=COUNT, rerank=DEPTH)
    assert len(set(whole)) == COUNT
    pages = [
        ids(searcher, top_k=size, offset=start, rerank=DEPTH) for start in range(0, COUNT, size)
    ]
    assert [name for page in pages for name in page] == whole


def test_a_page_behind_the_candidates_reads_none_of_them(searcher: Searcher) -> None:
    options = SearchOptions(top_k=5, offset=DEPTH, rerank=DEPTH, explain=True)
    found = searcher.search(QUERY, options)
    assert found.reranking is not None
    assert found.reranking.candidates == 0
    assert [hit.rank for hit in found.hits] == list(range(DEPTH + 1, DEPTH + 6))
    for hit in found.hits:
        assert hit.explanation is not None
        assert (hit.explanation["rerank"].score, hit.explanation["rerank"].rank) == (None, None)


@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_an_explanation_has_the_rank_before_and_after(searcher: Searcher, mode: Mode) -> None:
    plain = searcher.search(QUERY, SearchOptions(mode=mode, top_k=COUNT)).hits
    options = SearchOptions(mode=mode, top_k=DEPTH, rerank=DEPTH, explain=True)
    found = searcher.search(QUERY, options).hits
    place = {hit.id: (hit.score, hit.rank) for hit in plain}
    for hit in found:
        assert hit.explanation is not None
        before = hit.explanation[mode]
        assert (before.score, before.rank) == place[hit.id]
        assert hit.scores[mode] == before.score
        assert hit.explanation["rerank"].score == hit.score
    ranks = [hit.explanation["rerank"].rank for hit in found if hit.explanation]
    better = [sum(other.score > hit.score for other in found) for hit in found]
    assert ranks == [count + 1 for count in better]  # equal scores share a rank


def test_only_documents_that_pass_the_filter_are_candidates(searcher: Searcher) -> None:
    even = parse_filter({"kind": "even"}, searcher.fields)
    found = searcher.search(QUERY, SearchOptions(top_k=COUNT, rerank=DEPTH, filter=even))
    assert found.total == COUNT // 2
    assert {int(hit.id[1:]) % 2 for hit in found.hits} == {0}
    assert found.reranking is not None
    assert found.reranking.candidates == DEPTH


def test_min_score_stays_a_cosine(searcher: Searcher) -> None:
    plain = searcher.search(QUERY, SearchOptions(top_k=COUNT)).hits
    bound = plain[5].score
    kept = {hit.id for hit in plain if hit.score >= bound}
    assert set(ids(searcher, top_k=COUNT, rerank=DEPTH, min_score=bound)) == kept


def test_fewer_documents_than_candidates_are_all_reranked(searcher: Searcher) -> None:
    found = searcher.search(QUERY, SearchOptions(top_k=3, rerank=200))
    assert found.reranking is not None
    assert (len(found.hits), found.reranking.candidates) == (3, COUNT)


def test_equal_texts_are_read_once_and_go_by_id(
    make_collection: Callable[..., Any], word_encoder: Any, overlap_reranker: Path
) -> None:
    read: list[list[str]] = []

    class Noted(OnnxReranker):
        def score(self, query: str, texts: Sequence[str]) -> Reranked:
            read.append(list(texts))
            return super().score(query, texts)

    made = make_collection()
    for name, text in [("b", "twin"), ("c", "the twin"), ("a", "twin")]:
        rows = word_encoder.encode([text], role="document").embeddings
        made.store.upsert([Document(name, text, {})], rows)
    reranker = Noted.load(overlap_reranker, threads=1, check=False)
    with Searcher.open(made.folder, word_encoder, reranker) as searcher:
        found = searcher.search("twin", SearchOptions(rerank=10))
    assert [hit.id for hit in found.hits] == ["a", "b", "c"]
    assert [sorted(texts) for texts in read] == [["the twin", "twin"]]


def test_texts_that_were_read_in_part_are_counted(
    make_collection: Callable[..., Any], word_encoder: Any, reranker: OnnxReranker
) -> None:
    made = make_collection()
    made.put(["long-1", "long-2", "short"], np.eye(32, dtype=np.float32)[:3], "moon")
    rows = word_encoder.encode(["moon"] * 2, role="document").embeddings
    long = [Document(f"long-{n}", f"{n} " + "moon " * 40, {}) for n in (1, 2)]
    made.store.upsert(long, rows)
    with Searcher.open(made.folder, word_encoder, reranker) as searcher:
        found = searcher.search("moon", SearchOptions(rerank=10))
    assert found.reranking is not None
    assert (found.reranking.candidates, found.reranking.truncated) == (3, 2)


def test_the_transaction_has_ended_before_the_reranker_reads(
    make_collection: Callable[..., Any], word_encoder: Any, overlap_reranker: Path
) -> None:
    """A transaction left open for the time of a reranking would keep the WAL from shrinking."""
    made = make_collection()
    made.put(["a", "b"], np.eye(32, dtype=np.float32)[:2], "moon {}")
    busy = []

    class Watching(OnnxReranker):
        def score(self, query: str, texts: Sequence[str]) -> Reranked:
            rows = word_encoder.encode(["new"], role="document").embeddings
            made.store.upsert([Document("new", "new", {})], rows)
            with sqlite3.connect(made.folder / STORE_FILE) as database:
                busy.append(database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            database.close()
            return super().score(query, texts)

    reranker = Watching.load(overlap_reranker, threads=1, check=False)
    with Searcher.open(made.folder, word_encoder, reranker) as searcher:
        assert len(searcher.search("moon", SearchOptions(rerank=10)).hits) == 2
    assert busy == [0]


def test_a_score_that_is_not_finite_fails_the_search(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = np.full(1, np.nan, np.float32)
    monkeypatch.setattr(OnnxReranker, "_run_graph", lambda _, batch: nothing.repeat(len(batch)))
    with pytest.raises(EncoderOutputError, match="not finite"):
        searcher.search(QUERY, SearchOptions(rerank=DEPTH))


def test_what_cannot_be_reranked_is_refused(searcher: Searcher, word_encoder: Any) -> None:
    with pytest.raises(ValueError, match="rerank is 0, expected 1 to 200"):
        SearchOptions(rerank=0)
    with pytest.raises(ValueError, match="rerank is 201"):
        SearchOptions(rerank=201)
    with pytest.raises(ValueError, match="a vector has no words"):
        searcher.search_embedding(np.ones(32), SearchOptions(rerank=10))
    with (
        Searcher.open(searcher.folder, word_encoder) as without,
        pytest.raises(ValueError, match="opened without a reranker"),
    ):
        without.search(QUERY, SearchOptions(rerank=10))


def test_of_groups_the_best_hits_are_reranked(searcher: Searcher) -> None:
    grouped = SearchOptions(group_by="kind", top_k=2)
    before = {hit.id for hit in searcher.search(QUERY, grouped).hits}
    found = searcher.search(QUERY, replace(grouped, rerank=DEPTH)).hits
    assert {hit.id for hit in found} == before
    assert sorted(str(hit.group) for hit in found) == ["even", "odd"]
    assert [hit.rank for hit in found] == [1, 2]
    assert found[0].score >= found[1].score
    with pytest.raises(ValueError, match="rerank goes with a group_size of 1"):
        replace(grouped, group_size=2, rerank=DEPTH)


def test_what_is_folded_away_is_no_candidate(searcher: Searcher) -> None:
    folded = SearchOptions(collapse=0.7, top_k=COUNT)
    before = {hit.id for hit in searcher.search(QUERY, folded).hits}
    assert len(before) < COUNT
    found = searcher.search(QUERY, replace(folded, rerank=200))
    assert {hit.id for hit in found.hits} == before
    assert found.reranking is not None
    assert found.reranking.candidates == len(before)
