"""Summaries through HTTP: asked of the engine before the turn, which never fails for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic_core import to_json

from engine import asgi as engine_asgi
from engine.fake import FakeConfig, Fault
from tests.api.rig import CHAT, JSON, Answer, Rig, WatchedEngine, ask, image, running, text, until, user

POLICY = """
name: own
version: "1"
kind: summary
summary: {unit: turns, high: 2, low: 1, max_tokens: 16, instruction: Sum it up.}
"""
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest_asyncio.fixture
async def own(tmp_path: Path) -> AsyncGenerator[Rig]:
    (tmp_path / "own.yaml").write_text(POLICY)
    environment = {"POLICY": str(tmp_path / "own.yaml"), "CONTEXT__SUMMARY_TIMEOUT_SECONDS": "0.2"}
    async with running(tmp_path, WatchedEngine(FakeConfig(block_tokens=16)), environment) as rig:
        yield rig


async def turn(rig: Rig, messages: list[Any], *new: Any, **parameters: Any) -> Answer:
    messages += [user(one) if isinstance(one, str) else one for one in new]
    answer = await rig.chat(ask(*messages, **parameters))
    assert answer.status == 200, answer.body
    messages.append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]})
    return answer


async def three_turns(rig: Rig, *faults: Fault, **parameters: Any) -> tuple[list[Any], Answer]:
    messages: list[Any] = [{"role": "system", "content": "Be kind. " * 30}]
    await turn(rig, messages, user(text("one " * 30), image("base.png")), **parameters)
    await turn(rig, messages, "two " * 30, **parameters)
    rig.engine.app.faults.extend(faults)
    return messages, await turn(rig, messages, "three", **parameters)


async def test_the_engine_makes_the_block_and_the_next_turn_goes_on_from_it(own: Rig) -> None:
    parameters: dict[str, Any] = {"tools": TOOLS, "chat_template_kwargs": {"plain": True}, "seed": 3}
    messages, answer = await three_turns(own, **parameters)
    one, two, summary, three = own.engine.sent
    assert answer.headers["x-stillframe-break"].startswith("summary; actor=policy; at=messages[1]")
    # The summary's prompt is the conversation's own, and what follows.
    assert summary["messages"][:5] == [*two["messages"][:4], messages[4]]
    assert summary["messages"][5] == {"role": "user", "content": "Sum it up."}
    assert summary["tools"] == one["tools"]
    kept = {key: summary[key] for key in summary.keys() - {"messages", "tools", "model"}}
    # Its blocks are not the turn's.
    assert kept.pop("session_id") not in (None, one["session_id"])
    assert kept == {
        "tool_choice": "none",
        "max_tokens": 16,
        "temperature": 0,
        "stream": False,
        "chat_template_kwargs": {"plain": True},
        "cache_salt": one["cache_salt"],
    }
    block = three["messages"][1]["content"].splitlines()
    assert block[0] == "[Summary v1 of messages 2-5]"
    assert block[1]
    assert block[2:4] == ["Images in these messages:", block[3]]
    assert [message["content"] for message in three["messages"][2:]] == ["three"]
    later = await turn(own, messages, "four", **parameters)
    assert own.engine.sent[-1]["messages"][:3] == three["messages"]
    assert "x-stillframe-break" not in later.headers


async def test_the_segment_is_read_from_the_engines_cache(own: Rig) -> None:
    messages: list[Any] = []
    await turn(own, messages, user(text("one " * 60), image("base.png")))
    second = await turn(own, messages, "two " * 60)
    scheduler = own.engine.app.core.scheduler
    before = scheduler.hits
    await turn(own, messages, "three")
    # The turn behind it shares next to nothing: its prompt begins with the block.
    prompt_tokens = second.json["usage"]["prompt_tokens"]
    assert scheduler.hits - before >= prompt_tokens - 16 > 100


FAULTS = [
    Fault("error", status=500),
    Fault("fail"),
    Fault("hang"),
    Fault("break", after_chunks=0),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.kind)
async def test_the_turn_goes_on_without_a_summary(own: Rig, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    messages, answer = await three_turns(own, fault)
    assert "x-stillframe-break" not in answer.headers
    assert len(own.engine.sent[-1]["messages"]) == len(messages) - 1
    told = [record.message for record in caplog.records if record.name == "app.summaries"]
    assert len(told) == 1
    assert "three" not in told[0]
    # It is not asked again at once.
    await turn(own, messages, "four")
    assert [body["messages"][-1]["content"] for body in own.engine.sent][-3:] == ["Sum it up.", "three", "four"]
    await own.idle()


async def test_a_client_that_leaves_ends_the_summary(own: Rig) -> None:
    messages, _ = await three_turns(own, Fault("error", status=500))
    for number in range(3):
        await turn(own, messages, f"more {number}")
    own.engine.app.faults.append(Fault("hang"))
    asked = len(own.engine.wire)
    body = to_json(ask(*messages, "last"))

    async def wait() -> None:
        async with engine_asgi.call(own.app, "POST", CHAT, headers=JSON, body=[body]):
            raise AssertionError("the client has left")

    waiting = asyncio.create_task(wait())
    await until(lambda: len(own.engine.wire) > asked)
    waiting.cancel()
    await asyncio.wait([waiting])
    await own.idle()
    assert own.engine.sent[-1]["messages"][-1]["content"] == "Sum it up."
    assert (await own.outcomes())["aborted"] == 1
