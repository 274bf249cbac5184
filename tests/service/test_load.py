"""Too much, too large, broken off and broken: the service refuses, says so and stays up."""

import random
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from lamina_index.encoder import Encoded, OnnxEncoder
from lamina_index.errors import EncoderOutputError
from lamina_service.search_schemas import SearchRequest
from lamina_service.searching import Answer, SearchJob, answer_together
from replies import wait_for

HEAD = b"POST /v1/collections/small/search HTTP/1.1\r\nHost: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"


def _metric(started: Any, sample: str) -> float:
    for line in started.client.get("/metrics").text.splitlines():
        if line.startswith(sample + " "):
            return float(line.rpartition(" ")[2])
    return 0.0


def test_health_answers_while_the_encoder_is_stuck(start: Any, held_encoder: Any) -> None:
    started = start(queue_size=8)
    with ThreadPoolExecutor(4) as pool:
        stuck = [pool.submit(started.search, "cats") for _ in range(4)]
        assert held_encoder.entered.wait(10)
        wait_for(lambda: started.service.searches.depth == 4)
        for path in (
            "/livez",
            "/readyz",
            "/info",
            "/metrics",
            "/v1/collections/small/documents/cats",
        ):
            assert started.client.get(path).status_code == 200, path
        assert not any(future.done() for future in stuck)
        held_encoder.gate.set()
        assert {future.result().status_code for future in stuck} == {200}


def test_a_full_queue_answers_429_until_there_is_room(start: Any, held_encoder: Any) -> None:
    started = start(queue_size=2)
    with ThreadPoolExecutor(2) as pool:
        admitted = [pool.submit(started.search, "cats") for _ in range(2)]
        wait_for(lambda: started.service.searches.depth == 2)
        for path, body in [
            ("/v1/collections/small/search", {"query": "dogs"}),
            ("/v1/embeddings", {"input": "dogs"}),
        ]:
            refused = started.client.post(path, json=body)
            assert refused.status_code == 429
            assert refused.json()["type"] == "urn:lamina:problem:queue-full"
            assert int(refused.headers["retry-after"]) >= 1
        assert _metric(started, 'lamina_rejected_total{reason="queue-full"}') == 2
        assert _metric(started, "lamina_queue_depth") == 2
        held_encoder.gate.set()
        assert {future.result().status_code for future in admitted} == {200}
    assert started.search("dogs").status_code == 200
    assert _metric(started, "lamina_queue_depth") == 0


def test_a_full_queue_counts_every_text_to_embed(start: Any, held_encoder: Any) -> None:
    started = start(queue_size=21)
    with ThreadPoolExecutor(2) as pool:
        for texts, depth in ((["cats"] * 20, 20), (["dogs"], 21)):
            pool.submit(started.client.post, "/v1/embeddings", json={"input": texts})
            wait_for(lambda depth=depth: started.service.searches.depth == depth)
        assert started.search("cats").status_code == 429
        assert started.client.get("/info").json()["queue"] == {"depth": 21, "capacity": 21}
        held_encoder.gate.set()
    assert _metric(started, "lamina_queue_depth") == 0


def test_clients_that_go_away_leave_the_queue_empty_and_no_error(
    start: Any, held_encoder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    started = start(queue_size=50)
    chance = random.Random(7)
    body = b'{"query": "cats"}'
    request = HEAD + JSON + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    held_encoder.gate.set()
    for number in range(200):
        if number % 20 == 0:  # some meet a busy encoder, some a free one
            held_encoder.gate.set() if number % 40 else held_encoder.gate.clear()
        with socket.create_connection(started.address) as connection:
            connection.sendall(request[: chance.randrange(1, len(request) + 1)])
    held_encoder.gate.set()
    wait_for(lambda: started.service.searches.depth == 0)
    assert started.search("cats", top_k=1).json()["hits"][0]["id"] == "cats"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def _read_reply(connection: socket.socket) -> bytes:
    reply = b""
    while part := connection.recv(65_536):
        reply += part
    return reply


def test_a_body_declared_too_long_is_refused_before_it_is_sent(start: Any) -> None:
    started = start(max_body_bytes=4096)
    with socket.create_connection(started.address) as connection:
        connection.sendall(HEAD + JSON + b"Content-Length: 4097\r\n\r\n")
        reply = _read_reply(connection)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"urn:lamina:problem:body-too-large" in reply
    assert b"connection: close" in reply.lower()


def test_a_body_of_unknown_length_is_refused_at_the_limit(start: Any) -> None:
    started = start(max_body_bytes=4096)
    with socket.create_connection(started.address) as connection:
        connection.sendall(HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"800\r\n" + b" " * 2048 + b"\r\n")
        connection.sendall(b"801\r\n" + b" " * 2049 + b"\r\n")
        reply = _read_reply(connection)  # the last chunk was never sent
    assert reply.startswith(b"HTTP/1.1 413 ")


def test_a_body_of_just_the_limit_is_taken(start: Any) -> None:
    started = start(max_body_bytes=4096)
    body = b'{"query": "cats"}'
    reply = started.client.post(
        "/v1/collections/small/search",
        content=body + b" " * (4096 - len(body)),
        headers={"Content-Type": "application/json"},
    )
    assert reply.status_code == 200


class _BrokenEncoder:
    """The bundled encoder, which fails on any text that says so."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode(self, texts: list[str], *, role: Any) -> Encoded:
        if any("unforeseen" in text for text in texts):
            raise RuntimeError("secret path /etc/shadow")
        broken = tuple(place for place, text in enumerate(texts) if "NaN" in text)
        if broken:
            raise EncoderOutputError("the graph returned NaN", broken)
        return self._encoder.encode(texts, role=role)

    def close(self) -> None:
        """The session's encoder stays open."""


@pytest.fixture
def broken(start: Any, default_encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(OnnxEncoder, "load", lambda *_, **__: _BrokenEncoder(default_encoder))
    return start()


def test_a_vector_that_is_not_finite_is_a_typed_error_that_names_the_text(broken: Any) -> None:
    texts = ["good"] * 5 + ["NaN"] + ["good"]
    failed = broken.client.post("/v1/embeddings", json={"input": texts})
    assert failed.status_code == 500
    problem = failed.json()
    assert problem["type"] == "urn:lamina:problem:encoder-output"
    assert problem["items"] == [5]
    assert problem["detail"].startswith("input[5]: ")
    assert broken.search("NaN").json()["type"] == "urn:lamina:problem:encoder-output"
    assert _metric(broken, 'lamina_rejected_total{reason="encoder-output"}') == 2
    assert broken.search("cats").status_code == 200


def test_an_unforeseen_error_tells_the_client_nothing_but_where_to_look(
    broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failed = broken.search("unforeseen")
    assert failed.status_code == 500
    assert failed.json()["type"] == "urn:lamina:problem:internal"
    assert "shadow" not in failed.text
    assert failed.headers["x-request-id"] in caplog.text
    assert "secret path" in caplog.text
    route = "/v1/collections/{collection}/search"
    sample = f'lamina_requests_total{{method="POST",route="{route}",status="500"}}'
    assert _metric(broken, sample) == 1
    assert _metric(broken, 'lamina_rejected_total{reason="internal"}') == 1
    assert broken.search("cats").status_code == 200


@pytest.mark.parametrize(
    ("poison", "kind"), [("NaN", EncoderOutputError), ("unforeseen", RuntimeError)]
)
def test_a_query_that_the_encoder_fails_on_does_not_fail_those_encoded_with_it(
    broken: Any, poison: str, kind: type[Exception]
) -> None:
    jobs = [
        SearchJob.checked(broken.service, "small", SearchRequest(query=query))
        for query in ("cats", poison, "dogs")
    ]
    first, failed, last = answer_together(jobs)
    assert isinstance(first, Answer)
    assert isinstance(last, Answer)
    assert first.body != last.body
    assert isinstance(failed, kind)


def test_a_reply_carries_the_requests_id_or_a_new_one(service: Any) -> None:
    given = service.client.get("/livez", headers={"X-Request-ID": "trace-1"})
    assert given.headers["x-request-id"] == "trace-1"
    made = {service.client.get("/livez").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    unfit = service.client.get("/livez", headers={"X-Request-ID": "x" * 129})
    assert len(unfit.headers["x-request-id"]) == 16


def test_many_clients_at_once_are_all_answered(start: Any) -> None:
    started = start(queue_size=1000, threads=2)
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda number: started.search(f"number {number}"), range(300)))
    assert {reply.status_code for reply in replies} == {200}
    assert all(np.isfinite(reply.json()["hits"][0]["score"]) for reply in replies)
