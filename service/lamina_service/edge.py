"""The outermost layer around the application: request ids, body limit, metrics, last resort."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lamina_service.errors import (
    INTERNAL,
    BodyTooLargeError,
    RequestTimeoutError,
    internal_response,
)
from lamina_service.metrics import Metrics

_logger = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class Edge:
    """Pure ASGI middleware, so that a request crosses one function instead of a task group.

    A reply carries `X-Request-ID`, the request's own if it sent a sane one. Bodies are counted as
    they stream in and refused at the limit, unless a handler lifts it, and given up where nothing
    more of them comes for `client_seconds` while a handler waits for it. An error that no handler
    foresaw is logged with the request id and answered with a fixed text. HEAD goes to the route of
    GET; the server sends that reply without its body. With `access_log` each request is logged,
    but for what follows the `?`, which may be what somebody searches for.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        max_body_bytes: int,
        client_seconds: float,
        access_log: bool = False,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._client_seconds = client_seconds
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, _brief_startup_failure(scope, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        method = scope["method"]
        if method == "HEAD":
            scope = {**scope, "method": "GET"}  # the server's own scope still says HEAD
        request_id, declared_bytes = _read_head(scope)
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"].append((b"x-request-id", request_id))
            await send(message)

        limited = scope["lamina.body"] = _LimitedBody(
            receive, declared_bytes, self._max_body_bytes, self._client_seconds
        )
        try:
            await self._app(scope, limited, send_with_id)
        except ClientDisconnect:
            pass  # nobody is left to answer
        except Exception:
            _logger.exception("request %s failed", request_id.decode())
            if status:
                raise  # the reply has begun: all that is left is to cut the connection
            self._metrics.rejected(INTERNAL.slug)
            await internal_response()(scope, receive, send_with_id)
        finally:
            route = getattr(scope.get("route"), "path", "(none)")
            seconds = time.perf_counter() - started
            self._metrics.requested(method, route, status, seconds)
            if self._access_log:
                client, _ = scope["client"] or ("-", 0)
                _logger.info(
                    "%s %s %s %d %.1f ms, request %s",
                    client,
                    method,
                    quote(scope["path"]),
                    status,
                    seconds * 1000,
                    request_id.decode(),
                )


def _read_head(scope: Scope) -> tuple[bytes, int]:
    """Find the request's id, or make one, and the length that it declares for its body."""
    request_id, declared_bytes = b"", 0
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            request_id = value
        elif name == b"content-length" and value.isdigit():
            declared_bytes = int(value)
    return request_id or secrets.token_hex(8).encode(), declared_bytes


class _LimitedBody:
    """A `receive` that never takes in more than the limit, nor waits longer than it may."""

    def __init__(
        self, receive: Receive, declared_bytes: int, max_bytes: int, client_seconds: float
    ) -> None:
        self._receive = receive
        self._declared_bytes = declared_bytes
        self._received_bytes = 0
        self._client_seconds: float | None = client_seconds
        self.max_bytes: int | None = max_bytes

    async def __call__(self) -> Message:
        limit = self.max_bytes
        if limit is None:
            return await self._next()
        if self._declared_bytes <= limit:
            message = await self._next()
            self._received_bytes += len(message.get("body", b""))
            if self._received_bytes <= limit:
                return message
        raise BodyTooLargeError(
            f"the body is longer than {limit} bytes; send less at a time, or raise "
            "LAMINA_MAX_BODY_BYTES"
        )

    async def _next(self) -> Message:
        try:
            async with asyncio.timeout(self._client_seconds):
                message = await self._receive()
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"nothing more of the body came for {self._client_seconds:g} seconds; send without "
                "pauses, or raise LAMINA_CLIENT_SECONDS"
            ) from error
        if not message.get("more_body", False):
            self._client_seconds = None  # all that can come is that the client goes away
        return message


def lift_body_limit(scope: Scope) -> None:
    """Let a body be of any length, for a handler that takes it in piece by piece.

    To be called before any of it is received.
    """
    scope["lamina.body"].max_bytes = None


def _brief_startup_failure(scope: Scope, send: Send) -> Send:
    """Tell a start that failed for a reason the user can mend in one line, not by a traceback."""

    async def send_brief(message: Message) -> None:
        reason = getattr(scope["app"].state, "startup_error", None)
        if message["type"] == "lifespan.startup.failed" and reason is not None:
            message["message"] = str(reason)
        await send(message)

    return send_brief
