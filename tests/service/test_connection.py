"""What a client may do to a connection: heads, silence, and how many it opens."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from lamina_service.connection import MAX_HEAD_BYTES
from replies import wait_for

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/collections/small/%s HTTP/1.1\r\nHost: localhost\r\n"
SEARCH = POST % b"search" + b"Content-Type: application/json\r\n"
STREAM = POST % b"documents" + (
    b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def _read(connection: socket.socket) -> bytes:
    """Read all until the service closes the connection."""
    read = b""
    connection.settimeout(30)
    while part := connection.recv(65_536):
        read += part
    return read


def _problem(reply: bytes) -> tuple[int, Any]:
    """Take a problem apart that ends its connection: status and document."""
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    assert int(headers["content-length"]) == len(body)
    return int(first.split()[1]), json.loads(body)


def _counted(app: Any, reason: str) -> bool:
    return f'lamina_rejected_total{{reason="{reason}"}}' in app.client.get("/metrics").text


def _head(size: int) -> bytes:
    """Write a head of so many bytes."""
    begun = LIVEZ + b"Connection: close\r\nX-Long: "
    return begun + b"x" * (size - len(begun) - 4) + b"\r\n\r\n"


def test_a_head_of_just_the_limit_is_answered_and_a_longer_one_refused(service: Any) -> None:
    with socket.create_connection(service.address) as connection:
        connection.sendall(_head(MAX_HEAD_BYTES))
        assert _read(connection).startswith(b"HTTP/1.1 200 ")
    with socket.create_connection(service.address) as connection:
        connection.sendall(_head(MAX_HEAD_BYTES + 1)[:MAX_HEAD_BYTES])
        status, problem = _problem(_read(connection))
    assert (status, problem["type"]) == (431, "urn:lamina:problem:head-too-large")
    assert f"{MAX_HEAD_BYTES} bytes" in problem["detail"]
    assert _counted(service, "head-too-large")


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(LIVEZ + b"X-Long: ", id="header"),
        pytest.param(b"GET /", id="address"),
        pytest.param(b"\r\n" * 9, id="blank lines"),
        pytest.param(SEARCH + b"Transfer-Encoding: chunked\r\n\r\n1;", id="chunk extension"),
        pytest.param(
            SEARCH + b"Transfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\nX-Long: ", id="trailer"
        ),
    ],
)
def test_what_never_ends_is_cut_off(service: Any, begun: bytes) -> None:
    endless = b"\r\n" * 50_000 if begun.endswith(b"\n") else b"x" * 100_000
    sent = 0
    with socket.create_connection(service.address) as connection:
        connection.settimeout(30)
        connection.sendall(begun)
        with suppress(ConnectionResetError, BrokenPipeError):
            while sent < 100e6:  # far more than the buffers of both sides hold
                connection.sendall(endless)
                sent += len(endless)
    assert sent < 100e6
    assert service.client.get("/livez").status_code == 200


def test_bytes_that_are_no_http_are_told_by_a_problem(service: Any) -> None:
    with socket.create_connection(service.address) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # the start of TLS
        status, problem = _problem(_read(connection))
    assert (status, problem["type"]) == (400, "urn:lamina:problem:malformed-request")
    assert "without TLS" in problem["detail"]


@pytest.fixture
def impatient(start: Any) -> Any:
    """A service whose clients have half a second."""
    return start(client_seconds=0.5)


def test_a_client_that_sends_nothing_is_let_go(impatient: Any) -> None:
    with socket.create_connection(impatient.address) as connection:
        assert _read(connection) == b""


def test_a_head_that_trickles_in_is_given_up(impatient: Any) -> None:
    with socket.create_connection(impatient.address) as connection:
        connection.sendall(LIVEZ)
        connection.settimeout(0.1)
        reply = b""
        for _ in range(300):
            connection.sendall(b"X-Slow: header\r\n")
            try:
                reply = connection.recv(65_536)
                break
            except TimeoutError:
                continue
    status, problem = _problem(reply)
    assert (status, problem["type"]) == (408, "urn:lamina:problem:request-timeout")
    assert _counted(impatient, "request-timeout")


def test_the_second_head_of_a_connection_has_the_same_time(impatient: Any) -> None:
    with socket.create_connection(impatient.address) as connection:
        connection.sendall(LIVEZ + b"\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(LIVEZ)
        assert _problem(_read(connection))[0] == 408


@pytest.mark.parametrize("length", [b"Content-Length: 17", b"Transfer-Encoding: chunked"])
def test_a_body_that_stays_away_is_given_up(impatient: Any, length: bytes) -> None:
    with socket.create_connection(impatient.address) as connection:
        connection.sendall(SEARCH + length + b"\r\n\r\n")
        status, problem = _problem(_read(connection))
    assert (status, problem["type"]) == (408, "urn:lamina:problem:request-timeout")
    assert "0.5 seconds" in problem["detail"]


def test_a_stream_that_falls_silent_tells_what_was_stored(
    running: Callable[..., AbstractContextManager[Any]], folder: Path
) -> None:
    lines = b"".join(b'{"id": "n%d", "text": "text"}\n' % number for number in range(130))
    with (
        running(data=folder, client_seconds=0.5, threads=1) as app,
        socket.create_connection(app.address) as connection,
    ):
        connection.sendall(STREAM + b"%x\r\n%s\r\n" % (len(lines), lines))
        status, problem = _problem(_read(connection))
        assert app.client.get("/v1/collections/small").json()["count"] == 14 + 128
    assert status == 408
    assert problem["stored"] == {"inserted": 128, "replaced": 0, "lines": 128}


def test_a_slow_but_living_stream_goes_on(
    running: Callable[..., AbstractContextManager[Any]], folder: Path
) -> None:
    with (
        running(data=folder, client_seconds=2, threads=1) as app,
        socket.create_connection(app.address) as connection,
    ):
        connection.sendall(STREAM)
        begun = time.monotonic()
        number = 0
        while time.monotonic() - begun < 5:  # more than twice what a client may be silent
            line = b'{"id": "n%d", "text": "text"}\n' % number
            connection.sendall(b"%x\r\n%s\r\n" % (len(line), line))
            number += 1
            time.sleep(0.1)
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert app.client.get("/v1/collections/small").json()["count"] == 14 + number


def test_a_service_that_is_slow_itself_does_not_blame_the_client(
    start: Any, held_encoder: Any
) -> None:
    app = start(client_seconds=0.2)
    body = b'{"query": "cats"}'
    with socket.create_connection(app.address) as connection:
        connection.sendall(SEARCH + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert held_encoder.entered.wait(30)
        time.sleep(1)
        held_encoder.gate.set()
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def test_a_reply_that_is_not_taken_is_given_up(impatient: Any) -> None:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(impatient.address) as connection:
        connection.sendall(ask * 300)  # some 30 MB of replies, more than all buffers hold
        own = connection.getsockname()
        wait_for(lambda: own in impatient.peers)
        wait_for(lambda: own not in impatient.peers)


def test_one_connection_too_many_takes_the_place_of_what_has_waited_longest(start: Any) -> None:
    app = start(max_connections=4)
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(app.address)) for _ in range(20)]
        assert _read(held[0]) == b""
        held[19].sendall(LIVEZ + b"\r\n")
        assert held[19].recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert len(app.peers) <= 4


def test_while_all_connections_have_requests_in_hand_one_more_is_told_so(
    start: Any, held_encoder: Any
) -> None:
    app = start(max_connections=3)
    app.client.get("/livez", headers={"Connection": "close"})
    wait_for(lambda: not app.peers)
    body = b'{"query": "cats"}'
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(app.address)) for _ in range(3)]
        for connection in held:
            connection.sendall(SEARCH + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for(lambda: app.service.searches.depth == 3)
        with socket.create_connection(app.address) as connection:
            status, problem = _problem(_read(connection))
        assert (status, problem["type"]) == (503, "urn:lamina:problem:connections-full")
        held_encoder.gate.set()
        for connection in held:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
    assert _counted(app, "connections-full")
