"""A small HTTP client of a running Lamina, on the standard library alone."""

from __future__ import annotations

import http.client
import threading
import time
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote, urlsplit

import orjson

from lamina_index.errors import EvaluationError

MAX_TOP_K = 1000
"""The most hits that one search of the service gives."""

PATIENCE_SECONDS = 60.0
"""How long one request is repeated while the service answers 429."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the service answered to one request.

    Attributes:
        url: What was asked.
        status: The HTTP status.
        body: The parsed JSON.
    """

    url: str
    status: int
    body: Any

    @property
    def problem(self) -> str | None:
        """Last part of the problem's `type`, such as `blank-text`; None for a good answer."""
        if self.status == http.client.OK:
            return None
        kind = self.body.get("type") if isinstance(self.body, dict) else None
        return str(kind).rpartition(":")[2]

    def result(self) -> Any:
        """Give the body of a good answer.

        Raises:
            EvaluationError: With the problem details, if the service refused.
        """
        if self.status == http.client.OK:
            return self.body
        details = self.body if isinstance(self.body, dict) else {}
        told = ": ".join(str(details[key]) for key in ("title", "detail") if details.get(key))
        raise EvaluationError(f"{self.url}: {self.status} {told or 'without problem details'}")


class ServiceClient:
    """JSON requests over connections that are kept open, one for each thread that asks.

    Attributes:
        url: Address of the service, without a trailing slash.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout_seconds: float = 60.0) -> None:
        """Remember where the service is; nothing is sent yet.

        Args:
            url: `http://host:port`, or https, with a path if a proxy puts one before it.
            key: Sent as a bearer token.
            timeout_seconds: Longest silence of the service within one request.

        Raises:
            EvaluationError: If the address is not one.
        """
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username:
            raise EvaluationError(
                f"{url}: expected http://HOST:PORT of a running service, such as "
                "http://127.0.0.1:7650 (a key goes into LAMINA_KEY, not into the address)"
            )
        self.url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._netloc = parts.netloc
        self._path = parts.path.rstrip("/")
        self._timeout = timeout_seconds
        self._headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._opened:
            connection.close()

    def get(self, path: str) -> Reply:
        """Send GET; waits and fails as `post` does."""
        return self._request("GET", path, None)

    def post(self, path: str, body: Any) -> Reply:
        """Send JSON; waits as told and repeats while the answer is 429, for a minute at most.

        Args:
            path: Below the service's address, such as `/v1/collections`; parts quoted.
            body: Anything that JSON can hold.

        Raises:
            EvaluationError: If the service cannot be reached or does not speak JSON.
        """
        return self._request("POST", path, orjson.dumps(body))

    def _request(self, method: str, path: str, body: bytes | None) -> Reply:
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, retry_after, content = self._exchange(method, path, body)
            if status != http.client.TOO_MANY_REQUESTS or time.monotonic() > give_up:
                break
            time.sleep(_seconds(retry_after))
        try:
            parsed = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise EvaluationError(
                f"{self.url}{path}: answered {status} without JSON; is a Lamina service there?"
            ) from error
        return Reply(self.url + path, status, parsed)

    def _exchange(
        self, method: str, path: str, body: bytes | None
    ) -> tuple[int, str | None, bytes]:
        """Send one request, once more on a new connection if the kept one had been closed."""
        try:
            try:
                return self._send(method, path, body)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self._connection().close()
                return self._send(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self._connection().close()
            raise EvaluationError(
                f"{self.url}: no answer ({error or type(error).__name__}); "
                "is `lamina serve` running there?"
            ) from error

    def _send(self, method: str, path: str, body: bytes | None) -> tuple[int, str | None, bytes]:
        connection = self._connection()
        connection.request(method, self._path + path, body, self._headers)
        with connection.getresponse() as reply:
            return reply.status, reply.getheader("Retry-After"), reply.read()

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._local.connection = kind(self._netloc, timeout=self._timeout)
            self._opened.append(self._local.connection)
        connection: http.client.HTTPConnection = self._local.connection
        return connection


def path_of(*parts: str) -> str:
    """Join path parts, each quoted whole."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _seconds(retry_after: str | None) -> float:
    """Read Retry-After in seconds, its only form that Lamina sends; 1 for anything else."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else 1.0
