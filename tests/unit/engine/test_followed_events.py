"""An engine's events are followed for as long as something is done with it, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.base import ChatRequest, EventBatch
from engine.events import followed
from engine.fake import FakeEngine


class _Kept:
    """What was told, and whether anybody still listens."""

    def __init__(self) -> None:
        self.batches: list[EventBatch] = []
        self.came, self.over = asyncio.Event(), asyncio.Event()

    async def follow(self, batches: AsyncIterator[EventBatch]) -> None:
        try:
            async for batch in batches:
                self.batches.append(batch)
                self.came.set()
        finally:
            self.over.set()


async def _ask(engine: FakeEngine) -> None:
    body = {"messages": [{"role": "user", "content": "a long question " * 20}], "max_tokens": 2}
    async with engine.chat(ChatRequest("r", body, "salt")) as reply:
        await reply.read()


async def test_what_the_engine_tells_meanwhile_is_handed_on_and_nothing_after() -> None:
    engine, kept = FakeEngine(), _Kept()
    await engine.start()
    async with followed(engine, kept.follow):
        await _ask(engine)
        async with asyncio.timeout(5):
            await kept.came.wait()
        assert not kept.over.is_set()
    assert kept.over.is_set()
    told = len(kept.batches)
    await engine.reset_caches()
    assert len(kept.batches) == told > 0
    await engine.stop()


async def test_it_ends_with_a_failure_of_what_is_done_and_hides_none() -> None:
    engine, kept = FakeEngine(), _Kept()
    await engine.start()

    async def fails() -> None:
        async with followed(engine, kept.follow):
            await asyncio.sleep(0)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await fails()
    assert kept.over.is_set()
    await engine.stop()
