import asyncio
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from lamina_service.errors import QueueFullError
from lamina_service.work_queue import WorkQueue


@pytest.fixture
def depths() -> list[int]:
    return []


@pytest.fixture
def queue(depths: list[int]) -> Iterator[WorkQueue]:
    queue = WorkQueue("test", threads=1, capacity=4, on_depth=depths.append)
    yield queue
    queue.close()


def test_results_come_in_the_order_of_the_items() -> None:
    queue = WorkQueue("test", threads=4, capacity=100)

    def slow_first(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    assert asyncio.run(queue.map(slow_first, range(20))) == [n * n for n in range(20)]
    queue.close()


def test_a_full_queue_refuses_at_once_and_admits_again_when_work_is_done(
    queue: WorkQueue, depths: list[int]
) -> None:
    gate = threading.Event()

    async def scenario() -> None:
        admitted = [asyncio.ensure_future(queue.run(gate.wait, 10)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="limit is 4"):
            await queue.run(gate.wait, 10)
        gate.set()
        assert await asyncio.gather(*admitted) == [True] * 4
        assert await queue.run(str, 1) == "1"

    asyncio.run(scenario())
    assert depths == [1, 2, 3, 4, 3, 2, 1, 0, 1, 0]


def test_one_query_overtakes_the_rest_of_a_large_batch(queue: WorkQueue) -> None:
    order: list[str] = []
    gate = threading.Event()

    def note(name: str) -> None:
        gate.wait()
        order.append(name)

    async def scenario() -> None:
        batch = asyncio.ensure_future(queue.map(note, [f"batch{n}" for n in range(50)]))
        await asyncio.sleep(0)
        queue.capacity = 1000
        single = asyncio.ensure_future(queue.run(note, "single"))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(batch, single)

    asyncio.run(scenario())
    assert order.index("single") <= 2


def test_closing_finishes_the_batches_that_wait() -> None:
    queue = WorkQueue("test", threads=2, capacity=100)
    gate = threading.Event()

    async def scenario() -> None:
        batches = [asyncio.ensure_future(queue.map(gate.wait, [10] * 20)) for _ in range(3)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(queue.close))
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.wait_for(asyncio.gather(closing, *batches), 10)

    asyncio.run(scenario())
    assert queue.depth == 0


def test_an_error_reaches_its_own_request_only_and_ends_its_batch(queue: WorkQueue) -> None:
    ran: list[int] = []

    def fail_on_two(number: int) -> int:
        ran.append(number)
        if number == 2:
            raise ValueError("two")
        return number

    async def scenario() -> None:
        with pytest.raises(ValueError, match="two"):
            await queue.map(fail_on_two, [1, 2, 3])
        assert await queue.run(fail_on_two, 4) == 4

    asyncio.run(scenario())
    assert ran == [1, 2, 4]
    assert queue.depth == 0


def test_a_cancelled_request_is_not_worked_on_and_leaves_the_queue(queue: WorkQueue) -> None:
    gate = threading.Event()
    ran: list[int] = []

    async def scenario() -> None:
        blocker = asyncio.ensure_future(queue.run(gate.wait, 10))
        await asyncio.sleep(0)
        gone = asyncio.ensure_future(queue.run(ran.append, 1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        gate.set()
        await blocker
        await queue.run(ran.append, 2)

    asyncio.run(scenario())
    assert ran == [2]
    assert queue.depth == 0


def test_what_waits_is_done_together_up_to_the_limit(queue: WorkQueue) -> None:
    shares: list[list[int]] = []
    gate = threading.Event()

    def squares(numbers: Sequence[int]) -> Iterator[int]:
        gate.wait()
        shares.append(list(numbers))
        for number in numbers:
            yield number * number

    async def scenario() -> list[list[int]]:
        queue.capacity = 100
        requests = [asyncio.ensure_future(queue.run(gate.wait, 10))]
        await asyncio.sleep(0)
        requests += [
            asyncio.ensure_future(queue.map_together(squares, numbers, together=3))
            for numbers in ([1], [2, 3], [4], [5])
        ]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*requests)

    assert asyncio.run(scenario()) == [True, [1], [4, 9], [16], [25]]
    assert shares == [[1, 2, 4], [5, 3]]  # the request of two took turns with the others


def test_threads_share_what_waits() -> None:
    queue = WorkQueue("test", threads=2, capacity=100)
    sizes: list[int] = []
    both = threading.Barrier(2, timeout=10)

    def note(numbers: Sequence[int]) -> Iterator[int]:
        sizes.append(len(numbers))
        both.wait()
        yield from numbers

    async def scenario() -> list[int]:
        return await queue.map_together(note, [1, 2, 3, 4], together=4)

    assert asyncio.run(scenario()) == [1, 2, 3, 4]
    assert sizes == [2, 2]
    queue.close()


def test_one_items_error_is_not_that_of_the_items_done_with_it(queue: WorkQueue) -> None:
    gate = threading.Event()

    def halves(numbers: Sequence[int]) -> Iterator[int | Exception]:
        for number in numbers:
            yield ValueError(f"{number} is odd") if number % 2 else number // 2

    async def scenario() -> list[object]:
        blocker = asyncio.ensure_future(queue.run(gate.wait, 10))
        await asyncio.sleep(0)
        requests = [
            asyncio.ensure_future(queue.map_together(halves, [number], together=8))
            for number in (2, 3, 4)
        ]
        await asyncio.sleep(0)
        gate.set()
        await blocker
        return await asyncio.gather(*requests, return_exceptions=True)

    first, second, third = asyncio.run(scenario())
    assert (first, third) == ([1], [2])
    assert isinstance(second, ValueError)


def test_what_breaks_a_whole_share_is_the_error_of_all_in_it(queue: WorkQueue) -> None:
    def breaks(numbers: Sequence[int]) -> Iterator[int]:
        yield numbers[0]
        raise RuntimeError("broken")

    async def scenario() -> None:
        with pytest.raises(RuntimeError, match="broken"):
            await queue.map_together(breaks, [1, 2], together=2)
        assert await queue.map_together(breaks, [7], together=2) == [7]

    asyncio.run(scenario())
    assert queue.depth == 0


def test_items_that_weigh_much_fill_the_queue_but_are_still_spread_over_the_threads() -> None:
    depths: list[int] = []
    queue = WorkQueue("test", threads=2, capacity=10, on_depth=depths.append)
    both = threading.Barrier(2, timeout=10)

    def meet(items: Sequence[str]) -> Iterator[str]:
        both.wait()  # broken if one thread takes both
        yield from items

    async def scenario() -> None:
        first = asyncio.ensure_future(
            queue.map_together(meet, ["a", "b"], together=8, weights=[6, 7])
        )
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError, match="13 texts wait or run, the limit is 10"):
            await queue.run(str, 1)
        assert await first == ["a", "b"]

    asyncio.run(scenario())
    assert depths == [13, 0]
    queue.close()
