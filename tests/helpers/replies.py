"""What tests of the service ask of its replies."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx


def problem(reply: httpx.Response) -> tuple[int, str]:
    """Status of a refusal, and the last part of its type."""
    return reply.status_code, reply.json()["type"].rpartition(":")[2]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something holds, for half a minute at most."""
    patience = threading.Event()
    for _ in range(3000):
        if condition():
            return
        patience.wait(0.01)
    raise AssertionError("the condition never came true")
