"""What the gateway says of turns whose images' KV the real engine loaded: parts of the prompt, and who parts turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json, to_json

from app import settings as settings_module
from app.server import GatewayApp
from engine import asgi
from engine.base import ChatRequest, Engine, EngineHealth, EngineInfo, EngineReply, EventBatch
from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from tests.contract.cases import data_url, words
from tests.contract.image_kv_rig import IMAGE_SIDE, IMAGE_TOKENS, Rig

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


class Lent:
    """An engine that runs already, and goes on when the gateway stops."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def start(self) -> None:
        """See `Engine.start`."""

    async def stop(self) -> None:
        """See `Engine.stop`."""

    def health(self) -> EngineHealth:
        """See `Engine.health`."""
        return self._engine.health()

    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return self._engine.info()

    def chat(self, request: ChatRequest) -> AbstractAsyncContextManager[EngineReply]:
        """See `Engine.chat`."""
        return self._engine.chat(request)

    def forward(
        self, method: str, path: str, *, headers: Mapping[str, str], body: Sequence[bytes] = ()
    ) -> AbstractAsyncContextManager[EngineReply]:
        """See `Engine.forward`."""
        return self._engine.forward(method, path, headers=headers, body=body)

    async def reset_caches(self) -> None:
        """See `Engine.reset_caches`."""
        await self._engine.reset_caches()

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[EventBatch]]:
        """See `Engine.events`."""
        return self._engine.events()


def _said(text: str, shade: int | None = None, behind: str = "") -> dict[str, Any]:
    parts: list[Any] = [{"type": "text", "text": text}]
    if shade is not None:
        url = data_url(IMAGE_SIDE, IMAGE_SIDE, shade).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return {"role": "user", "content": [*parts, {"type": "text", "text": behind}] if behind else parts}


async def _answered(app: GatewayApp, name: str, messages: list[Any], ratio: str | None) -> Mapping[str, str]:
    headers = {"content-type": "application/json", "x-stillframe-conversation": name}
    headers |= {"x-stillframe-reuse": ratio} if ratio else {}
    body = to_json({"model": "demo", "messages": messages, "max_tokens": 4, "temperature": 0})
    async with asgi.call(app, "POST", "/v1/chat/completions", headers=headers, body=[body]) as reply:
        answer = from_json(await reply.read())
        assert reply.status == 200, answer
        messages.append(answer["choices"][0]["message"])
        return reply.headers


async def _recorded(folder: Path, name: str, count: int) -> list[TurnRecord]:
    """The turns of a conversation, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            with open_records(folder / "ledger.db") as records:
                found = queries.conversation_turns(records, "default", name)
            if len(found) == count:
                return found
            await asyncio.sleep(0.05)


async def test_loaded_tokens_and_another_ratio_are_told_as_what_they_are(image_rig: Rig, tmp_path: Path) -> None:
    environment = {"STILLFRAME_DATA_DIR": str(tmp_path), "STILLFRAME_REUSE_HEADER": "true"}
    app = GatewayApp(settings_module.load(environment=environment), Lent(image_rig.engine))
    async with asgi.lifespan(app):
        await _answered(app, "donor", [_said("look at this", 41, words(30, seed=5))], None)
        await _recorded(tmp_path, "donor", 1)
        messages: list[Any] = [_said(words(45, seed=6), 41, words(60, seed=7))]
        told: list[str | None] = []
        turns: list[TurnRecord] = []
        for turn, ratio in enumerate(("0.05", "0.05", "0.3", None), 1):
            told.append((await _answered(app, "c", messages, ratio)).get("x-stillframe-break"))
            turns = await _recorded(tmp_path, "c", turn)
            messages.append(_said(f"and now {turn}"))
    first, same, changed, exact = turns
    for one in turns:
        parts = (one.read_tokens, one.loaded_tokens, one.write_tokens, one.uncached_tokens)
        assert sum(part or 0 for part in parts) == one.prompt_tokens
    computed = -(-0.05 * IMAGE_TOKENS // 1), -(-0.3 * IMAGE_TOKENS // 1)
    assert (first.loaded_tokens, same.loaded_tokens) == (IMAGE_TOKENS - computed[0], 0)
    assert (changed.loaded_tokens, exact.loaded_tokens) == (IMAGE_TOKENS - computed[1], None)
    assert told[:2] == [None, None]
    assert all((one or "").startswith("salt; actor=client; at=messages[0].content[1]; ") for one in told[2:])
    assert [(one.cause, one.actor) for one in turns[1:]] == [(None, None), ("salt", "client"), ("salt", "client")]
    assert (changed.lost_tokens or 0) == (changed.expected_read or 0) - (changed.read_tokens or 0) - (
        changed.loaded_tokens or 0
    )
    assert (exact.lost_tokens or 0) == (exact.expected_read or 0) - (exact.read_tokens or 0) > IMAGE_TOKENS
