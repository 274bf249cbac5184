from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lamina_index.errors import EvaluationError
from lamina_index.service_client import ServiceClient, path_of

Answer = tuple[int, dict[str, str], Any]


class Service:
    """A real HTTP/1.1 server that gives prepared answers and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.connections = 0
        self.close_after_answer = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                service.connections += 1

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                service.asked.append(
                    (self.command, self.path, dict(self.headers), json.loads(body or "null"))
                )
                status, headers, content = service.answers.pop(0)
                encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(encoded))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(encoded)
                self.close_connection = service.close_after_answer

            do_GET = do_POST = answer  # noqa: N815 - names that http.server looks for

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    thread = threading.Thread(target=running.server.serve_forever)
    thread.start()
    yield running
    running.server.shutdown()
    thread.join()
    running.server.server_close()


def test_requests_share_one_connection_and_carry_the_key(service: Service) -> None:
    service.answers = [(200, {}, {"hits": []}), (200, {}, [1])]
    with ServiceClient(f"{service.url}/", key="secret") as client:
        assert client.post(path_of("v1", "a/b"), {"query": "é"}).result() == {"hits": []}
        assert client.get("/v1").result() == [1]
    assert service.connections == 1
    method, path, headers, body = service.asked[0]
    assert (method, path, body) == ("POST", "/v1/a%2Fb", {"query": "é"})
    assert headers["Authorization"] == "Bearer secret"


def test_429_is_waited_out_as_long_as_the_service_says(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("lamina_index.service_client.time.sleep", waits.append)
    service.answers = [(429, {"Retry-After": "3"}, {}), (429, {}, {}), (200, {}, "done")]
    with ServiceClient(service.url) as client:
        assert client.get("/").result() == "done"
    assert waits == [3.0, 1.0]


def test_429_is_not_waited_out_for_ever(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina_index.service_client.PATIENCE_SECONDS", -1.0)
    service.answers = [(429, {"Retry-After": "1"}, {"title": "Too busy"})]
    with ServiceClient(service.url) as client, pytest.raises(EvaluationError, match="429 Too busy"):
        client.get("/").result()


def test_problem_details_reach_the_user(service: Service) -> None:
    problem = {"type": "urn:lamina:problem:no-such", "title": "None", "detail": "no x here"}
    service.answers = [(404, {}, problem)]
    with ServiceClient(service.url) as client:
        reply = client.get("/v1/x")
    assert reply.problem == "no-such"
    with pytest.raises(EvaluationError, match=r"/v1/x: 404 None: no x here"):
        reply.result()


def test_a_connection_that_the_service_closed_is_opened_again(service: Service) -> None:
    service.close_after_answer = True
    service.answers = [(200, {}, 1), (200, {}, 2)]
    with ServiceClient(service.url) as client:
        assert [client.get("/").result(), client.get("/").result()] == [1, 2]
    assert service.connections == 2


def test_an_answer_that_is_not_json_names_the_address(service: Service) -> None:
    service.answers = [(200, {}, b"<html>")]
    with ServiceClient(service.url) as client, pytest.raises(EvaluationError, match="without JSON"):
        client.get("/")


def _closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_nobody_at_the_address_is_told_with_a_remedy() -> None:
    with (
        ServiceClient(f"http://127.0.0.1:{_closed_port()}") as client,
        pytest.raises(
            EvaluationError, match=r"no answer \(.*refused.*\); is `lamina serve` running"
        ),
    ):
        client.get("/livez")


@pytest.mark.parametrize("url", ["127.0.0.1:7650", "ftp://host", "http://", "http://k:v@host"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(EvaluationError, match="expected http://HOST:PORT"):
        ServiceClient(url)
