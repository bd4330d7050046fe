"""The fake engine as one that keeps images' KV for approximate reuse, and says behind its answers, when a test has it
do so, what came of it. It loads nothing: what is shown by it is where the engine keeps blocks apart, and what the
gateway makes of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from context.reuse import Reuse
from context.transcript import parts_of
from engine.base import ChatRequest, EngineEvent, EngineImage, EngineInfo, EngineReply, EventBatch, ImageReuse
from engine.fake import FakeConfig
from tests.api.rig import Rig, WatchedEngine


class PoolEngine(WatchedEngine):
    """Keeps images that were computed exactly. A request that allows it has those of another conversation from there,
    and stands in blocks of its own from the first of them on, as `engine/vllm/image_kv/tracked.py::look` has it.

    `loads` is how many tokens each image is said to have loaded of. With `is_silent` it has nothing to say of a
    request, else it waits for `tell`. With `ends_in_blocks` no image that was computed exactly is covered by full
    blocks.
    """

    def __init__(self, config: FakeConfig | None = None, loads: int = 0) -> None:
        super().__init__(config)
        self.loads, self.is_silent, self.ends_in_blocks = loads, False, False
        self._pool: set[str] = set()
        self._exact: dict[str, set[str]] = {}
        self._sequence = 0
        self._untold: list[ImageReuse] = []

    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return replace(super().info(), reuses_images=True, has_layer_profile=True)

    @asynccontextmanager
    async def chat(self, request: ChatRequest) -> AsyncGenerator[EngineReply]:
        """See `Engine.chat`."""
        exact = self._exact.setdefault(request.affinity, set())
        names = [image.uuid for message in request.body["messages"] for image in _images(message)]
        covered: set[str] = set() if self.ends_in_blocks else exact
        apart = next((name for name in names if name not in covered and name in self._pool), None)
        if request.reuse is None or apart is None:
            apart = None
            exact.update(names)
        body = request.body if apart is None else _salted(request.body, apart, request.reuse)
        async with super().chat(replace(request, body=body)) as reply:
            yield reply
        self._pool.update(exact)
        if request.reuse is not None and names and not self.is_silent:
            hits = 0 if apart is None else len(set(names) - covered)
            reuse = ImageReuse(request.request_id, len(set(names)), hits, 0, hits * self.loads, 0, 0)
            self._untold.append(reuse)

    def forget_images(self) -> None:
        """No image is loaded any more, and no block read that was kept apart for one."""
        self._pool.clear()

    def tell(self) -> None:
        """Say what came of the requests that have ended."""
        self.say(*self._untold)
        self._untold.clear()

    def say(self, *events: EngineEvent) -> None:
        """Report on the pool's stream."""
        self.app.driver.hand_on(EventBatch("images", self._sequence, 0.0, events))
        self._sequence += 1


async def turns(rig: Rig) -> float:
    """How many completed turns are attributed."""
    text = (await rig.get("/metrics")).body.decode()
    families = [one for one in text_string_to_metric_families(text) if one.name == "stillframe_turns"]
    return sum(sample.value for one in families for sample in one.samples if sample.name == "stillframe_turns_total")


async def recorded(rig: Rig, count: float) -> None:
    """Have the engine tell what came of its requests, and wait until so many are."""
    assert isinstance(rig.engine, PoolEngine)
    async with asyncio.timeout(2.0):
        while await turns(rig) < count:
            rig.engine.tell()
            await asyncio.sleep(0)


def _images(message: Mapping[str, Any]) -> list[EngineImage]:
    return [part for part in parts_of(message) if isinstance(part, EngineImage)]


def _salted(body: Mapping[str, Any], first: str, reuse: Reuse | None) -> dict[str, Any]:
    """The body with another name for the image at which its blocks part from the others: as a salt does it, that makes
    all hashes from there on other ones."""

    def named(part: Any) -> Any:
        is_it = isinstance(part, EngineImage) and part.uuid == first
        return replace(part, uuid=f"{first}.{reuse!r}") if is_it else part

    messages = [
        {**message, "content": [named(part) for part in message["content"]]} if _images(message) else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}
