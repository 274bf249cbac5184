"""Search by words and meaning together, against both rankings written out in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from lamina_index import ranking as ranking_module
from lamina_index import words as words_module
from lamina_index.corpus import Document
from lamina_index.errors import BlankTextError
from lamina_index.filters import parse_filter
from lamina_index.fusion import competition_ranks, reciprocal_rank_fusion, score_fusion
from lamina_index.hits import LegScore
from lamina_index.search_options import SearchOptions
from lamina_index.searcher import Searcher

MakeCollection = Callable[..., Any]
Fusion = Literal["ranks", "scores"]
HYBRID = SearchOptions(mode="hybrid", lexical_weight=0.29, explain=True)
NOUNS = ("guitar", "drums", "bread", "moon", "stocks", "cats", "river")
FILLERS = ("how", "learn", "the", "old", "new", "best", "why")


def texts(count: int = 120) -> dict[str, str]:
    """Texts of which some are equal, so that there are ties in both legs."""
    rng = np.random.default_rng(5)
    return {
        f"d{number:03}": " ".join([*rng.choice(FILLERS, 2), rng.choice(NOUNS)])
        for number in range(count)
    }


@pytest.fixture(params=["Flat", "HNSW32,SQ8"])
def searcher(
    request: pytest.FixtureRequest, make_collection: MakeCollection, word_encoder: Any
) -> Any:
    made = make_collection()
    for name, text in texts().items():
        rows = word_encoder.encode([text], role="document").embeddings
        made.store.upsert([Document(name, text, {})], rows)
        if name == "d090":  # the rest is newer than the index
            made.snapshot(request.param)
    made.store.delete(["d007", "d101"])
    with Searcher.open(made.folder, word_encoder) as opened:
        yield opened


def expected(searcher: Searcher, query: str, fusion: Fusion, depth: int) -> list[tuple[str, float]]:
    """The whole listing, from both legs in full."""
    dense = searcher.search(query, SearchOptions(top_k=1000)).hits
    words = searcher.search(query, SearchOptions(mode="lexical", top_k=1000)).hits
    names = [hit.id for hit in dense]
    cosine = np.array([hit.score for hit in dense])
    found = {hit.id: hit.score for hit in words}
    bm25 = np.array([found.get(name, np.nan) for name in names])
    dense_ranks, word_ranks = competition_ranks(cosine), competition_ranks(bm25)
    near, worded = dense_ranks <= depth, word_ranks <= depth
    if fusion == "ranks":
        fused = reciprocal_rank_fusion(
            np.where(worded & ~near, np.nan, dense_ranks),
            np.where(worded, word_ranks, np.nan),
            lexical_weight=0.29,
        )
    else:
        fused = score_fusion(cosine, np.where(near | worded, bm25, np.nan), lexical_weight=0.29)
    scored = zip(names, fused.tolist(), strict=True)
    return sorted(scored, key=lambda pair: (-round(pair[1], 12), pair[0]))


@pytest.mark.parametrize("fusion", ["ranks", "scores"])
@pytest.mark.parametrize("depth", [1, 10, 100])
def test_the_listing_is_that_of_both_legs_in_full(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch, fusion: Fusion, depth: int
) -> None:
    monkeypatch.setattr(ranking_module, "LEG_DEPTH", depth)
    for query in ("learn guitar", "why the old moon", "stocks", "unknown words only"):
        hits = searcher.search(query, replace(HYBRID, fusion=fusion, top_k=1000)).hits
        whole = expected(searcher, query, fusion, depth)
        assert len(hits) == searcher.count == 118
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in whole])
        assert [hit.id for hit in hits] == [name for name, _ in whole]
        assert [hit.rank for hit in hits] == list(range(1, 119))


@pytest.mark.parametrize("fusion", ["ranks", "scores"])
@pytest.mark.parametrize("depth", [3, 20])
def test_pages_put_together_are_the_listing(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch, fusion: Fusion, depth: int
) -> None:
    monkeypatch.setattr(ranking_module, "LEG_DEPTH", depth)
    options = replace(HYBRID, fusion=fusion)
    whole = searcher.search("learn the drums", replace(options, top_k=1000)).hits
    paged = [
        hit
        for offset in range(0, 130, 9)
        for hit in searcher.search("learn the drums", replace(options, top_k=9, offset=offset)).hits
    ]
    assert [(hit.id, hit.score, hit.rank) for hit in paged] == [
        (hit.id, hit.score, hit.rank) for hit in whole
    ]


@pytest.mark.parametrize("fusion", ["ranks", "scores"])
def test_a_row_that_words_found_low_down_leaves_no_gap(
    make_collection: MakeCollection,
    word_encoder: Any,
    monkeypatch: pytest.MonkeyPatch,
    fusion: Fusion,
) -> None:
    monkeypatch.setattr(ranking_module, "LEG_DEPTH", 20)
    made = make_collection()
    rows = np.random.default_rng(1).standard_normal((120, 32)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # of no meaning, so the legs disagree
    made.store.upsert([Document(name, text, {}) for name, text in texts().items()], rows)
    made.snapshot()
    # so little weight that a row of the words' best may come after all others
    options = replace(HYBRID, fusion=fusion, lexical_weight=0.01)
    with Searcher.open(made.folder, word_encoder) as opened:
        whole = opened.search("learn the drums", replace(options, top_k=1000)).hits
        for top_k in (1, 4, 10, 30, 60, 100):
            hits = opened.search("learn the drums", replace(options, top_k=top_k)).hits
            assert [hit.id for hit in hits] == [hit.id for hit in whole[:top_k]]


def test_each_hit_tells_the_score_and_rank_of_each_leg(searcher: Searcher) -> None:
    dense = {hit.id: hit for hit in searcher.search("learn guitar", SearchOptions(top_k=1000)).hits}
    lexical = searcher.search("learn guitar", SearchOptions(mode="lexical", top_k=1000)).hits
    bm25 = {hit.id: hit.score for hit in lexical}
    for hit in searcher.search("learn guitar", replace(HYBRID, top_k=50)).hits:
        assert hit.explanation is not None
        assert hit.scores["dense"] == dense[hit.id].score
        assert hit.explanation["dense"].score == dense[hit.id].score
        better = [each for each in dense.values() if each.score > dense[hit.id].score]
        assert hit.explanation["dense"].rank == len(better) + 1
        if hit.id in bm25:
            assert hit.scores["lexical"] == pytest.approx(bm25[hit.id])
            better = [each for each in bm25.values() if each > bm25[hit.id]]
            assert hit.explanation["lexical"].rank == len(better) + 1
        else:
            assert (hit.scores["lexical"], hit.explanation["lexical"].rank) == (None, None)


def test_a_hit_of_one_leg_alone_has_the_other_legs_score(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking_module, "LEG_DEPTH", 1)
    words = {
        hit.id: hit.score
        for hit in searcher.search("old moon", SearchOptions(mode="lexical", top_k=1000)).hits
    }
    cosine = {
        hit.id: hit.score for hit in searcher.search("old moon", SearchOptions(top_k=1000)).hits
    }
    for hit in searcher.search("old moon", HYBRID).hits:
        assert hit.explanation is not None
        legs = hit.explanation
        assert legs["dense"].score == cosine[hit.id]
        if legs["dense"].rank == 1:
            assert legs["lexical"].score == pytest.approx(words[hit.id])


def test_a_single_leg_explains_itself(searcher: Searcher) -> None:
    for mode in ("dense", "lexical"):
        hits = searcher.search("old moon", SearchOptions(mode=mode, explain=True)).hits
        for hit in hits:
            assert hit.explanation is not None
            assert set(hit.explanation) == set(hit.scores) == {mode}
            assert (hit.explanation[mode].score, hit.explanation[mode].rank) == (
                hit.score,
                hit.rank,
            )
    assert searcher.search("old moon").hits[0].explanation is None


def test_words_have_their_part_where_a_filter_leaves_the_rarest_out(
    make_collection: MakeCollection, word_encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "BUDGET_ROWS", (6, 6))
    made = make_collection(fields={"kind": "string"})
    given = {f"g{n}": "old guitar" for n in range(5)} | {f"m{n}": "the moon" for n in range(9)}
    given |= {"m9": "moon " * 3, "n": "stocks"}
    rows = word_encoder.encode(list(given.values()), role="document").embeddings
    made.store.upsert([Document(n, text, {"kind": n[0]}) for n, text in given.items()], rows)
    made.snapshot()
    with Searcher.open(made.folder, word_encoder) as opened:
        others = parse_filter({"kind": {"$ne": "g"}}, opened.fields, path="filter")
        alone = opened.search("moon", SearchOptions(mode="lexical", filter=others, top_k=20)).hits
        for fusion in ("ranks", "scores"):
            options = replace(HYBRID, fusion=fusion, filter=others, top_k=20)  # type: ignore[arg-type] # literals
            hits = opened.search("guitar moon", options).hits
            assert len(hits) == 11
            legs = {hit.id: (hit.explanation or {})["lexical"] for hit in hits}
            assert legs.pop("n") == LegScore(None, None)
            # "guitar" is in none of these texts, so they have what "moon" gives them
            assert {name: leg.score for name, leg in legs.items()} == {
                hit.id: pytest.approx(hit.score) for hit in alone
            }
            assert {name for name, leg in legs.items() if leg.rank == 1} == {"m9"}
            assert {leg.rank for leg in legs.values()} == {1, 2}
            # without the filter the rarer word finds some, and the other gives no ranks
            hits = opened.search("guitar moon", replace(options, filter=None)).hits
            every = {hit.id: (hit.explanation or {})["lexical"] for hit in hits}
            assert {name for name, leg in every.items() if leg.rank} == {f"g{n}" for n in range(5)}
            assert {name: every[name].score for name in legs} == {
                hit.id: pytest.approx(hit.score) for hit in alone
            }


def test_highlights_come_in_every_mode_and_only_if_asked_for(searcher: Searcher) -> None:
    for mode in ("dense", "lexical", "hybrid"):
        hit = searcher.search("MOON", SearchOptions(mode=mode, highlight=True)).hits[0]
        assert hit.highlights == [(len(hit.text) - 4, len(hit.text))]
        assert searcher.search("moon", SearchOptions(mode=mode)).hits[0].highlights is None


def test_nothing_replaced_or_deleted_is_found(searcher: Searcher, make_collection: Any) -> None:
    for mode in ("lexical", "hybrid"):
        options = SearchOptions(mode=mode, top_k=1000)
        for noun in NOUNS:
            names = {hit.id for hit in searcher.search(noun, options).hits}
            assert not names & {"d007", "d101"}


def test_blank_queries_and_misplaced_options_are_refused(searcher: Searcher) -> None:
    with pytest.raises(BlankTextError):
        searcher.search("  ", HYBRID)
    with pytest.raises(ValueError, match="min_score is a cosine"):
        SearchOptions(mode="hybrid", min_score=0.5)
    for weight in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="lexical_weight"):
            SearchOptions(lexical_weight=weight)
    for options in (HYBRID, SearchOptions(mode="lexical"), SearchOptions(highlight=True)):
        with pytest.raises(ValueError, match="a vector has no words"):
            searcher.search_embedding(np.ones(32), options)
