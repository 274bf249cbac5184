"""A service with a reranker: off unless asked for, bounded, and no burden on other searches."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lamina_index.errors import EncoderLoadError
from lamina_index.reranker import OnnxReranker, Reranked
from lamina_service.metrics import Metrics
from lamina_service.service import Service
from lamina_service.settings import Settings

SEARCH = "/v1/collections/small/search"
BATCH = f"{SEARCH}/batch"
QUERY = "the moon and the sun"
"""Shares four of its tokens with the moon's text (each `the` twice), two with the sun's."""


def refused(reply: Any) -> dict[str, str]:
    assert reply.status_code == 422, reply.text
    (error,) = reply.json()["errors"]
    return error


def test_the_best_hits_come_in_the_rerankers_order(
    reranking_service: Any, overlap_reranker: Path
) -> None:
    plain = reranking_service.search(QUERY, top_k=14).json()
    reply = reranking_service.search(QUERY, top_k=14, rerank=6, explain=True)
    found = reply.json()
    scorer = OnnxReranker.load(overlap_reranker, threads=1)
    texts = [hit["text"] for hit in plain["hits"]]
    scores = dict(zip(texts, scorer.score(QUERY, texts).scores.tolist(), strict=True))
    head, tail = found["hits"][:6], found["hits"][6:]
    assert {hit["id"] for hit in head} == {hit["id"] for hit in plain["hits"][:6]}
    assert [hit["score"] for hit in head] == sorted((scores[h["text"]] for h in head), reverse=True)
    assert [hit["id"] for hit in tail] == [hit["id"] for hit in plain["hits"][6:]]
    assert [hit["rank"] for hit in found["hits"]] == list(range(1, 15))
    assert found["reranking"] == {"candidates": 6, "truncated": 0}
    before = {hit["id"]: hit for hit in plain["hits"]}
    for hit in head:
        first = before[hit["id"]]
        rank = 1 + sum(other["score"] > hit["score"] for other in head)  # equal scores share one
        assert hit["scores"] == {"dense": first["score"], "rerank": hit["score"]}
        assert hit["explanation"] == {
            "dense": {"score": first["score"], "rank": first["rank"]},
            "rerank": {"score": hit["score"], "rank": rank},
        }
    assert {hit["scores"]["rerank"] for hit in tail} == {None}


def test_its_time_is_told_in_the_body_the_header_and_the_metrics(
    start: Any, overlap_reranker: Path
) -> None:
    started = start(reranker=overlap_reranker)
    started.search(QUERY)
    reply = started.search(QUERY, rerank=6)
    took = reply.json()["took"]
    assert list(took) == ["queue", "encode", "search", "fetch", "rerank", "total"]
    assert 0 < took["rerank"] <= took["total"]
    assert f"rerank;dur={took['rerank']}" in reply.headers["server-timing"]
    assert 'lamina_stage_seconds_count{stage="rerank"} 1.0' in started.client.get("/metrics").text


def test_it_is_off_unless_asked_for(reranking_service: Any) -> None:
    reply = reranking_service.search(QUERY)
    assert "reranking" not in reply.json()
    assert "rerank" not in reply.json()["took"]
    assert "rerank" not in reply.headers["server-timing"]
    assert [list(hit["scores"]) for hit in reply.json()["hits"]] == [["dense"]] * 10
    assert reranking_service.search(QUERY, rerank=None).json()["hits"] == reply.json()["hits"]


def test_pages_fit_together_also_across_the_last_candidate(reranking_service: Any) -> None:
    whole = reranking_service.search(QUERY, top_k=14, rerank=5).json()["hits"]
    pages = [
        reranking_service.search(QUERY, top_k=3, offset=n, rerank=5).json() for n in range(0, 14, 3)
    ]
    assert [hit for page in pages for hit in page["hits"]] == whole
    assert [page["reranking"]["candidates"] for page in pages] == [5, 5, 0, 0, 0]


def test_a_link_and_a_batch_take_it_too(reranking_service: Any) -> None:
    expected = reranking_service.search(QUERY, rerank=6).json()["hits"]
    by_link = reranking_service.client.get(SEARCH, params={"q": QUERY, "rerank": "6"})
    assert by_link.json()["hits"] == expected
    searches = [{"query": QUERY}, {"query": QUERY, "rerank": 6}]
    plain, reranked = reranking_service.client.post(BATCH, json={"searches": searches}).json()[
        "results"
    ]
    assert reranked["hits"] == expected
    assert "reranking" not in plain


def test_words_are_reranked_without_the_encoder_and_hybrid_tells_what_was_fused(
    reranking_service: Any,
) -> None:
    words = reranking_service.search(QUERY, mode="lexical", rerank=6).json()
    assert words["token_count"] == 0
    assert list(words["hits"][0]["scores"]) == ["lexical", "rerank"]
    hybrid = reranking_service.search(QUERY, mode="hybrid", rerank=6, explain=True).json()["hits"][
        0
    ]
    assert list(hybrid["scores"]) == ["dense", "lexical", "hybrid", "rerank"]
    assert list(hybrid["explanation"]) == list(hybrid["scores"])


def test_info_tells_which_reranker_runs(reranking_service: Any, service: Any) -> None:
    found = reranking_service.client.get("/info").json()["reranker"]
    assert (found["name"], found["precision"], found["max_tokens"]) == ("overlap", "fp32", 32)
    assert (found["max_rerank"], found["provider"]) == (200, "CPUExecutionProvider")
    assert service.client.get("/info").json()["reranker"] is None


def test_without_a_reranker_the_remedy_is_told(service: Any) -> None:
    error = refused(service.search(QUERY, rerank=10))
    assert error["field"] == "rerank"
    assert "--reranker FOLDER" in error["message"]
    batch = service.client.post(
        BATCH, json={"searches": [{"query": "a"}, {"query": "b", "rerank": 1}]}
    )
    assert refused(batch)["field"] == "searches[1].rerank"


@pytest.mark.parametrize("depth", [0, 201, -1, "10", 1.5, True])
def test_a_depth_out_of_range_is_refused(reranking_service: Any, depth: Any) -> None:
    assert refused(reranking_service.search(QUERY, rerank=depth)) == {
        "field": "rerank",
        "message": "expected an integer from 1 to 200",
    }


def test_an_operator_may_allow_less(start: Any, overlap_reranker: Path) -> None:
    started = start(reranker=overlap_reranker, max_rerank=20)
    assert started.search(QUERY, rerank=20).status_code == 200
    error = refused(started.search(QUERY, rerank=21))
    assert error == {"field": "rerank", "message": "21 candidates, expected at most 20"}


def test_a_vector_has_no_words_to_read(reranking_service: Any) -> None:
    reply = reranking_service.client.post(SEARCH, json={"vector": [1.0] * 384, "rerank": 5})
    assert "a vector has no words" in refused(reply)["message"]


def test_a_batch_is_bounded_in_what_it_reranks(reranking_service: Any) -> None:
    searches = [{"query": QUERY, "rerank": 200}] * 6
    error = refused(reranking_service.client.post(BATCH, json={"searches": searches}))
    assert "their rerank add up to 1200, expected at most 1000" in error["message"]


def test_a_reranker_that_is_not_there_keeps_the_service_from_starting(
    data: Path, tmp_path: Path
) -> None:
    with pytest.raises(EncoderLoadError, match=r"no reranker\.json there"):
        Service.open(Settings(data=data, reranker=tmp_path), Metrics())


class Gates:
    """Rerankers wait until the gate of their query is opened."""

    def __init__(self) -> None:
        self._entered: dict[str, threading.Event] = {}
        self._open: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def _event(self, events: dict[str, threading.Event], query: str) -> threading.Event:
        with self._lock:
            return events.setdefault(query, threading.Event())

    def hold(self, query: str) -> None:
        self._event(self._entered, query).set()
        assert self._event(self._open, query).wait(60)

    def wait_for(self, query: str) -> None:
        assert self._event(self._entered, query).wait(60)

    def open(self, query: str) -> None:
        self._event(self._open, query).set()


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Gates:
    gates = Gates()
    score = OnnxReranker.score

    def held(self: OnnxReranker, query: str, texts: Sequence[str]) -> Reranked:
        gates.hold(query)
        return score(self, query, texts)

    monkeypatch.setattr(OnnxReranker, "check_probes", lambda self: None)
    monkeypatch.setattr(OnnxReranker, "score", held)
    return gates


def test_what_a_reranker_reads_counts_as_waiting_work(
    start: Any, overlap_reranker: Path, gates: Gates
) -> None:
    started = start(reranker=overlap_reranker, queue_size=20)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(started.search, QUERY, rerank=30)  # admitted, since nothing waits
        gates.wait_for(QUERY)
        assert started.client.get("/info").json()["queue"] == {"depth": 31, "capacity": 20}
        full = started.search(QUERY)
        assert full.status_code == 429
        assert full.json()["type"].endswith("queue-full")
        gates.open(QUERY)
        assert first.result().status_code == 200
    assert started.client.get("/info").json()["queue"]["depth"] == 0
    assert started.search(QUERY).status_code == 200


def test_no_other_search_is_taken_up_with_one_that_is_reranked(
    start: Any, overlap_reranker: Path, gates: Gates
) -> None:
    """Else it would wait for the reranker, while another thread is idle."""
    started = start(reranker=overlap_reranker, threads=2)
    with ThreadPoolExecutor() as pool:
        for query in ("one", "two"):
            pool.submit(started.search, query, rerank=10)
            gates.wait_for(query)
        waiting = []
        for query, more, depth in ((QUERY, {}, 23), ("three", {"rerank": 10}, 34), (QUERY, {}, 35)):
            waiting.append(pool.submit(started.search, query, **more))
            while started.service.searches.depth < depth:
                time.sleep(0.01)
        before, third, after = waiting
        assert started.client.get("/livez").status_code == 200  # the event loop is free
        gates.open("one")
        gates.wait_for("three")  # on the thread that became free
        gates.open("two")
        assert before.result(timeout=20).status_code == 200
        assert after.result(timeout=20).status_code == 200
        assert not third.done()
        gates.open("three")
        assert third.result().status_code == 200
