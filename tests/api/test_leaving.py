"""Clients that leave: the engine's work ends with them, nothing is left behind, and the record says what happened."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from engine import asgi
from engine.fake import FakeConfig, Fault
from tests.api.rig import CHAT, JSON, Rig, WatchedEngine, ask, image, running, streams, text, until, url_image, user
from tests.unit.images.server import running_site

SLOW = FakeConfig(decode_seconds_per_token=0.01)


def _open(rig: Rig, body: Any) -> Any:
    return asgi.call(rig.app, "POST", CHAT, headers=JSON, body=[to_json(body)])


async def _starts(rig: Rig) -> None:
    await until(lambda: rig.engine.app.open_requests > 0)


@pytest.mark.case("MC-093")
async def test_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(SLOW)) as rig:
        async with _open(rig, ask("a", stream=True, max_tokens=10_000)) as reply:
            await anext(reply.chunks)
            assert rig.engine.app.driver.running == 1
        await rig.idle()
        assert await rig.outcomes() == {"aborted": 1}
        assert await rig.metric("stillframe_running_requests") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_byte(rig: Rig, stream: bool) -> None:
    rig.engine.inject(Fault("hang"))
    client = asyncio.create_task(rig.chat(ask("a", stream=stream)))
    await _starts(rig)
    client.cancel()
    await asyncio.gather(client, return_exceptions=True)
    await rig.idle()
    assert await rig.outcomes() == {"aborted": 1}


async def test_while_the_engine_computes_a_whole_answer(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(SLOW)) as rig:
        client = asyncio.create_task(rig.chat(ask("a", max_tokens=10_000)))
        await until(lambda: rig.engine.app.driver.running > 0)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        await rig.idle()
        assert await rig.outcomes() == {"aborted": 1}


async def test_before_the_body_is_there(rig: Rig) -> None:
    parts = [b'{"messages": ']

    async def receive() -> Any:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": True}
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [(b"content-type", b"application/json")]}
    await rig.app(scope, receive, send)
    assert sent == []
    assert rig.engine.wire == []
    assert await rig.outcomes() == {"aborted": 1}


async def test_while_an_image_is_fetched(tmp_path: Path) -> None:
    async with running_site() as site, running(tmp_path, environment={"FETCH__ALLOW_PRIVATE": "[127.0.0.0/8]"}) as rig:
        client = asyncio.create_task(rig.chat(ask(user(url_image(site.url("/slow"))))))
        await site.asked.wait()
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        await rig.idle()
        assert rig.engine.wire == []
        assert await rig.outcomes() == {"aborted": 1}


async def test_while_waiting_for_the_body_budget(tmp_path: Path) -> None:
    limits = {"SERVER__MAX_BODY_BYTES": "100000", "SERVER__INFLIGHT_BODY_BYTES": "100000"}
    async with running(tmp_path, environment=limits) as rig:
        holds, release = asyncio.Event(), asyncio.Event()

        async def slow(scope: Any, receive: asgi.Receive, send: asgi.SendMessage) -> None:
            pieces = 0

            async def late() -> Any:
                nonlocal pieces
                pieces += 1
                if pieces == 1:
                    # A body that has not begun holds nothing.
                    return {"type": "http.request", "body": b"", "more_body": True}
                holds.set()
                await release.wait()
                return await receive()

            await rig.app(scope, late, send)

        raw = to_json(ask("a"))
        headers = {**JSON, "content-length": "100000"}

        async def hold() -> int:
            async with asgi.call(slow, "POST", CHAT, headers=headers, body=[raw]) as reply:
                return reply.status

        holder = asyncio.create_task(hold())
        await holds.wait()
        waiting = [asyncio.create_task(rig.chat(ask("b" * 70_000))) for _ in range(3)]
        await rig.has_running(4)
        # What is small goes past all of them.
        assert (await rig.chat(ask("c"))).status == 200
        for client in waiting[:2]:
            client.cancel()
        release.set()
        assert await holder == 200
        assert (await waiting[2]).status == 200
        await asyncio.gather(*waiting, return_exceptions=True)
        await rig.idle()
        assert await rig.outcomes() == {"completed": 3, "aborted": 2}


async def test_with_the_last_byte_in_hand_is_completed(tmp_path: Path) -> None:
    """The client closes on the end mark, while the engine has yet to end its answer."""
    hangs = asyncio.Event()

    async def lingering(scope: Any, receive: asgi.Receive, send: asgi.SendMessage) -> None:
        await streams(b'data: {"choices":[],"usage":{"prompt_tokens":9}}\n\n', b"data: [DONE]\n\n")(
            scope, receive, _unfinished(send)
        )
        await hangs.wait()

    async with running(tmp_path, WatchedEngine(answer=lingering)) as rig:
        async with _open(rig, ask("a", stream=True)) as reply:
            async for chunk in reply.chunks:
                if chunk.endswith(b"[DONE]\n\n"):
                    break
        hangs.set()
        await rig.idle()
        assert await rig.outcomes() == {"completed": 1}
        assert await rig.metric("stillframe_unreported_requests_total") == 1


def _unfinished(send: asgi.SendMessage) -> asgi.SendMessage:
    async def sending(message: Any) -> None:
        if message.get("body") or message["type"] != "http.response.body":
            await send(message)

    return sending


async def test_after_an_error_event_stays_failed(tmp_path: Path) -> None:
    engine = WatchedEngine(answer=streams(b'data: {"choices":[]}\n\n', breaks=True))
    async with running(tmp_path, engine) as rig:
        async with _open(rig, ask("a", stream=True)) as reply:
            async for chunk in reply.chunks:
                if b'"error"' in chunk:
                    break
        await rig.idle()
        assert await rig.outcomes() == {"failed": 1}


async def test_many_at_random_moments(tmp_path: Path) -> None:
    config = FakeConfig(decode_seconds_per_token=0.0005, max_running=8)
    async with running(tmp_path, WatchedEngine(config)) as rig:
        await rig.chat(ask(user(image())))
        before = asyncio.all_tasks()
        dice = random.Random(5)  # noqa: S311

        async def client(number: int) -> None:
            leaves = number % 3 == 0
            body = ask(user(text(f"{number}"), image()), stream=number % 2 == 0, max_tokens=8)
            with suppress(TimeoutError):
                async with asyncio.timeout(dice.random() * 0.2 if leaves else None):
                    assert (await rig.chat(body)).status == 200

        await asyncio.gather(*(client(number) for number in range(150)))
        await rig.idle()
        # Work that was under way before, such as an image's perceptual hash, may have ended.
        assert asyncio.all_tasks() <= before
        assert rig.engine.app.core.running == 0
        assert await rig.metric("stillframe_running_requests") == 0
        outcomes = await rig.outcomes()
        assert outcomes.keys() <= {"completed", "aborted"}
        assert sum(outcomes.values()) == 151
        # Whoever is left finds everything as it was.
        assert (await rig.chat(ask("a"))).status == 200


async def test_a_cancelled_server_task_is_not_mistaken_for_a_client(rig: Rig) -> None:
    rig.engine.inject(Fault("hang"))
    cancelled = asyncio.Event()
    serving: list[asyncio.Task[Any] | None] = []

    async def watched(scope: Any, receive: asgi.Receive, send: asgi.SendMessage) -> None:
        serving.append(asyncio.current_task())
        try:
            await rig.app(scope, receive, send)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def client() -> None:
        async with asgi.call(watched, "POST", CHAT, headers=JSON, body=[to_json(ask("a"))]):
            pass

    task = asyncio.create_task(client())
    await _starts(rig)
    assert serving[0] is not None
    serving[0].cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert cancelled.is_set()
    assert await rig.outcomes() == {"aborted": 1}
