"""What the engine contract needs to know of an engine, and the requests that it sends."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from PIL import Image
from pydantic_core import from_json

from context.images.base import ImageRef
from engine.base import BlockStored, ChatRequest, EncoderEvent, Engine, EngineImage, EventBatch

Break = Literal["before", "middle", "crash"]

ENDLESS: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}


@dataclass(frozen=True, slots=True)
class EngineCase:
    """One engine under the contract.

    `make` gives a new, stopped engine. `running` counts requests that the engine still works on. `break_next`, where
    an engine can be told to, makes the next chat fail. The flags say what the engine reports or understands; a test of
    what it does not is skipped.
    """

    make: Callable[[], Engine]
    model: str
    running: Callable[[Engine], Awaitable[int]]
    break_next: Callable[[Engine, Break], Awaitable[None]] | None = None
    accepts_uuid: bool = True
    reports_cache: bool = True
    resets_caches: bool = True
    kv_events: bool = True
    encoder_events: bool = True
    block_tokens: int = 16


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole reply: its status, its body, and for a chat that succeeded its usage without nulls."""

    status: int
    body: bytes
    sent_image_bytes: int
    image_misses: int
    usage: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""

    @property
    def prompt_tokens(self) -> int:
        return self.usage["prompt_tokens"]

    @property
    def read_tokens(self) -> int:
        return self.usage["prompt_tokens_details"]["cached_tokens"]

    @property
    def image_tokens(self) -> int:
        return self.usage["prompt_tokens_details"].get("multimodal_tokens", {}).get("image", 0)

    @property
    def write_tokens(self) -> int:
        return self.usage["prompt_tokens_details"]["created_cache_tokens"]


@dataclass(slots=True)
class Picture:
    """An image of the tests: a plane of one colour with a line through it. `loads` counts how often it was fetched."""

    uuid: str
    width: int = 224
    height: int = 224
    shade: int = 0
    loads: int = 0

    def part(self) -> EngineImage:
        return EngineImage(self.uuid, ImageRef("0" * 64, self.width, self.height, "image/png", 1), self._load)

    async def _load(self) -> bytes:
        self.loads += 1
        return data_url(self.width, self.height, self.shade)


def data_url(width: int, height: int, shade: int) -> bytes:
    """A PNG as a data URL; another shade is another image."""
    image = Image.new("RGB", (width, height), (shade * 37 % 256, shade * 91 % 256, shade % 256))
    image.putpixel((shade % width, 0), (255, 255, 255))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return b"data:image/png;base64," + base64.b64encode(buffer.getvalue())


def words(count: int, seed: int = 0) -> str:
    """Text of many tokens that is the same for the same arguments."""
    return " ".join(f"w{(number * 7919 + seed * 104_729) % 100_003}" for number in range(count))


def user(*content: str | Picture) -> dict[str, Any]:
    """A user message of texts and pictures."""
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part.part() for part in content]
    return {"role": "user", "content": parts}


async def ask(
    engine: Engine,
    case: EngineCase,
    messages: list[dict[str, Any]],
    *,
    request_id: str = "contract",
    salt: str = "contract",
    **parameters: Any,
) -> Answered:
    """Send a chat and read the whole reply, streamed or not. `max_tokens` is 1 unless it is given."""
    body = {"model": case.model, "messages": messages, "max_tokens": 1, "temperature": 0} | parameters
    if body.get("stream"):
        body.setdefault("stream_options", {"include_usage": True})
    async with engine.chat(ChatRequest(request_id, body, salt)) as reply:
        content = await reply.read()
        figures = (reply.status, content, reply.sent_image_bytes, reply.image_misses)
    if figures[0] != 200:
        return Answered(*figures)
    usage, text = _streamed(content) if body.get("stream") else _whole(content)
    return Answered(*figures, without_none(usage), text)


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The JSON events of a stream; it must end with the end mark."""
    lines = [line[6:] for line in stream.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [from_json(line) for line in lines[:-1]]


def _streamed(content: bytes) -> tuple[dict[str, Any], str]:
    events = events_of(content)
    deltas = [choice["delta"].get("content") or "" for event in events for choice in event["choices"]]
    return events[-1]["usage"], "".join(deltas)


def _whole(content: bytes) -> tuple[dict[str, Any], str]:
    body = from_json(content)
    return body["usage"], body["choices"][0]["message"]["content"] or ""


def without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same body without nulls, at every depth."""
    kept = {key: value for key, value in body.items() if value is not None}
    return {
        key: without_none(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in kept.items()
    }


def full_blocks(tokens: int, block_tokens: int) -> int:
    """Tokens that an identical prompt can read: all full blocks that end before its last token."""
    return (tokens - 1) // block_tokens * block_tokens


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Poll until the check holds; fails after some seconds."""
    async with asyncio.timeout(20):
        while not await check():  # noqa: ASYNC110 - an engine in another process gives nothing to wait on
            await asyncio.sleep(0.01)


async def idle(engine: Engine, case: EngineCase) -> None:
    """Wait until the engine works on nothing; fails when it does not come to that."""

    async def nothing() -> bool:
        return await case.running(engine) == 0

    await eventually(nothing)


async def busy(engine: Engine, case: EngineCase) -> None:
    """Wait until the engine works on something."""

    async def something() -> bool:
        return await case.running(engine) > 0

    await eventually(something)


async def encoder_events(batches: AsyncIterator[EventBatch], request_id: str) -> list[EncoderEvent]:
    """A request's encoder events, up to the one that says it holds no more features."""
    found: list[EncoderEvent] = []
    async with asyncio.timeout(20):
        async for batch in batches:
            for event in batch.events:
                if isinstance(event, EncoderEvent) and event.request_id == request_id:
                    found.append(event)
                    if event.kind == "done":
                        return found
    raise AssertionError("the subscription ended before the request's last encoder event")


async def stored_tokens(batches: AsyncIterator[EventBatch], salt: str, count: int) -> list[BlockStored]:
    """Block events of the prompt with that salt, until they cover `count` tokens. Others may be in between."""
    found: list[BlockStored] = []
    chain: set[bytes | int] = set()
    async with asyncio.timeout(20):
        async for batch in batches:
            for event in batch.events:
                if not isinstance(event, BlockStored):
                    continue
                first = event.parent_block_hash is None and salt in (event.extra_keys[0] or ())
                if first or event.parent_block_hash in chain:
                    found.append(event)
                    chain.update(event.block_hashes)
            if sum(len(event.token_ids) for event in found) >= count:
                return found
    raise AssertionError(f"the subscription ended before {count} tokens were stored")


def hello(case: EngineCase) -> dict[str, Any]:
    """A short chat."""
    return {"model": case.model, "messages": [user("hello")], "max_tokens": 4, "temperature": 0}
