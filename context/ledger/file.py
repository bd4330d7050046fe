"""The ledger's store as something that may fail: calls in their threads, opening again, giving up for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from context.errors import ConfigError
from context.store.turn_journal import abandoned
from context.store.turn_rows import Trouble, TurnStore, TurnStoreError
from context.store.turns import open_turns

T = TypeVar("T")

_log = logging.getLogger(__name__)
_WARN_EVERY_SECONDS = 60.0
# So much is kept in one go of what others left.
_FEED_ENTRIES = 1024
_REMEDIES: dict[Trouble, str] = {
    "locked": "another program holds it; turns are in memory alone until it lets go",
    "full": "its disk has no space; turns are in memory alone until there is some",
    "read-only": "turns are in memory alone until it can be written",
    "damaged": "it is moved aside and a new one is begun; earlier turns are lost",
    "gone": "a new one is begun; earlier turns are lost",
    "unusable": "turns are in memory alone; check its disk, its folder and who may write there",
}


class StoreFile:
    """A store that is asked without anybody having to fear it: a call that fails gives None, is counted, and is
    warned of once in a while. After a failed write none is tried for a while, so that no request waits for it.

    Args:
        path: the file; None for none, when every call gives None and nothing is counted.
        busy_seconds: how long a write waits for other processes.
        retry_seconds: how long nothing is written after a failure.
    """

    def __init__(self, path: Path | None, busy_seconds: float, retry_seconds: float) -> None:
        self._path, self._busy_seconds, self._retry_seconds = path, busy_seconds, retry_seconds
        self._store: TurnStore | None = None
        self._damaged: TurnStore | None = None
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="ledger-read")
        # One thread: what is based on a turn is written after it.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger-write")
        self._opening = asyncio.Lock()
        self._rests_until = self._warned_at = float("-inf")
        self._closed = False
        self.failures = 0

    async def open(self) -> None:
        """Open it for the first time.

        Raises:
            ConfigError: it can never be opened.
        """
        try:
            await self._open()
        except TurnStoreError as error:
            self.failed(error.trouble)

    def ask(self, call: Callable[[TurnStore], T]) -> T | None:
        """Call it here and now: for calls that neither wait nor read much."""
        store = self._store
        if store is None:
            return None
        try:
            return call(store)
        except TurnStoreError as error:
            self.failed(error.trouble, store)
            return None

    async def read(self, call: Callable[[TurnStore], T]) -> T | None:
        """Call it in the reading thread."""
        store = self._store
        if store is None:
            return None
        try:
            return await self._run(self._reader, lambda: call(store))
        except TurnStoreError as error:
            self.failed(error.trouble, store)
            return None

    async def write(self, call: Callable[[TurnStore], T]) -> T | None:
        """Call it in the writing thread. What was begun is ended, whether or not the caller is cancelled."""
        if self._path is None or self._closed or time.monotonic() < self._rests_until:
            return None
        try:
            return await self._write(call)
        except TurnStoreError as error:
            self.failed(error.trouble)
            self._rests_until = time.monotonic() + self._retry_seconds
            return None

    def wake(self) -> None:
        """Try the next write even if one has just failed."""
        self._rests_until = float("-inf")

    @property
    def is_used(self) -> bool:
        """Whether there is to be a file at all."""
        return self._path is not None

    @property
    def is_there(self) -> bool:
        """Whether it is open."""
        return self._store is not None

    def file_bytes(self) -> int:
        """Bytes on disk."""
        return 0 if self._store is None else self._store.file_bytes()

    async def close(self) -> None:
        """End it; what was begun is written."""
        async with self._opening:
            self._closed = True
            await self._leave()
        self._reader.shutdown()
        self._writer.shutdown()

    async def _write(self, call: Callable[[TurnStore], T]) -> T:
        store = self._store
        if store is not None and store is not self._damaged:
            try:
                return await self._run(self._writer, lambda: call(store))
            except TurnStoreError as error:
                if error.trouble not in ("gone", "damaged"):
                    raise
                # Counted and warned of although this turn is kept: earlier ones are lost.
                self.failed(error.trouble, store)
        # Shielded: half of it would leave an open file behind.
        await asyncio.shield(self._open_again(store))
        opened = self._store
        if opened is None:
            raise TurnStoreError("unusable")
        return await self._run(self._writer, lambda: call(opened))

    async def _open_again(self, failed: TurnStore | None) -> None:
        async with self._opening:
            if self._store is not failed or self._closed:
                return
            await self._leave()
            if failed is not None and failed is self._damaged:
                await self._run(self._writer, failed.discard)
            self._damaged = None
            try:
                await self._open()
            except ConfigError as error:
                # It was good at the start: whoever put something else there may take it away again.
                raise TurnStoreError("unusable") from error

    async def _open(self) -> None:
        if self._path is not None:
            path = self._path
            self._store = store = await self._run(self._writer, lambda: open_turns(path, self._busy_seconds))
            await self._run(self._writer, lambda: _feed_abandoned(path, store))

    async def _leave(self) -> None:
        """Close the store once neither thread uses it."""
        store, self._store = self._store, None
        if store is not None:
            await self._run(self._reader, lambda: None)
            await self._run(self._writer, store.close)

    async def _run(self, thread: Executor, call: Callable[[], T]) -> T:
        # Shielded: a request that is cancelled must not take its turn out of the queue.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(thread, call))

    def failed(self, trouble: Trouble, store: TurnStore | None = None) -> None:
        """Count a failure, and warn of it once in a while."""
        self.failures += 1
        if trouble == "damaged":
            # The next write sees to it.
            self._damaged = store
        now = time.monotonic()
        if now - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = now
            _log.warning("the ledger's file is %s: %s", trouble, _REMEDIES[trouble])


def _feed_abandoned(path: Path, store: TurnStore) -> None:
    """Keep what processes have left in their journals that were killed.

    Raises:
        TurnStoreError: it is left there for the next time.
    """
    with abandoned(path) as entries:
        for at in range(0, len(entries), _FEED_ENTRIES):
            store.write(entries[at : at + _FEED_ENTRIES])
