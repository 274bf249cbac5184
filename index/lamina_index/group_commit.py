"""Calls that wait for the same lock are done together, in one transaction, by one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _Call(Generic[T]):
    work: Callable[[T], Any]
    result: Any = None
    error: BaseException | None = None
    done: bool = False


class GroupCommit(Generic[T]):
    """Makes the cost of a transaction, most of it waiting for the disk, the cost of many calls."""

    def __init__(
        self,
        transaction: Callable[[], AbstractContextManager[T]],
        refusals: tuple[type[Exception], ...],
    ) -> None:
        """Remember how.

        Args:
            transaction: Begins one, which commits at the end or leaves no trace.
            refusals: What a call may raise before it has changed anything; it fails alone then.
                After any other error all calls of the transaction fail.
        """
        self._transaction = transaction
        self._refusals = refusals
        self._running = threading.Lock()
        self._waiting: list[_Call[T]] = []
        self._adding = threading.Lock()

    def run(self, work: Callable[[T], R]) -> R:
        """Do some work inside a transaction, perhaps with others'; return when it is committed."""
        call: _Call[T] = _Call(work)
        with self._adding:
            self._waiting.append(call)
        with self._running:
            if not call.done:  # else whoever was here before has done it too
                with self._adding:
                    calls, self._waiting = self._waiting, []
                self._run(calls)
        if call.error is not None:
            raise call.error
        return cast(R, call.result)

    def _run(self, calls: list[_Call[T]]) -> None:
        try:
            with self._transaction() as transaction:
                for call in calls:
                    try:
                        call.result = call.work(transaction)
                    except self._refusals as error:
                        call.error = error
                refused = [call.error for call in calls if call.error]
                if len(refused) == len(calls):
                    raise refused[0]  # there is nothing to commit
        except BaseException as error:  # noqa: BLE001 - handed to each caller
            for call in calls:
                call.error = call.error or error
        finally:
            for call in calls:
                call.done = True
