"""Blocking work off the event loop: a few threads, a bounded amount waiting, fair to all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from lamina_service.errors import QueueFullError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _Batch(Generic[T, R]):
    """The items of one request; threads take them one by one.

    Attributes:
        function: What to do with some items; gives each one's result or error, in order.
        together: How many items, of other requests too, it may be given at once.
        weight: What the items count for in the queue's depth.
    """

    function: Callable[[Sequence[T]], Iterator[R | Exception]]
    together: int
    items: Sequence[T]
    weight: int
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

    @property
    def is_wanted(self) -> bool:
        """Whether its items are still worth working on."""
        return self.error is None and not self.future.cancelled()

    def finish(self, position: int, outcome: object) -> bool:
        """Note an item's result or error; true once all items are finished."""
        if isinstance(outcome, BaseException):
            self.error = outcome
        else:
            self.results[position] = outcome
        with self.lock:
            self.finished += 1
            return self.finished == len(self.items)


_Share = list[tuple[_Batch[Any, Any], int]]


class WorkQueue:
    """Threads that work on the items of many requests in turn.

    A request is admitted, whole, while items of less than `capacity` in weight wait or run; an item
    weighs 1 unless told otherwise. So never more than `capacity - 1` and the largest request do,
    and what is admitted waits for a bounded time. Requests take turns item by item: one with a
    hundred texts does not hold up one with a single query. `map`, `map_together` and `run` belong
    to the event loop's thread.
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
        self._items = 0
        self._on_depth = on_depth
        self._waiting: SimpleQueue[_Batch[Any, Any] | None] = SimpleQueue()
        self._workers = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    async def map(
        self,
        function: Callable[[T], R],
        items: Sequence[T],
        *,
        weights: Sequence[int] | None = None,
    ) -> list[R]:
        """Run `function` on each item, on the threads; the results in the items' order.

        Args:
            weights: What each item counts for, in texts; 1 by default.

        Raises:
            QueueFullError: If the queue is full; nothing was run.
            Exception: The first that `function` raised; items not yet begun are left out.
        """

        def one(items: Sequence[T]) -> Iterator[R]:
            yield function(items[0])

        return await self.map_together(one, items, together=1, weights=weights)

    async def run(self, function: Callable[[T], R], item: T) -> R:
        """Run `function` on one item, as `map` does."""
        return (await self.map(function, (item,)))[0]

    async def map_together(
        self,
        function: Callable[[Sequence[T]], Iterator[R | Exception]],
        items: Sequence[T],
        *,
        together: int,
        weights: Sequence[int] | None = None,
    ) -> list[R]:
        """As `map`, with a function that does up to `together` items at once for less.

        Items of other requests with the same function join in while they wait; so none waits for
        another to come, and idle threads get their share.

        Args:
            function: Gives each item's result or its error, in order, as soon as it is done.
            weights: As in `map`.
        """
        if not items:
            return []
        if self.depth >= self.capacity:
            raise QueueFullError(
                f"{self.depth} texts wait or run, the limit is {self.capacity}; try again later"
            )
        batch_weight = len(items) if weights is None else sum(weights)
        self._change_depth(len(items), batch_weight)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[R]] = loop.create_future()
        results = [None] * len(items)
        self._waiting.put(_Batch(function, together, items, batch_weight, results, loop, future))
        return await future

    def close(self) -> None:
        """End the threads once what waits is done; nothing may be added any more."""
        self._waiting.put(None)
        for worker in self._workers:
            worker.join()

    def _work(self) -> None:
        following: _Batch[Any, Any] | None = None
        while True:
            batch = following or self._waiting.get()
            following = None
            if batch is None:
                self._waiting.put(None)  # for the other threads, and behind what still waits
                if self._waiting.qsize() == 1:
                    return
                continue
            share, following = self._share(batch)
            self._run(share)

    def _share(self, batch: _Batch[Any, Any]) -> tuple[_Share, _Batch[Any, Any] | None]:
        """Take an item and those that may be done with it; what else was next in the queue."""
        size = min(batch.together, -(-self._items // self.threads))
        share: _Share = []
        while True:
            position, more = batch.take()
            share.append((batch, position))
            if more:
                self._waiting.put(batch)
            if len(share) >= size:
                return share, None
            try:
                following = self._waiting.get_nowait()
            except Empty:
                return share, None
            if following is None:
                self._waiting.put(None)
                return share, None
            if following.function is not batch.function:
                return share, following
            batch = following

    def _run(self, share: _Share) -> None:
        """Work on items of one function, unless their requests failed or were given up."""
        wanted = [batch.is_wanted for batch, _ in share]
        items = [batch.items[n] for (batch, n), wants in zip(share, wanted, strict=True) if wants]
        outcomes = _outcomes(share[0][0].function, items) if items else iter(())
        for (batch, position), wants in zip(share, wanted, strict=True):
            if batch.finish(position, next(outcomes) if wants else None):
                batch.loop.call_soon_threadsafe(self._finish, batch)

    def _finish(self, batch: _Batch[Any, Any]) -> None:
        self._change_depth(-len(batch.items), -batch.weight)
        if batch.future.done():  # cancelled
            return
        if batch.error is None:
            batch.future.set_result(batch.results)
        else:
            batch.future.set_exception(batch.error)

    def _change_depth(self, items: int, weight: int) -> None:
        self._items += items
        self.depth += weight
        self._on_depth(self.depth)


def _outcomes(
    function: Callable[[Sequence[T]], Iterator[R | Exception]], items: Sequence[T]
) -> Iterator[R | BaseException]:
    """Each item's result or error; what the function itself raises is the error of the rest."""
    given = 0
    try:
        for outcome in function(items):
            given += 1
            yield outcome
    except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the items
        for _ in items[given:]:
            yield error
