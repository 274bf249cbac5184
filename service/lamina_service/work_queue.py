"""Blocking work off the event loop: a few threads, a bounded amount waiting, fair to all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from lamina_service.errors import QueueFullError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _Batch(Generic[T, R]):
    """The items of one request; threads take them one by one."""

    function: Callable[[T], R]
    items: Sequence[T]
    results: list[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[R]]
    taken: int = 0
    finished: int = 0
    error: BaseException | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self) -> tuple[int, bool]:
        """Claim the next item; its position and whether more are left."""
        with self.lock:
            position = self.taken
            self.taken += 1
            return position, self.taken < len(self.items)

    def run(self, position: int) -> bool:
        """Work on one item, unless an earlier one failed; true once all are finished."""
        try:
            if self.error is None and not self.future.cancelled():
                self.results[position] = self.function(self.items[position])
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the batch
            self.error = error
        with self.lock:
            self.finished += 1
            return self.finished == len(self.items)


class WorkQueue:
    """Threads that work on the items of many requests in turn.

    A request is admitted, whole, while fewer than `capacity` items wait or run. So never more than
    `capacity - 1` and the largest request's items do, and what is admitted waits for a bounded
    time. Requests take turns item by item: one with a hundred texts does not hold up one with a
    single query. `map` and `run` belong to the event loop's thread.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: int,
        capacity: int,
        on_depth: Callable[[int], object] = lambda depth: None,
    ) -> None:
        self.threads = threads
        self.capacity = capacity
        self.depth = 0
        self._on_depth = on_depth
        self._waiting: SimpleQueue[_Batch[Any, Any] | None] = SimpleQueue()
        self._workers = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    async def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Run `function` on each item, on the threads; the results in the items' order.

        Raises:
            QueueFullError: If the queue is full; nothing was run.
            Exception: The first that `function` raised; items not yet begun are left out.
        """
        if not items:
            return []
        if self.depth >= self.capacity:
            raise QueueFullError(
                f"{self.depth} texts wait or run, the limit is {self.capacity}; try again later"
            )
        self._change_depth(len(items))
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[R]] = loop.create_future()
        self._waiting.put(_Batch(function, items, [None] * len(items), loop, future))
        return await future

    async def run(self, function: Callable[[T], R], item: T) -> R:
        """Run `function` on one item, as `map` does."""
        return (await self.map(function, (item,)))[0]

    def close(self) -> None:
        """End the threads once what waits is done; nothing may be added any more."""
        self._waiting.put(None)
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        while True:
            batch = self._waiting.get()
            if batch is None:
                self._waiting.put(None)  # for the other threads, and behind what still waits
                if self._waiting.qsize() == 1:
                    return
                continue
            position, more = batch.take()
            if more:
                self._waiting.put(batch)
            if batch.run(position):
                batch.loop.call_soon_threadsafe(self._finish, batch)

    def _finish(self, batch: _Batch[Any, Any]) -> None:
        self._change_depth(-len(batch.items))
        if batch.future.done():  # cancelled
            return
        if batch.error is None:
            batch.future.set_result(batch.results)
        else:
            batch.future.set_exception(batch.error)

    def _change_depth(self, change: int) -> None:
        self.depth += change
        self._on_depth(self.depth)
