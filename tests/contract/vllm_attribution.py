"""What attributes turns, before the real engine: the counterpart of `tests/unit/metrics/attribution_rig.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json

from context.conversations import Conversations
from context.layout.tail import with_tail
from context.ledger import Ledger
from context.transcript import ImagePart, parts_of
from engine.base import ChatRequest, Engine, EngineImage
from engine.fake.template import ChatMLTemplate
from metrics.attribution import Attributing, Attribution, Attributor, Cache
from metrics.kv_mirror import KvMirror
from metrics.usage import Usage, read_usage
from tests.contract.cases import data_url, user, words
from tests.contract.differential import BLOCK_TOKENS, MAX_MODEL_TOKENS
from tests.unit.metrics.attribution_rig import (
    SIDE,
    Client,
    OtherTemplate,
    _summary,  # pyright: ignore[reportPrivateUsage]
    said,
    uuid_of,
)


@dataclass
class _Config:
    max_model_tokens: int = MAX_MODEL_TOKENS


@dataclass
class _Core:
    """What tests set of an engine."""

    config: _Config = field(default_factory=_Config)
    template: Any = field(default_factory=ChatMLTemplate)


class RealRig:
    """As `Rig`, on vLLM. Replies are the engine's own and short: less than a block."""

    def __init__(self, engine: Engine, conversations: Conversations, mirror: KvMirror, template: str) -> None:
        self.engine, self.mirror, self.core = engine, mirror, _Core()
        self.attributor = Attributor(mirror, BLOCK_TOKENS)
        self.reports = True
        self.usage = Usage()
        self._conversations, self._template = conversations, template
        self._requests = 0
        self._fills: list[tuple[int, int]] = []

    async def ask(self, client: Client, *content: str | ImagePart, reply: str | None = None) -> Attribution:
        """A turn: the client says something, or asks again with the history as it is."""
        await self._fill()
        if content:
            client.messages.append(said(*content))
        client.turns += 1
        request_id = self._next()
        begun = await self._conversations.begin(
            deepcopy(client.messages),
            client.tools,
            tenant="tenant",
            key=b"k" * 32,
            policy=client.policy,
            conversation=client.name,
            summarize=_summary,
        )
        client.last, parent = begun.plan, begun.parent
        messages = [_written(one.wire) for one in with_tail(begun.plan.sent, begun.plan.tail)]
        body: dict[str, Any] = {"messages": messages}
        if begun.plan.tools:
            body |= {"tools": list(begun.plan.tools), "tool_choice": "none"}
        if isinstance(self.core.template, OtherTemplate):
            body["chat_template"] = "{{ messages | length }} messages\n" + self._template
        self.attributor.begin(request_id, client.owner, Cache(client.salt, client.model))
        text, self.usage = await self._chat(request_id, body, client.salt)
        message = {"role": "assistant", "content": text}
        client.messages.append(message)
        begun = await self._conversations.accept(begun, message)
        usage = self.usage if self.reports else replace(self.usage, read_tokens=None, write_tokens=None)
        turn = None if begun.turn is None else begun.turn.id
        return await settled(self.attributor.end(request_id, begun.plan, usage, turn=turn, parent=parent, replied=True))

    def fill(self, tokens: int, *, seed: int) -> None:
        """Somebody else's long prompt, before the next turn: what is in its way is evicted."""
        self._fills.append((tokens, seed))

    async def _fill(self) -> None:
        for tokens, seed in self._fills:
            text, size = "", 0
            while size < tokens - 100:
                # A word takes seven tokens at most.
                text = f"{text} {words(max(1, (tokens - size) // 8), seed=90_000 + seed + size)}"
                _, usage = await self._chat(self._next(), {"messages": [user(text)]}, f"filler-{seed}")
                size = usage.prompt_tokens or 0
        self._fills.clear()

    def _next(self) -> str:
        self._requests += 1
        return f"rig-{id(self)}-{self._requests}"

    async def _chat(self, request_id: str, body: dict[str, Any], salt: str) -> tuple[str, Usage]:
        fixed = {"model": "demo", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        async with self.engine.chat(ChatRequest(request_id, fixed | body, f"{id(self)}-{salt}")) as reply:
            answer = from_json(await reply.read())
        return answer["choices"][0]["message"]["content"] or "", read_usage(answer["usage"])


@asynccontextmanager
async def real_rig(engine: Engine, template: str) -> AsyncGenerator[RealRig]:
    """A rig whose mirror knows all that the engine holds: nothing at first."""
    mirror = KvMirror(BLOCK_TOKENS)
    follow = asyncio.create_task(mirror.follow(engine))
    await asyncio.sleep(0)
    # Others may have used it.
    await engine.reset_caches()
    ledger = await Ledger.open(None)
    try:
        yield RealRig(engine, Conversations(ledger), mirror, template)
    finally:
        follow.cancel()
        await asyncio.gather(follow, return_exceptions=True)
        await ledger.close()


async def settled(attributing: Attributing) -> Attribution:
    """What a turn is attributed to once the engine has told enough, within twenty seconds."""
    async with asyncio.timeout(20):
        while not attributing.is_settled:  # noqa: ASYNC110 - it is another process that tells
            await asyncio.sleep(0.002)
    return attributing.result()


def _written(wire: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = [
        EngineImage(uuid_of(int(part.ref.image_id, 16)), part.ref, _bytes(int(part.ref.image_id, 16)))
        if isinstance(part, ImagePart)
        else part
        for part in parts_of(wire)
    ]
    return {**wire, "content": parts} if isinstance(wire.get("content"), list) else wire


def _bytes(number: int) -> Any:
    async def load() -> bytes:
        return data_url(SIDE, SIDE, number)

    return load
