"""A bounded number of places for work, and a bounded number of those who wait for one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from context.errors import RequestError


class Places:
    """Places that are held for as long as their work needs memory.

    Args:
        places: how many are held at a time.
        max_waiting: how many may wait; whoever comes then is refused.
        work: what the images wait for, for the refusal's message.
    """

    def __init__(self, places: int, max_waiting: int, work: str) -> None:
        self._free, self._max_waiting, self._work = asyncio.Semaphore(places), max_waiting, work
        self._waiting = 0
        self.refusals = 0

    @contextlib.asynccontextmanager
    async def hold(self, *, is_bounded: bool = True) -> AsyncGenerator[None]:
        """Hold one place. Who is not `is_bounded` waits however many others do, and does not count among them: for
        work whose number is bounded already.

        Raises:
            RequestError: 429 `image_queue_full`, too many wait.
        """
        if is_bounded and self._free.locked() and self._waiting >= self._max_waiting:
            self.refusals += 1
            raise RequestError(
                f"Too many images wait to be {self._work}. Try again in a moment.", code="image_queue_full", status=429
            )
        self._waiting += is_bounded
        try:
            await self._free.acquire()
        finally:
            self._waiting -= is_bounded
        try:
            yield
        finally:
            self._free.release()
