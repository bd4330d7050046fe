"""Hand an engine's event batches to whoever listens, without ever waiting for a listener."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from engine.base import Engine, EventBatch

LISTENER_BATCHES = 10_000


class _Listener:
    def __init__(self, max_batches: int) -> None:
        self.batches: deque[EventBatch] = deque(maxlen=max_batches)
        self.wake = asyncio.Event()
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[EventBatch]:
        while True:
            while self.batches:
                yield self.batches.popleft()
            if self.closed:
                return
            self.wake.clear()
            await self.wake.wait()


class EventHub:
    """One source, any number of listeners; each keeps at most `max_batches` unread, the oldest are dropped first."""

    def __init__(self, max_batches: int = LISTENER_BATCHES) -> None:
        self._max_batches = max_batches
        self._listeners: set[_Listener] = set()

    def publish(self, batch: EventBatch) -> None:
        """Give a batch to every listener. Never blocks."""
        for listener in self._listeners:
            listener.batches.append(batch)
            listener.wake.set()

    def close(self) -> None:
        """End every listener's iteration after what it has not read yet."""
        for listener in self._listeners:
            listener.closed = True
            listener.wake.set()

    @asynccontextmanager
    async def listen(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        """Batches published from now on."""
        listener = _Listener(self._max_batches)
        self._listeners.add(listener)
        try:
            yield aiter(listener)
        finally:
            self._listeners.discard(listener)


@asynccontextmanager
async def followed(
    engine: Engine, follow: Callable[[AsyncIterator[EventBatch]], Awaitable[None]]
) -> AsyncGenerator[None]:
    """Hand an engine's batches, from now on, to `follow` beside whatever is done within the context.

    Leaving it cancels `follow`.
    """

    async def run() -> None:
        await follow(batches)

    async with engine.events() as batches:
        following = asyncio.create_task(run())
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
