"""What a gateway does while the engine works, and behind an answer."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import time
import weakref
from collections.abc import MutableMapping
from contextlib import closing
from pathlib import Path
from typing import Any

from engine import asgi
from tests.api.rig import Rig, WatchedEngine, ask, running

_REPLY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",'
    b'"message":{"role":"assistant","content":"yes"}}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}'
)


class Node:
    """One that holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


async def test_a_turn_is_made_ready_when_the_engine_has_it_and_before_it_answers(tmp_path: Path) -> None:
    times: list[int] = []

    async def answer(scope: MutableMapping[str, Any], receive: asgi.Receive, send: asgi.SendMessage) -> None:
        while (await receive()).get("more_body"):
            pass
        times.append(time.time_ns())
        for _ in range(10):
            await asyncio.sleep(0)
        times.append(time.time_ns())
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": _REPLY})

    async with running(tmp_path, WatchedEngine(answer=answer)) as rig:
        assert (await rig.chat(ask("hello"))).status == 200
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        [(id,)] = connection.execute("SELECT id FROM turns").fetchall()
    # A turn's id is the moment in which it was made ready, in billionths of a second to a millionth.
    assert times[0] // 1000 <= id // 1000 <= times[1] // 1000


async def test_cycles_are_collected_behind_a_chat_and_not_before(rig: Rig) -> None:
    await rig.engine.started.wait()
    await rig.chat(ask("hello"))
    assert not gc.isenabled()
    left = weakref.ref(Node())
    kept: list[list[int]] = [[] for _ in range(20_000)]
    assert left() is not None
    await rig.chat(ask("and again"))
    assert left() is None
    assert kept


async def test_a_failing_engine_leaves_no_body_for_the_collector(tmp_path: Path) -> None:
    async def fail(scope: MutableMapping[str, Any], receive: asgi.Receive, send: asgi.SendMessage) -> None:
        while (await receive()).get("more_body"):
            pass
        raise RuntimeError

    async with running(tmp_path, WatchedEngine(answer=fail)) as rig:
        assert (await rig.chat(ask("warm"))).status == 503
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            # Its own body is kept by the engine that watches; what would stay is the app's.
            assert (await rig.chat(ask("x" * 10_000))).status == 503
            gc.collect()
            assert not [one for one in gc.garbage if isinstance(one, asyncio.Task)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()


def test_after_the_last_gateway_the_interpreter_collects_by_itself() -> None:
    assert gc.isenabled()
