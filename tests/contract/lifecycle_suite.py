"""How every engine starts, stops and breaks; used as `tests/contract/engine_suite.py` is, with engines of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from context.errors import EngineError, EngineProtocolError, EngineUnavailable
from engine.base import ChatRequest, Engine
from tests.contract.cases import (
    ENDLESS,
    EngineCase,
    ask,
    busy,
    hello,
    user,
)


class LifecycleSuite:
    """Starting, stopping and failing. Each test has an engine of its own."""

    async def test_start_and_stop(self, case: EngineCase) -> None:
        engine = case.make()
        assert not engine.health().ready
        with pytest.raises(EngineUnavailable):
            await ask(engine, case, [user("hi")])
        await engine.start()
        await engine.start()
        assert engine.health().ready
        assert (await ask(engine, case, [user("hi")])).status == 200
        await engine.stop()
        await engine.stop()
        assert engine.health().state == "stopped"
        with pytest.raises(EngineUnavailable):
            await ask(engine, case, [user("hi")])

    async def test_stop_before_start(self, case: EngineCase) -> None:
        engine = case.make()
        await engine.stop()
        assert not engine.health().ready

    async def test_stop_while_requests_run(self, case: EngineCase, name: str) -> None:
        before = asyncio.all_tasks()
        engine = case.make()
        await engine.start()
        whole = asyncio.create_task(_end_of(engine, case, f"{name}-1", stream=False))
        streamed = asyncio.create_task(_end_of(engine, case, f"{name}-2", stream=True))
        await busy(engine, case)
        await engine.stop()
        async with asyncio.timeout(20):
            ends = await asyncio.gather(whole, streamed)
        assert all(ends)
        await asyncio.sleep(0)
        assert not [task for task in asyncio.all_tasks() - before if not task.done()]

    async def test_subscriptions_end_with_the_engine(self, case: EngineCase) -> None:
        engine = case.make()
        await engine.start()
        async with engine.events() as batches:
            await engine.stop()
            async with asyncio.timeout(20):
                assert [batch async for batch in batches if batch.stream == "none"] == []

    async def test_breaking_before_the_first_byte(self, case: EngineCase, name: str) -> None:
        engine = await _breakable(case, "before")
        try:
            assert await _end_of(engine, case, name, stream=False) in ("EngineUnavailable", "status 500", "status 503")
            assert (await ask(engine, case, [user("hi")])).status == 200
        finally:
            await engine.stop()

    async def test_breaking_in_the_middle(self, case: EngineCase, name: str) -> None:
        engine = await _breakable(case, "middle")
        try:
            with pytest.raises((EngineProtocolError, EngineUnavailable)):
                await ask(engine, case, [user("hi")], stream=True, max_tokens=16, ignore_eos=True)
            assert (await ask(engine, case, [user("hi")])).status == 200
        finally:
            await engine.stop()

    async def test_a_crash_is_seen(self, case: EngineCase, name: str) -> None:
        engine = await _breakable(case, "crash")
        try:
            await _end_of(engine, case, name, stream=False)
            assert engine.health().state == "crashed"
            with pytest.raises(EngineUnavailable):
                await ask(engine, case, [user("hi")])
        finally:
            await engine.stop()


async def _breakable(case: EngineCase, how: Any) -> Engine:
    if case.break_next is None:
        pytest.skip("this engine cannot be told to fail")
    engine = case.make()
    await engine.start()
    await case.break_next(engine, how)
    return engine


async def _end_of(engine: Engine, case: EngineCase, request_id: str, *, stream: bool) -> str:
    """How a request that is interrupted ends: the error's name, its status, or that the stream said so."""
    body = hello(case) | ENDLESS | {"stream": stream}
    try:
        async with engine.chat(ChatRequest(request_id, body, request_id)) as reply:
            content = await reply.read()
            return f"status {reply.status}" if reply.status >= 500 else "error event" * (b'"error"' in content)
    except EngineError as error:
        return type(error).__name__
