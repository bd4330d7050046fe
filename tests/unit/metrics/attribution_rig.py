"""Conversations through the real ledger, planner and policies, a fake engine's caches, mirror and attribution."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, cast

from context.conversations import Conversations
from context.images.base import ImageRef
from context.layout.tail import with_tail
from context.ledger import Ledger
from context.plan import PromptPlan, SummaryRequest
from context.policies.base import Policy
from context.policies.choice import load_policy
from context.transcript import ImagePart
from engine.base import EngineEvent, EventBatch
from engine.fake import FakeConfig, FakeCore
from engine.fake.template import ChatMLTemplate, Conversation
from metrics.attribution import Attribution, Attributor, Cache
from metrics.kv_mirror import KvMirror, Owner
from metrics.usage import Usage
from tests.contract.cases import data_url, words

BLOCK = 16
STABLE = load_policy("stable")
SIDE = 112


class OtherTemplate(ChatMLTemplate):
    """Says first how many messages there are: no prompt begins with the one before."""

    def render(self, conversation: Conversation, tools: list[dict[str, Any]] | None, options: Mapping[str, Any]) -> str:
        """See `Template.render`."""
        return f"{len(conversation)} messages\n" + super().render(conversation, tools, options)


def picture(number: int) -> ImagePart:
    """An image of its own, of 16 tokens."""
    return ImagePart(ImageRef(f"{number:064x}", SIDE, SIDE, "image/png", 300))


def uuid_of(number: int) -> str:
    """What the engine calls it."""
    return f"uuid-{number:064x}"


def said(*content: str | ImagePart) -> dict[str, Any]:
    """A user message."""
    return {
        "role": "user",
        "content": [{"type": "text", "text": one} if isinstance(one, str) else one for one in content],
    }


@dataclass(slots=True)
class Client:
    """One client with its history, which a test may change as it likes."""

    name: str
    messages: list[Any] = field(default_factory=list[Any])
    tools: list[Any] | None = None
    policy: Policy = STABLE
    salt: str = "salt"
    model: str = "model"
    turns: int = 0
    last: PromptPlan | None = None

    @property
    def owner(self) -> Owner:
        """Whose its blocks are."""
        return Owner("tenant", self.name)

    def system(self, text: str) -> None:
        """Set the system prompt."""
        self.messages[:1] = [{"role": "system", "content": text}]


class Rig:
    """A gateway's part that matters here. With `reports` unset the engine's figures, with `lose` set its events, do not
    come.
    """

    def __init__(self, conversations: Conversations, config: FakeConfig, *, mirrored: bool) -> None:
        self.core = FakeCore(config)
        self.mirror = KvMirror(config.block_tokens) if mirrored else None
        self.attributor = Attributor(self.mirror, config.block_tokens)
        self.reports, self.lose = True, False
        self._conversations = conversations
        self._requests = self._sequence = 0
        self.heard: list[EngineEvent] = []
        self.usage = Usage()

    async def ask(self, client: Client, *content: str | ImagePart, reply: str | None = None) -> Attribution:
        """A turn: the client says something, or asks again with the history as it is."""
        if content:
            client.messages.append(said(*content))
        self._requests += 1
        client.turns += 1
        request_id, reply = f"request-{self._requests}", reply or words(20, seed=self._requests)
        begun = await self._conversations.begin(
            # What the test changes later is not what was sent.
            deepcopy(client.messages),
            client.tools,
            tenant="tenant",
            key=b"k" * 32,
            policy=client.policy,
            conversation=client.name,
            summarize=_summary,
        )
        client.last = begun.plan
        cache = Cache(client.salt, client.model)
        self.attributor.begin(request_id, client.owner, cache)
        self.usage = self._complete(begun.plan, client.salt, request_id, reply)
        parent, sent_before = begun.parent, begun.before
        begun = await self._conversations.accept(begun, {"role": "assistant", "content": reply})
        client.messages.append({"role": "assistant", "content": reply})
        self.tell()
        ended = self.attributor.end(
            request_id,
            begun.plan,
            self.usage if self.reports else replace(self.usage, read_tokens=None, write_tokens=None),
            turn=begun.turn.id if begun.turn else None,
            parent=parent,
            sent_before=sent_before,
            replied=True,
        )
        return ended.result()

    def restart(self) -> None:
        """The gateway begins anew, beside an engine that goes on and tells it no events."""
        self.mirror = None
        self.attributor = Attributor(None, self.core.config.block_tokens)

    def fill(self, tokens: int, *, seed: int) -> None:
        """Somebody else's long prompt: what is in its way is evicted."""
        text = {"messages": [{"role": "user", "content": words(tokens // 3, seed=90_000 + seed)}], "max_tokens": 1}
        self.core.complete(text, "filler")
        self.tell()

    def tell(self) -> None:
        """Hand on what the engine reports, unless it is lost on the way."""
        self.heard = events = self.core.take_events()[0]
        if events and self.mirror is not None:
            if not self.lose:
                self.mirror.take(EventBatch("kv", self._sequence, float(self._requests), tuple(events)))
            self._sequence += 1

    def _complete(self, plan: PromptPlan, salt: str, request_id: str, reply: str) -> Usage:
        messages = [_written(one.wire) for one in with_tail(plan.sent, plan.tail)]
        body: dict[str, Any] = {"messages": messages, "cache_salt": salt, "session_id": request_id}
        if plan.tools:
            body |= {"tools": list(plan.tools), "tool_choice": "none"}
        used = self.core.complete(body, request_id, answer=reply)
        uncached = used.prompt_tokens - used.read_tokens - used.write_tokens
        return Usage(used.prompt_tokens, used.completion_tokens, used.read_tokens, used.write_tokens, uncached, False)


@asynccontextmanager
async def rig(num_blocks: int = 4097, *, mirrored: bool = True, block_tokens: int = BLOCK) -> AsyncGenerator[Rig]:
    """A new one; the KV cache has room for `num_blocks - 1` blocks."""
    config = FakeConfig(
        block_tokens=block_tokens, num_blocks=num_blocks, max_model_tokens=(num_blocks - 1) * block_tokens
    )
    ledger = await Ledger.open(None)
    try:
        yield Rig(Conversations(ledger), config, mirrored=mirrored)
    finally:
        await ledger.close()


async def _summary(request: SummaryRequest, _: str) -> str:
    return words(30, seed=len(request.messages))


def _written(wire: Mapping[str, Any]) -> Mapping[str, Any]:
    content = wire.get("content")
    if not isinstance(content, (list, tuple)):
        return wire
    return {**wire, "content": [_part(part) for part in cast("Sequence[Any]", content)]}


def _part(part: Any) -> Any:
    if not isinstance(part, ImagePart):
        return part
    return {"type": "image_url", "image_url": {"url": _shown(SIDE)}, "uuid": f"uuid-{part.ref.image_id}"}


@lru_cache
def _shown(side: int) -> str:
    # The engine goes by the uuid: the pixels need not differ.
    return data_url(side, side, 1).decode()
