"""Bounded memory and work that is shared."""

from __future__ import annotations

import asyncio

import pytest

from context.images.memo import Lru, SingleFlight


def test_lru_forgets_what_was_used_longest_ago() -> None:
    memo: Lru[str, str] = Lru(2)
    memo.put("a", "1")
    memo.put("b", "2")
    assert memo.get("a") == "1"
    memo.put("c", "3")
    assert (memo.get("a"), memo.get("b"), memo.get("c")) == ("1", None, "3")


def test_lru_is_bounded_by_bytes() -> None:
    memo: Lru[str, bytes] = Lru(10, len)
    memo.put("a", b"12345")
    memo.put("a", b"123456")
    memo.put("b", b"1234")
    assert (memo.size, len(memo)) == (10, 2)
    memo.put("c", b"x" * 11)
    assert memo.get("c") is None
    assert memo.size <= 10


def test_lru_can_be_emptied() -> None:
    memo: Lru[str, bytes] = Lru(10, len)
    memo.put("a", b"12345")
    memo.clear()
    assert (memo.get("a"), memo.size) == (None, 0)


async def test_one_waiter_leaving_does_not_fail_the_others() -> None:
    flights, go, runs = SingleFlight(), asyncio.Event(), 0

    async def work() -> str:
        nonlocal runs
        runs += 1
        await go.wait()
        return "done"

    waiters = [asyncio.create_task(flights.run("key", work)) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    await asyncio.gather(waiters[0], return_exceptions=True)
    go.set()
    assert await asyncio.gather(*waiters[1:]) == ["done", "done"]
    assert (runs, len(flights)) == (1, 0)


async def test_work_is_cancelled_when_the_last_waiter_leaves() -> None:
    flights, cancelled = SingleFlight(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiter = asyncio.create_task(flights.run("key", work))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await asyncio.wait_for(cancelled.wait(), 5)
    assert len(flights) == 0


async def test_all_waiters_get_the_exception_and_the_next_tries_again() -> None:
    flights, answers = SingleFlight(), [ValueError("first"), None]

    async def work() -> str:
        await asyncio.sleep(0)
        if error := answers.pop(0):
            raise error
        return "second"

    results = await asyncio.gather(*(flights.run("key", work) for _ in range(2)), return_exceptions=True)
    assert [str(result) for result in results] == ["first", "first"]
    assert await flights.run("key", work) == "second"


async def test_close_ends_all_work() -> None:
    flights = SingleFlight()

    async def work() -> None:
        await asyncio.Event().wait()

    waiter = asyncio.create_task(flights.run("key", work))
    await asyncio.sleep(0)
    await flights.close()
    with pytest.raises(asyncio.CancelledError):
        await waiter
