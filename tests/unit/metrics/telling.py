"""An engine that has told what it will tell."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from engine.base import EventBatch


class Telling:
    """As much of an engine as tells events."""

    def __init__(self, *batches: EventBatch) -> None:
        self._batches = batches

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[EventBatch]]:
        async def told() -> AsyncIterator[EventBatch]:
            for batch in self._batches:
                yield batch

        yield told()
