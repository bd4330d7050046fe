"""Clients that leave: the work upstream ends."""

from __future__ import annotations

import asyncio

import pytest

from context.errors import EngineUnavailable
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import eventually
from tests.contract.remote_engines import ask, connections, new_request, no_connection, started
from tests.contract.remote_fixtures import (
    Exchange,
    Received,
    fine,
    free_port,
    scripted,
)


class TestLeaving:
    async def test_before_the_head_closes_the_connection(self) -> None:
        came, left = asyncio.Event(), asyncio.Event()

        async def silent(request: Received, exchange: Exchange) -> bool:
            came.set()
            await exchange.left()
            left.set()
            return False

        async with scripted(silent) as upstream, started(upstream) as engine:
            work = asyncio.create_task(ask(engine))
            await came.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            async with asyncio.timeout(20):
                await left.wait()

    async def test_behind_the_head_closes_the_connection(self) -> None:
        left = asyncio.Event()

        async def endless(request: Received, exchange: Exchange) -> bool:
            await exchange.head(200, {"transfer-encoding": "chunked"})
            await exchange.left()
            left.set()
            return False

        async with scripted(endless) as upstream, started(upstream) as engine:
            async with engine.chat(new_request()):
                pass
            async with asyncio.timeout(20):
                await left.wait()

    async def test_with_a_body_half_sent(self) -> None:
        came = asyncio.Event()

        async def deaf(request: Received, exchange: Exchange) -> bool:
            exchange.writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
            came.set()
            await asyncio.Event().wait()
            return False

        async def upload(engine: RemoteEngine) -> None:
            async with engine.forward("POST", "/big", headers={}, body=[b"x" * (1 << 25)]):
                pass

        async with scripted(deaf, reads_body=False) as upstream, started(upstream) as engine:
            for ends in ("cancel", "stop"):
                came.clear()
                work = asyncio.create_task(upload(engine))
                await came.wait()
                if ends == "cancel":
                    work.cancel()
                else:
                    await engine.stop()
                with pytest.raises((asyncio.CancelledError, EngineUnavailable)):
                    await work
                await eventually(no_connection(upstream.url))

    async def test_waiting_for_a_connection_can_be_left(self) -> None:
        came = asyncio.Event()

        async def silent(request: Received, exchange: Exchange) -> bool:
            came.set()
            await exchange.left()
            return False

        async with scripted(silent) as upstream, started(upstream, connections=1) as engine:
            first, second = asyncio.create_task(ask(engine)), asyncio.create_task(ask(engine))
            await came.wait()
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            assert len(upstream.chats) == 1
            third = asyncio.create_task(ask(engine))
            await engine.stop()
            for task in (first, third):
                with pytest.raises(EngineUnavailable):
                    await task

    async def test_stop_leaves_no_socket_and_no_task(self) -> None:
        async with scripted(fine) as upstream:
            before = asyncio.all_tasks()
            engine = RemoteEngine(RemoteSettings((upstream.url, f"http://127.0.0.1:{free_port()}")))
            with_one_down = await asyncio.gather(engine.start(), return_exceptions=True)
            assert with_one_down == [None]
            await asyncio.gather(*(ask(engine) for _ in range(8)))
            assert connections(upstream.url) > 0
            ours = {task for task in asyncio.all_tasks() - before if "watch" in task.get_name()}
            assert ours
            await engine.stop()
            assert connections(upstream.url) == 0
            assert all(task.done() for task in ours)
