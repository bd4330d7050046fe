"""Work beside the requests that breaks: told once, seen in metrics and readiness, begun again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.background import Background
from engine.base import EventBatch
from tests.api.rig import WatchedEngine, ask, running, user

SECRET = "what the client said"


class Stumbling(WatchedEngine):
    """Breaks the first time that somebody asks for its events."""

    def __init__(self) -> None:
        super().__init__()
        self.broke, self.again = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        if not self.broke.is_set():
            self.broke.set()
            raise RuntimeError(SECRET)
        async with super().events() as batches:
            self.again.set()
            yield batches


async def test_events_are_followed_again_after_it_broke(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Stumbling()
    async with running(tmp_path, engine) as rig:
        await engine.broke.wait()
        async with asyncio.timeout(20):
            while await rig.metric("stillframe_background_failures_total", task="follow") == 0:
                pass
        shown = await rig.get("/health/ready")
        assert (shown.status, shown.json["failing"]) == (200, ["follow"])
        assert (await rig.chat(ask(user("hi")))).status == 200
        async with asyncio.timeout(20):
            await engine.again.wait()
            while "failing" in (await rig.get("/health/ready")).json:
                pass
    (told,) = [one.getMessage() for one in caplog.records if "is begun again" in one.getMessage()]
    assert told.startswith("follow broke")
    assert SECRET not in caplog.text


async def test_work_is_begun_again_until_it_ends_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    background = Background(failed.append, first_wait_seconds=0.0)
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs < 4:
            raise ValueError(SECRET)

    with caplog.at_level(logging.ERROR):
        await background.keep("work", work)
    assert (runs, failed, background.failing) == (4, ["work"] * 3, set())
    assert len(caplog.records) == 1
