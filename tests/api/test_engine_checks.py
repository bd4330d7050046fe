"""What the gateway finds out about its engine at the start, and where it says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_core import to_json

from engine.base import EngineInfo, EventBatch
from engine.fake import FakeConfig
from engine.remote import RemoteEngine, RemoteSettings
from tests.api.rig import ADMIN, Rig, WatchedEngine, answers_with, ask, running, user
from tests.contract.remote_fixtures import VLLM_MODELS, Exchange, Received, Scripted, scripted, served_fake

CHECKS = ("template_appends", "prefix_caching", "reports_read")
ANSWERS = ("yes", "no", "sometimes", "unknown")


class Telling(WatchedEngine):
    """Says of itself what it is told to."""

    def __init__(self, answer: Any = None, **told: Any) -> None:
        super().__init__(FakeConfig(), answer)
        self.told = told

    def info(self) -> EngineInfo:
        return replace(super().info(), **self.told)


async def checks(rig: Rig) -> dict[str, str]:
    return (await rig.get("/admin/state", ADMIN)).json["checks"]


async def checked(rig: Rig, check: str, answer: str) -> None:
    """Wait, at most five seconds, until a check has an answer."""
    async with asyncio.timeout(5.0):
        while (await checks(rig))[check] != answer:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.001)


def answering(*details: Any) -> Any:
    """Answers one after another with these details of its usage, the last for all that come later."""
    left = list(details)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given = left.pop(0) if len(left) > 1 else left[0]
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a cat"}}
        usage = {"prompt_tokens": 400, "completion_tokens": 2, "prompt_tokens_details": given}
        body = to_json({"object": "chat.completion", "choices": [choice], "usage": usage})
        await answers_with(200, body)(scope, receive, send)

    return app


READ = {"cached_tokens": 0}


@pytest.mark.parametrize(
    ("told", "known", "words"),
    [
        ({}, {"prefix_caching": "yes", "reports_read": "yes"}, ""),
        ({"caches_prefix": False}, {"prefix_caching": "no", "reports_read": "yes"}, "enable-prefix-caching"),
        ({"reports_read": False}, {"prefix_caching": "yes", "reports_read": "no"}, "--enable-prompt-tokens-details"),
        ({"caches_prefix": None, "reports_read": None}, {"prefix_caching": "unknown", "reports_read": "unknown"}, ""),
    ],
)
async def test_the_start_tells_what_the_engine_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, told: dict[str, Any], known: dict[str, str], words: str
) -> None:
    with caplog.at_level(logging.INFO, "app.gateway"):
        async with running(tmp_path, Telling(**told)) as rig:
            await checked(rig, "template_appends", "yes")
            assert await checks(rig) == {"template_appends": "yes", **known}
            shown = (await rig.get("/dashboard/api/status", ADMIN)).json["engine"]
            assert shown["checks"] == await checks(rig)
            assert [words in one for one in shown["warnings"]] == ([True] if words else [])
            for check in CHECKS:
                for answer in ANSWERS:
                    is_it = (await checks(rig))[check] == answer
                    assert await rig.metric("stillframe_engine_check", check=check, answer=answer) == is_it
    said = [one.getMessage() for one in caplog.records if one.name == "app.gateway"]
    assert [one for one in said if one.startswith("engine: template appends yes, prefix caching")]
    assert len([one for one in caplog.records if one.levelno == logging.WARNING]) == bool(words)
    assert words in caplog.text


@pytest.mark.parametrize(
    ("details", "reports", "warned"),
    [
        ((READ, READ), "yes", 0),
        ((None, None), "no", 1),
        ((None, READ), "sometimes", 1),
        ((READ, None), "sometimes", 1),
    ],
)
async def test_what_is_not_known_at_the_start_the_answers_tell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, details: tuple[Any, ...], reports: str, warned: int
) -> None:
    engine = Telling(answering(*details), reports_read=None)
    async with running(tmp_path, engine) as rig:
        await checked(rig, "template_appends", "yes")
        assert (await checks(rig))["reports_read"] == "unknown"
        for _ in details:
            assert (await rig.chat(ask(user("hi")))).status == 200
        assert (await checks(rig))["reports_read"] == reports
    assert len([one for one in caplog.records if "does not report" in one.getMessage()]) == warned


@pytest.mark.parametrize(("reports", "answer"), [(True, "yes"), (False, "no")])
async def test_an_upstream_is_asked_where_the_settings_say_so(tmp_path: Path, reports: bool, answer: str) -> None:
    with served_fake(FakeConfig(reports_cache=reports)) as upstream:
        for probed, known in ((True, answer), (False, "unknown")):
            engine = RemoteEngine(RemoteSettings((upstream.url,), probe_usage=probed))
            async with running(tmp_path, cast(WatchedEngine, engine), wait=False) as rig:
                await checked(rig, "template_appends", "yes")
                assert (await checks(rig))["reports_read"] == known


async def test_an_upstream_that_comes_later_is_looked_at_then(tmp_path: Path) -> None:
    async def tells(request: Received, exchange: Exchange) -> bool:
        if request.path == "/metrics":
            line = b'vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0"} 1.0\n'
            await exchange.answer(200, line)
        else:
            await exchange.answer(404, b"{}")
        return True

    async with scripted(tells, models=VLLM_MODELS, models_status=503) as upstream:
        await _comes_later(tmp_path, upstream)


async def _comes_later(folder: Path, upstream: Scripted) -> None:
    engine = RemoteEngine(RemoteSettings((upstream.url,), cooling_seconds=0.01))
    async with running(folder, cast(WatchedEngine, engine), wait=False) as rig:
        assert (await rig.get("/health/ready")).status == 503
        assert (await checks(rig))["prefix_caching"] == "unknown"
        upstream.models_status = 200
        await checked(rig, "prefix_caching", "no")


class BreakingOff(WatchedEngine):
    """Its events break off once, when it is told to, and then go on."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks, self.listeners = False, 0

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        async with super().events() as batches:
            self.listeners += 1
            yield self._until(batches)

    async def _until(self, batches: AsyncIterator[EventBatch]) -> AsyncIterator[EventBatch]:
        async for batch in batches:
            if self.breaks:
                self.breaks = False
                raise RuntimeError
            yield batch


async def test_what_is_known_of_blocks_outlives_a_break_of_the_events(tmp_path: Path) -> None:
    engine, history = BreakingOff(), [user("the same words in front " * 40)]

    async def kv(rig: Rig, name: str) -> dict[str, int]:
        shown = (await rig.get("/dashboard/api/status", ADMIN)).json
        asked = f"/dashboard/api/conversation?tenant={shown['names']['tenants'][0]}&id={name}"
        return {**(await rig.get(asked, ADMIN)).json["kv"], **shown["kv"]}

    async def heard(rig: Rig, name: str, resident: int) -> None:
        async with asyncio.timeout(10):
            while (await kv(rig, name))["resident_prefix_tokens"] != resident:  # noqa: ASYNC110 - nothing tells when
                await asyncio.sleep(0.01)

    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask(*history))
        name, usage = answer.headers["x-stillframe-conversation"], answer.json["usage"]
        history += [answer.json["choices"][0]["message"], user("more")]
        full = (usage["total_tokens"] - 1) // 16 * 16
        async with asyncio.timeout(10):
            while not (await rig.get("/dashboard/api/status", ADMIN)).json["names"]["tenants"]:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        await heard(rig, name, full)
        engine.breaks = True
        assert (await rig.chat(ask(user("another's")))).status == 200
        async with asyncio.timeout(10):
            while engine.listeners < 4:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        # Its blocks are known still; whether they are there, the engine has to tell again.
        known = await kv(rig, name)
        assert (known["known_blocks"], known["resident_prefix_tokens"]) == (full // 16, 0)
        assert known["uncertain_blocks"] >= full // 16
        assert known["gaps"] >= 1
        answer = await rig.chat(ask(*history))
        assert answer.headers["x-stillframe-conversation"] == name
        await heard(rig, name, (answer.json["usage"]["total_tokens"] - 1) // 16 * 16)
