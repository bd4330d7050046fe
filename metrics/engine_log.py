"""What the encoder cache, the pool of images' KV and the tiers for blocks did, from the engine's event stream."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.base import BlockTierState, EncoderEvent, Engine, ImagePoolState, ImageReuse
from metrics.prometheus import GatewayMetrics


@dataclass(slots=True)
class EncoderCounts:
    """Images of one request: `runs` were computed, `hits` reused, `evictions` dropped to make room for it. `done` is
    set when the engine holds nothing more for the request: from then on the counts are final."""

    runs: int = 0
    hits: int = 0
    evictions: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ImageCounts(NamedTuple):
    """One image, by the engine's name for it: how often it was computed, and how often its features were reused."""

    runs: int = 0
    hits: int = 0


class EngineLog:
    """Counts by request id, of the latest `max_requests`, and by image, of as many."""

    def __init__(self, metrics: GatewayMetrics, max_requests: int = 4096) -> None:
        self._metrics = metrics
        self._max_requests = max_requests
        self._counts: OrderedDict[str, EncoderCounts] = OrderedDict()
        self._images: OrderedDict[str, ImageCounts] = OrderedDict()
        self._reuse: OrderedDict[str, ImageReuse] = OrderedDict()
        # None where the engine has no such thing.
        self.pool: ImagePoolState | None = None
        self.tiers: BlockTierState | None = None

    async def follow(self, engine: Engine) -> None:
        """Read the engine's events until it stops."""
        async with engine.events() as batches:
            async for batch in batches:
                for event in batch.events:
                    if isinstance(event, EncoderEvent):
                        self._count(event)
                    elif isinstance(event, ImageReuse):
                        self._count_reuse(event)
                    elif isinstance(event, ImagePoolState):
                        self.pool = event
                        self._metrics.show_pool(event)
                    elif isinstance(event, BlockTierState):
                        self.tiers = event
                        self._metrics.show_tiers(event)

    def of_image(self, uuid: str) -> ImageCounts:
        """What the encoder did for an image since the gateway started, as far as that is remembered."""
        return self._images.get(uuid, ImageCounts())

    def finished(self, request_id: str) -> EncoderCounts | None:
        """The counts of a request whose end was reported; None before that."""
        counts = self._counts.get(request_id)
        return counts if counts is not None and counts.done.is_set() else None

    def reuse(self, request_id: str) -> ImageReuse | None:
        """What a request got of its images' KV; None before the engine has said so, and where it has nothing to say."""
        return self._reuse.get(request_id)

    async def final(self, request_id: str, timeout_seconds: float) -> EncoderCounts | None:
        """The counts of a finished request, or None when its end was not reported in time."""
        counts = self._of(request_id)
        try:
            async with asyncio.timeout(timeout_seconds):
                await counts.done.wait()
        except TimeoutError:
            if self._counts.get(request_id) == EncoderCounts(done=counts.done):
                # Nothing is known of it; a guessed id must not push out what is.
                del self._counts[request_id]
            return None
        return counts

    def _of(self, request_id: str) -> EncoderCounts:
        counts = self._counts.get(request_id)
        if counts is None:
            counts = self._counts[request_id] = EncoderCounts()
            while len(self._counts) > self._max_requests:
                self._counts.popitem(last=False)
        return counts

    def _count(self, event: EncoderEvent) -> None:
        if event.kind in ("run", "hit", "load", "evict"):
            self._metrics.encoder_images.labels(event.kind).inc()
            self._count_image(event)
        if not event.request_id:
            return
        counts = self._of(event.request_id)
        if event.kind == "run":
            counts.runs += 1
        elif event.kind == "hit":
            counts.hits += 1
        elif event.kind == "evict":
            counts.evictions += 1
        elif event.kind == "done":
            counts.done.set()

    def _count_reuse(self, event: ImageReuse) -> None:
        self._metrics.count_reuse(event)
        self._reuse[event.request_id] = event
        if len(self._reuse) > self._max_requests:
            self._reuse.popitem(last=False)

    def _count_image(self, event: EncoderEvent) -> None:
        counts = self._images.pop(event.uuid, ImageCounts())
        self._images[event.uuid] = ImageCounts(counts.runs + (event.kind == "run"), counts.hits + (event.kind == "hit"))
        if len(self._images) > self._max_requests:
            self._images.popitem(last=False)
