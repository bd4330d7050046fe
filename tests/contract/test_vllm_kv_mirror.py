"""The mirror on the real engine: what it says can be read is what the engine reads, in a cache too small for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from pydantic_core import from_json

from context.conversations import Conversations
from context.images.base import ImageRef
from context.ledger import Ledger
from context.policies.choice import load_policy
from context.transcript import ImagePart, parts_of
from engine.base import ChatRequest, Engine, EngineImage
from metrics.attribution import Attribution, Attributor, Cache
from metrics.kv_mirror import KvMirror, Owner
from metrics.usage import Usage, read_usage
from tests.contract.cases import data_url, words
from tests.contract.differential import BLOCK_TOKENS, NUM_BLOCKS
from tests.contract.vllm_attribution import settled

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

SIDE = 224


@dataclass(slots=True)
class Rig:
    """A gateway's part that matters here, before the real engine."""

    engine: Engine
    conversations: Conversations
    mirror: KvMirror
    attributor: Attributor
    requests: int = 0
    histories: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])

    async def ask(self, name: str, text: str, picture: int) -> tuple[Attribution, Usage]:
        """A turn with an image."""
        self.requests += 1
        request_id, owner = f"kv-mirror-{self.requests}", Owner("tenant", name)
        image = ImagePart(ImageRef(f"{picture:064x}", SIDE, SIDE, "image/png", 1))
        history = self.histories.setdefault(name, [])
        history.append({"role": "user", "content": [image, {"type": "text", "text": text}]})
        begun = await self.conversations.begin(
            list(history), None, tenant="tenant", key=b"k" * 32, policy=load_policy("stable"), conversation=name
        )
        messages = [_written(one.wire) for one in begun.plan.sent]
        body = {"model": "demo", "messages": messages, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
        self.attributor.begin(request_id, owner, Cache("kv-mirror", "demo"))
        async with self.engine.chat(ChatRequest(request_id, body, "kv-mirror")) as reply:
            answer = from_json(await reply.read())
        usage, parent = read_usage(answer["usage"]), begun.parent
        message = {"role": "assistant", "content": answer["choices"][0]["message"]["content"] or ""}
        history.append(message)
        begun = await self.conversations.accept(begun, message)
        assert begun.turn is not None
        ended = self.attributor.end(request_id, begun.plan, usage, turn=begun.turn.id, parent=parent, replied=True)
        return await settled(ended), usage


@pytest_asyncio.fixture(loop_scope="session")
async def rig(vllm_engine: Engine) -> AsyncGenerator[Rig]:
    mirror = KvMirror(BLOCK_TOKENS)
    follow = asyncio.create_task(mirror.follow(vllm_engine))
    await asyncio.sleep(0)
    # Others may have used it: from here on all is known.
    await vllm_engine.reset_caches()
    ledger = await Ledger.open(None)
    yield Rig(vllm_engine, Conversations(ledger), mirror, Attributor(mirror, BLOCK_TOKENS))
    follow.cancel()
    await asyncio.gather(follow, return_exceptions=True)
    await ledger.close()


async def test_two_conversations_in_a_cache_for_one(rig: Rig) -> None:
    images: dict[str, set[str]] = {"one": set(), "two": set()}
    paid: list[str | None] = []
    for number in range(16):
        name = ("one", "two")[number % 2]
        owner = Owner("tenant", name)
        resident = rig.mirror.resident_prefix(owner)
        found, usage = await rig.ask(name, words(40, seed=number), number)
        images[name].add(f"mirror-{number:064x}")
        if number < 2:
            assert found.cause == "cold"
            continue
        assert usage.read_tokens == resident
        assert found.cause in (None, "engine_eviction")
        if found.cause is not None:
            paid.append(found.evicted_image)
            assert found.evicted_conversation == owner
            assert found.evicted_image in images[name] | {None}
            assert found.evicted_tokens == found.lost_tokens
        assert rig.mirror.resident_blocks < NUM_BLOCKS
    assert len(paid) >= 4
    assert set(paid) - {None}
    assert rig.mirror.uncertain_blocks == 0


def _written(wire: Mapping[str, Any]) -> Mapping[str, Any]:
    parts = [
        EngineImage(f"mirror-{part.ref.image_id}", part.ref, _bytes(int(part.ref.image_id, 16)))
        if isinstance(part, ImagePart)
        else part
        for part in parts_of(wire)
    ]
    return {**wire, "content": parts} if isinstance(wire.get("content"), list) else wire


def _bytes(number: int) -> Any:
    async def load() -> bytes:
        return data_url(SIDE, SIDE, number)

    return load
