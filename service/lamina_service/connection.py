"""Connections with bounds: on a request's head, on a client's silence, and on how many are open."""

from __future__ import annotations

import asyncio
import resource
import secrets
from dataclasses import dataclass, field
from typing import Any, Self

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from lamina_index.errors import LaminaError
from lamina_service.errors import (
    ConnectionsFullError,
    HeadTooLargeError,
    MalformedRequestError,
    RequestTimeoutError,
    headers_of,
    problem_of,
    problem_response,
)
from lamina_service.metrics import Metrics
from lamina_service.settings import Settings

MAX_HEAD_BYTES = 64 * 1024
STATE = "connections"
"""Where the application hands its `Connections` over, in the state of its lifespan."""

_LOOKS = 4
"""How often a connection is looked at within the time that its client has."""


@dataclass(frozen=True, slots=True)
class Connections:
    """What a worker grants its clients, and which of them keep it waiting.

    Attributes:
        client_seconds: For a request's whole head, and for taking in any more of a reply.
        max_open: Connections.
        metrics: Counts what is refused.
        waiting: Those whose client is to send a head, and since when; the longest waiting first.
    """

    client_seconds: float
    max_open: int
    metrics: Metrics
    waiting: dict[Connection, float] = field(default_factory=dict)

    @classmethod
    def within(cls, settings: Settings, metrics: Metrics) -> Self:
        """Read the settings; half of the files that the process may open stay for collections."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        max_open = settings.max_connections
        if files != resource.RLIM_INFINITY:
            max_open = max(1, min(max_open, files // 2))
        return cls(settings.client_seconds, max_open, metrics)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, which by itself bounds neither a head nor how long it waits for one.

    A client that is too slow or sends too much is told so where it can take a reply, and the
    connection is closed. One too many takes the place of the one that has waited longest for its
    next request. How long a body may stay away is for the application to say, which knows whether
    it waits for it: see `Edge`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all: Connections = app_state[STATE]
        self._unused_bytes = 0
        """Received since the parser last gave a whole head, a piece of body or the end of one."""
        self._unsent_bytes = 0
        self._took_at = 0.0
        """When the client last took something of a reply, or there was none to take."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        super().connection_made(transport)
        self._all.waiting[self] = self.loop.time()
        self._next_look = self.loop.call_soon(self._look)
        if len(self.connections) > self._all.max_open:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        self._all.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            room = MAX_HEAD_BYTES - self._unused_bytes
            self._unused_bytes += len(data[:room])
            super().data_received(data[:room])
            data = data[room:]
            if self._unused_bytes == MAX_HEAD_BYTES:
                self._refuse(
                    HeadTooLargeError(
                        f"the request's head is longer than {MAX_HEAD_BYTES} bytes; send fewer or "
                        "shorter headers, and a long query in the body of a POST"
                    )
                )

    def on_headers_complete(self) -> None:
        self._unused_bytes = 0
        self._all.waiting.pop(self, None)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unused_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:  # no request that was sent ahead is in hand
            self._all.waiting[self] = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        self._refuse(MalformedRequestError(f"{msg} Send HTTP/1.1, without TLS"))

    def _look(self) -> None:
        """Give up on a client that sends no whole head or takes no reply in."""
        now, seconds = self.loop.time(), self._all.client_seconds
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent_bytes or not unsent:
            self._unsent_bytes, self._took_at = unsent, now
        if now - self._took_at > seconds:
            self.transport.abort()
        elif now - self._all.waiting.get(self, now) > seconds:
            if self._unused_bytes:
                self._refuse(RequestTimeoutError(f"no whole head came within {seconds:g} seconds"))
            else:
                self._close()
        self._next_look = self.loop.call_later(seconds / _LOOKS, self._look)

    def _make_room(self) -> None:
        """Close what has waited longest; if all others have requests in hand, that is this one."""
        longest = next(iter(self._all.waiting))
        if longest is self:
            self._refuse(
                ConnectionsFullError(
                    f"all {self._all.max_open} connections have requests in hand; come again"
                )
            )
        else:
            longest._close()

    def _refuse(self, error: LaminaError) -> None:
        """Send a problem, unless it would be taken for part of another reply, and close."""
        problem = problem_of(error)
        self._all.metrics.rejected(problem.slug)
        cycle = self.cycle
        if cycle is None or (cycle.response_complete and not cycle.more_body):
            headers = {"X-Request-ID": secrets.token_hex(8), **headers_of(error)}
            reply = problem_response(problem, str(error), headers)
            lines = [b"%s: %s\r\n" % header for header in reply.raw_headers]
            content = [STATUS_LINE[problem.status], *lines, b"\r\n", bytes(reply.body)]
            self.transport.write(b"".join(content))
        self._close()

    def _close(self) -> None:
        self._all.waiting.pop(self, None)
        self.transport.close()
