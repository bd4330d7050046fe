"""An engine with the pool of images' KV, and what its tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from engine.base import BlockStored, ChatRequest, EncoderEvent, EngineEvent, EventBatch, ImagePoolState, ImageReuse
from engine.events import followed
from engine.vllm.embedded import VllmEngine
from engine.vllm.options import VllmSettings
from tests.contract.cases import Picture

BLOCK_TOKENS, BLOCKS, MAX_MODEL_TOKENS, CHUNK_TOKENS = 32, 64, 1536, 320
IMAGE_SIDE, IMAGE_TOKENS = 224, 64
TOP = 20
OPTIONS: dict[str, Any] = {
    # Single precision: what is equal is equal but for rounding.
    "dtype": "float32",
    "block-size": BLOCK_TOKENS,
    "num-gpu-blocks-override": BLOCKS,
    "max-model-len": MAX_MODEL_TOKENS,
    "max-num-batched-tokens": CHUNK_TOKENS,
    "enforce-eager": True,
    "limit-mm-per-prompt": {"image": 16, "video": 0},
    "max-logprobs": TOP,
}


def picture(shade: int) -> Picture:
    """An image of `IMAGE_TOKENS`; another shade is another image."""
    return Picture(f"image-{shade}", IMAGE_SIDE, IMAGE_SIDE, shade=shade)


@dataclass(frozen=True, slots=True)
class Said:
    """A reply: for each token that was chosen the most likely ones with their log-probabilities."""

    tokens: tuple[str, ...]
    likely: tuple[Mapping[str, float], ...]
    prompt_tokens: int
    read_tokens: int
    write_tokens: int

    def distance(self, other: Said) -> float:
        """The largest difference of a log-probability, up to where they chose different tokens."""
        found = 0.0
        for at, (one, two) in enumerate(zip(self.likely, other.likely, strict=True)):
            found = max(found, *(abs(one[token] - two[token]) for token in one if token in two))
            if self.tokens[at] != other.tokens[at]:
                break
        return found


# What single precision and another order of sums make of log-probabilities, with room: nothing was measured, in batches
# neither. One row of one layer that is wrong makes ten times as much.
ROUNDING = 5e-5


def same(one: Said, two: Said) -> bool:
    """Whether two replies are equal but for rounding, which may choose between tokens that are as likely."""
    return one.distance(two) < ROUNDING


@dataclass(slots=True)
class Rig:
    """The engine with all of its events."""

    engine: VllmEngine
    events: list[EngineEvent] = field(default_factory=list[EngineEvent])
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(
        self,
        name: str,
        messages: Sequence[Mapping[str, Any]],
        *,
        ratio: float | None = None,
        salt: str = "tenant",
        tokens: int = 4,
        **parameters: Any,
    ) -> Said:
        """Send a chat, for approximate reuse where a ratio is given."""
        body: dict[str, Any] = {
            "model": "demo",
            "messages": messages,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": TOP,
            **parameters,
        }
        if ratio is not None:
            body["kv_transfer_params"] = {"stillframe": {"mode": "position_independent", "ratio": ratio}}
        async with self.engine.chat(ChatRequest(name, body, salt)) as reply:
            answer = from_json(await reply.read())
        assert reply.status == 200, answer
        places = answer["choices"][0]["logprobs"]["content"]
        usage = answer["usage"]
        details = usage["prompt_tokens_details"]
        return Said(
            tuple(place["token"] for place in places),
            tuple({one["token"]: one["logprob"] for one in place["top_logprobs"]} for place in places),
            usage["prompt_tokens"],
            details["cached_tokens"],
            details["created_cache_tokens"],
        )

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache alone. It can be only when no request has a block."""
        client = self.engine._client  # pyright: ignore[reportPrivateUsage]
        # The core frees a finished request's blocks a step after its last token left.
        for _ in range(500):
            if await client.reset_prefix_cache():
                return
            await asyncio.sleep(0.02)
        raise AssertionError("blocks are still in use")

    async def forget_encoder_outputs(self) -> None:
        """Empty the encoder cache alone."""
        await self.engine._client.reset_encoder_cache()  # pyright: ignore[reportPrivateUsage]

    async def reuse(self, name: str) -> ImageReuse:
        """What a request got from the pool."""

        def fits(event: EngineEvent) -> bool:
            return isinstance(event, ImageReuse) and event.request_id == name

        return await self._event(fits)

    async def pool(self) -> ImagePoolState:
        """The pool, once it knows of no request and nothing is held. After `reuse` of the last request: both come in
        order."""
        return await self._event(_is_quiet, latest=True)

    async def emptied(self) -> ImagePoolState:
        """The pool, once it is said to have nothing in memory. No request makes the engine say so."""
        return await self._event(
            lambda event: isinstance(event, ImagePoolState) and not event.memory_entries, latest=True
        )

    async def goes(self, since: int, blocks: int) -> int:
        """In how many goes the engine stored so many blocks of one request, from an event on: each is a step."""
        async with asyncio.timeout(20):
            while True:
                stored = [len(one.block_hashes) for one in self.events[since:] if isinstance(one, BlockStored)]
                if sum(stored) >= blocks:
                    return len(stored)
                self.came.clear()
                await self.came.wait()

    def encoder_events(self, name: str, kind: str) -> list[str]:
        """The images of which the encoder cache said this for a request."""
        return [
            event.uuid
            for event in self.events
            if isinstance(event, EncoderEvent) and event.request_id == name and event.kind == kind
        ]

    async def _event(self, fits: Callable[[EngineEvent], bool], *, latest: bool = False) -> Any:
        async with asyncio.timeout(20):
            while True:
                found = [event for event in self.events if fits(event)]
                pools = [event for event in self.events if isinstance(event, ImagePoolState)]
                if found and (not latest or pools[-1] is found[-1]):
                    return found[-1]
                self.came.clear()
                await self.came.wait()

    async def follow(self, batches: AsyncIterator[EventBatch]) -> None:
        """Keep what the engine tells."""
        async for batch in batches:
            self.events += batch.events
            self.came.set()


def _is_quiet(event: EngineEvent) -> bool:
    return isinstance(event, ImagePoolState) and not event.requests + event.holds + event.capturing + event.held_entries


@asynccontextmanager
async def started(checkpoint: Path, image_kv: Mapping[str, Any], **options: Any) -> AsyncGenerator[Rig]:
    """An engine with a pool, until the context is left."""
    given = {**OPTIONS, "image-kv": dict(image_kv), **options}
    engine = VllmEngine(VllmSettings(str(checkpoint), "demo", given, kv_cache_gib=1))
    rig = Rig(engine)
    # What it tells as it starts, too.
    async with followed(engine, rig.follow):
        await engine.start()
        try:
            yield rig
        finally:
            await engine.stop()
