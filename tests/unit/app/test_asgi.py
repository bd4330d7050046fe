"""The body budget never loses a byte, and a client's leaving is told apart from everything else."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import bodies
from app.asgi import ClientLeft, cancelled_when_client_leaves
from app.bodies import BodyBudget
from context.errors import RequestError

TOTAL = 100


class _Holder:
    """One request that holds a part of the budget until it is told to let go."""

    def __init__(self, budget: BodyBudget, size: int) -> None:
        self.size = min(size, TOTAL)
        self.holds = False
        self.go = asyncio.Event()
        self.task = asyncio.create_task(self._run(budget, size))

    async def _run(self, budget: BodyBudget, size: int) -> None:
        async with budget.hold(size):
            self.holds = True
            try:
                await self.go.wait()
            finally:
                self.holds = False


_STEPS = st.lists(
    st.tuples(st.sampled_from(["open", "let go", "cancel", "settle", "both"]), st.integers(0, 150), st.integers(0, 20)),
    max_size=40,
)


async def _settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@given(steps=_STEPS)
async def test_budget(steps: list[tuple[str, int, int]]) -> None:
    budget = BodyBudget(TOTAL)
    holders: list[_Holder] = []
    for step, size, which in steps:
        alive = [holder for holder in holders if not holder.task.done()]
        if step == "open":
            holders.append(_Holder(budget, size))
        elif step == "settle":
            await _settle()
            held = sum(holder.size for holder in holders if holder.holds)
            assert budget.free_bytes == TOTAL - held
            waiting = [holder for holder in holders if not holder.holds and not holder.task.done()]
            assert budget.waiting == len(waiting)
            # Nobody waits who fits, and nobody overtakes.
            assert not waiting or waiting[0].size > budget.free_bytes
        elif alive:
            chosen = alive[which % len(alive)]
            if step in ("let go", "both"):
                chosen.go.set()
            if step in ("cancel", "both"):
                chosen.task.cancel()
        assert 0 <= budget.free_bytes <= TOTAL
    for holder in holders:
        holder.go.set()
    done = await asyncio.gather(*(holder.task for holder in holders), return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in done)
    assert (budget.free_bytes, budget.waiting) == (TOTAL, 0)


async def test_a_waiter_that_is_cancelled_in_the_same_moment_as_its_turn_comes() -> None:
    budget = BodyBudget(TOTAL)
    first, second, third = _Holder(budget, TOTAL), _Holder(budget, 60), _Holder(budget, 40)
    await _settle()
    first.go.set()
    second.task.cancel()
    await _settle()
    assert third.holds
    assert budget.free_bytes == TOTAL - 40
    third.go.set()
    await third.task
    assert budget.free_bytes == TOTAL


async def test_a_turn_that_does_not_come_in_time() -> None:
    budget = BodyBudget(TOTAL)
    async with budget.hold(TOTAL):
        with pytest.raises(RequestError) as caught:
            async with budget.hold(1, timeout_seconds=0):
                raise AssertionError
        assert (caught.value.status, caught.value.code) == (429, "too_many_requests")
        assert budget.waiting == 0
    assert budget.free_bytes == TOTAL


async def test_small_bodies_neither_count_nor_wait() -> None:
    budget = BodyBudget(TOTAL, small_bytes=10)
    async with budget.hold(TOTAL), budget.hold(10):
        assert budget.free_bytes == 0
    async with budget.hold(11):
        assert budget.free_bytes == TOTAL - 11
    assert budget.free_bytes == TOTAL


async def test_more_than_the_whole_budget_is_the_whole_budget() -> None:
    budget = BodyBudget(TOTAL)
    async with budget.hold(10 * TOTAL):
        assert budget.free_bytes == 0
    assert budget.free_bytes == TOTAL


class _Client:
    """A client's end: leaves when it is told to."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.watched = asyncio.Event()

    async def receive(self) -> Any:
        self.watched.set()
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_leaving_ends_what_runs() -> None:
    client = _Client()
    ended = False

    async def work() -> None:
        nonlocal ended
        async with cancelled_when_client_leaves(client.receive):
            client.left.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended = True

    with pytest.raises(ClientLeft):
        await work()
    assert ended
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_leaving_as_the_work_ends_leaves_no_cancellation_behind() -> None:
    """The work is done in the very pass of the loop in which the client's leaving is noticed."""
    client = _Client()
    for passes in range(6):
        client.left.clear()
        client.watched.clear()
        left = False
        try:
            async with cancelled_when_client_leaves(client.receive):
                await client.watched.wait()
                client.left.set()
                for _ in range(passes):
                    await asyncio.sleep(0)
        except ClientLeft:
            left = True
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, passes
        await asyncio.sleep(0)
        assert left or passes < 3


async def test_a_cancellation_from_outside_stays_one() -> None:
    client = _Client()
    started = asyncio.Event()

    async def work() -> None:
        async with cancelled_when_client_leaves(client.receive):
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize("passes", range(5))
async def test_a_cancellation_from_outside_is_not_lost_as_the_work_ends(passes: int) -> None:
    client = _Client()
    after = False

    async def work() -> None:
        nonlocal after
        async with cancelled_when_client_leaves(client.receive):
            await asyncio.sleep(0)
        after = True
        await asyncio.Event().wait()

    task = asyncio.create_task(work())
    for _ in range(passes):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(1):
            await task


async def test_an_error_of_the_work_goes_on_and_the_watcher_ends() -> None:
    client = _Client()
    before = asyncio.all_tasks()
    with pytest.raises(KeyError):
        async with cancelled_when_client_leaves(client.receive):
            raise KeyError("x")
    await _settle()
    assert asyncio.all_tasks() == before


async def test_what_was_watched_needs_no_collector() -> None:
    """A request that holds itself stays until the collector comes by, with all that it brought."""
    client = _Client()
    gone = weakref.ref(client)
    gc.disable()
    try:
        async with cancelled_when_client_leaves(client.receive):
            await client.watched.wait()
        del client
        await _settle()
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("text", "expected"), [(None, 50), ("7", 7), ("50", 50), ("", 50), ("x", 50), ("-1", 50), ("\xb2", 50)]
)
def test_declared_length(text: str | None, expected: int) -> None:
    headers = [] if text is None else [(b"content-length", text.encode("latin-1"))]
    assert bodies.declared_length({"headers": headers}, 50) == expected
