"""Work beside the requests that must go on: what breaks it is told once, and it is begun again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from context.errors import place_of

_log = logging.getLogger(__name__)
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 60.0


class Background:
    """Keeps work of one process going.

    `failing` names what broke, until it has gone on for as long as was waited; `failed` is called with the name each
    time that it breaks.
    """

    def __init__(self, failed: Callable[[str], None], first_wait_seconds: float = _FIRST_WAIT_SECONDS) -> None:
        self._failed, self._first = failed, first_wait_seconds
        self.failing: set[str] = set()

    async def keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run work until it ends by itself. Where it breaks it is begun again, after a second at first and after a
        minute at last; the log says so the first time."""
        wait, loop = self._first, asyncio.get_running_loop()
        while True:
            begun = loop.time()
            goes_on = loop.call_later(wait, self.failing.discard, name)
            try:
                await work()
            except Exception as error:
                self._failed(name)
                wait = self._first if loop.time() - begun > _LONGEST_WAIT_SECONDS else wait
                if name not in self.failing:
                    self.failing.add(name)
                    _log.error("%s broke and is begun again until it goes on: %s", name, place_of(error))
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
            else:
                self.failing.discard(name)
                return
            finally:
                goes_on.cancel()
