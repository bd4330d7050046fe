"""What keeps the ledger within its bounds of age and size."""

from __future__ import annotations

import asyncio
import time

from context.ledger.feed import Feed
from context.ledger.file import StoreFile
from context.ledger.memory import RowMemory

NANOSECONDS = 1_000_000_000
# Pruning a little below the bound keeps the next commits from pruning again.
_PRUNE_TO_RATIO = 0.9
_PRUNE_EVERY_SECONDS = 3600.0
# When the file is too large: at most once in so many commits, since an emptied file has a size too.
_PRUNE_EVERY_COMMITS = 64


class Pruner:
    """Deletes old turns, when asked and by itself now and then. What a kept turn is based on is kept.

    Args:
        file, feed, memory: where turns are.
        max_age_seconds, max_bytes: the bounds.
    """

    def __init__(self, file: StoreFile, feed: Feed, memory: RowMemory, max_age_seconds: float, max_bytes: int) -> None:
        self._file, self._feed, self._memory = file, feed, memory
        self._max_age_seconds, self._max_bytes = max_age_seconds, max_bytes
        self._stored = self.pruned = self._commits = 0
        self._pruned_at = float("-inf")
        self._one_prunes = asyncio.Lock()
        self._task: asyncio.Task[int] | None = None

    @property
    def turns(self) -> int:
        """Turns in the file, as last counted; in memory where there is no file."""
        return self._stored if self._file.is_there else len(self._memory)

    async def count(self) -> None:
        """Count the turns in the file."""
        self._stored = await self._file.read(lambda store: store.count()) or 0

    def committed(self, now: float) -> None:
        """A turn was added: prunes in the background when it is time. `now` is in seconds since 1970."""
        self._commits += 1
        self._stored += 1
        due = time.monotonic() - self._pruned_at > _PRUNE_EVERY_SECONDS
        large = not self._commits % _PRUNE_EVERY_COMMITS and self._file.file_bytes() > self._max_bytes
        if self._task is None and (due or large):
            self._pruned_at = time.monotonic()
            self._task = asyncio.create_task(self.prune(now))
            self._task.add_done_callback(self._ended)

    async def prune(self, now: float) -> int:
        """Delete; how many turns went from the file, or from memory where there is no file."""
        async with self._one_prunes:
            # What is on its way may be based on what would go.
            await self._feed.flush()
            before = int((now - self._max_age_seconds) * NANOSECONDS)
            deleted = await self._delete(before)
            forgotten = self._memory.expire(before)
            deleted += await self._delete_for_space()
            while deleted and await self._file.write(lambda store: store.shrink()):
                pass
            await self.count()
            gone = deleted if self._file.is_there else forgotten
            self.pruned += gone
            return gone

    async def close(self) -> None:
        """End what is done in the background."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _delete(self, before: int) -> int:
        """Delete what is older than an id, in steps between which others can write."""
        deleted, more = 0, True
        while more:
            ids, more = await self._file.write(lambda store: store.expire(before)) or ([], False)
            self._memory.forget(ids)
            deleted += len(ids)
        return deleted

    async def _delete_for_space(self) -> int:
        used = await self._used_bytes()
        if used <= self._max_bytes:
            return 0
        deleted, at = 0, 0
        while used > self._max_bytes * _PRUNE_TO_RATIO:
            found = await self._file.write(lambda store, at=at: store.step(at))
            if found is None:
                break
            at = found
            deleted += await self._delete(at + 1)
            used = await self._used_bytes()
        return deleted

    async def _used_bytes(self) -> int:
        return await self._file.write(lambda store: store.used_bytes()) or 0

    def _ended(self, _: asyncio.Task[int]) -> None:
        self._task = None
