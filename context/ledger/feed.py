"""The way into the store: at once into the journal, which outlives the process, and from there in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from context.frozen import frozen
from context.ledger.file import StoreFile
from context.ledger.rows import whole_row
from context.plan import Turn
from context.store.turn_entries import addition_of
from context.store.turn_journal import Journal
from context.store.turn_rows import Addition, Entry, Row, TurnStore, TurnStoreError

# Other processes see a turn after so long.
_FEED_EVERY_SECONDS = 1.0
# So much is fed before its time has come.
_EARLY_BYTES = 4 * 1024 * 1024
# With so much before it a turn waits until the store has it.
_WAIT_BYTES = 8 * 1024 * 1024
# More is not taken: a store that fails for long costs no more memory and disk than this.
_MOST_BYTES = 32 * 1024 * 1024
# What an entry takes beside its bytes in the journal.
_ENTRY_COST = 4096
_MOST_LOST = 100_000


@frozen
class _Kept:
    """What a turn adds, on its way. `row` and `turn` are what an addition was made of."""

    entries: tuple[Entry, ...]
    cost: int
    row: Row | None
    turn: Turn | None


class Feed:
    """What was kept on its way into the store. Called from one event loop.

    Args:
        file: the store.
        path: its file; None for none, when nothing is done.
        wait_bytes: with so much on its way, by estimate, `take` asks its caller to wait.
        retry_seconds: how long to wait after the store failed.
    """

    def __init__(self, file: StoreFile, path: Path | None, wait_bytes: int, retry_seconds: float) -> None:
        self._file = file
        self._journal = None if path is None else Journal(path)
        self._wait_bytes = min(wait_bytes, _WAIT_BYTES)
        self._retry_seconds = max(retry_seconds, _FEED_EVERY_SECONDS)
        # `_feeding` is in one file of the journal, `_coming` in the other.
        self._feeding: list[_Kept] = []
        self._coming: list[_Kept] = []
        self._cost = 0
        # Since some entry is in no journal: those behind it may need it, and must not be there alone.
        self._has_gap = True
        self._lost: set[int] = set()
        self._one_feeds = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin a journal. Where that fails, turns go straight to the store."""
        if self._journal is None:
            return
        try:
            self._journal.open()
            self._has_gap = False
        except TurnStoreError as error:
            self._file.failed(error.trouble)

    def is_lost(self, turn: int) -> bool:
        """Whether a turn, or its reply, is in memory alone and for good."""
        return turn in self._lost

    def take(self, *entries: Entry, row: Row | None = None, turn: Turn | None = None) -> bool:
        """Keep what one turn adds; whether it outlives the process already. If not, `flush` sees to it.

        Args:
            entries: of one turn, each behind those that it needs.
            row, turn: what the addition among them was made of.
        """
        journal = self._journal
        if journal is None:
            return True
        if self._cost > _MOST_BYTES:
            self._lose(entries[0].id)
            return True
        cost = _ENTRY_COST * len(entries)
        if not self._has_gap:
            try:
                cost += journal.append(*entries)
            except TurnStoreError as error:
                self._file.failed(error.trouble)
                self._has_gap = True
        if self._has_gap:
            cost += sum(len(one) for entry in entries for one in entry.columns if isinstance(one, bytes))
        self._coming.append(_Kept(entries, cost, row, turn))
        self._cost += cost
        if self._cost > _EARLY_BYTES:
            self._start()
        elif self._timer is None and self._task is None:
            self._timer = asyncio.get_running_loop().call_later(_FEED_EVERY_SECONDS, self._start)
        return not self._has_gap and self._cost <= self._wait_bytes

    async def flush(self) -> None:
        """Feed all that is on its way. What the store does not take now stays on its way."""
        async with self._one_feeds:
            while await self._feed_batch():
                pass
        self._mend()

    async def _feed(self) -> None:
        """Feed what is on its way now. What comes meanwhile waits for the next time: the larger a batch is, the fewer
        pages are written for each turn."""
        async with self._one_feeds:
            await self._feed_batch()
        self._mend()

    async def _feed_batch(self) -> bool:
        """Whether there was something to feed, and the store took it."""
        if not self._feeding:
            self._feeding, self._coming = self._coming, []
            if self._feeding and self._journal is not None:
                self._journal.swap()
        batch = self._feeding
        refused = await self._file.write(lambda store: self._write(store, batch)) if batch else None
        if refused is None:
            return False
        for turn in refused:
            self._lose(turn)
        self._cost -= sum(one.cost for one in batch)
        self._feeding = []
        return True

    async def close(self) -> None:
        """End it. What the store does not take is left in the journal."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._file.wake()
        await self.flush()
        if self._timer is not None:
            self._timer.cancel()
        if self._journal is not None:
            self._journal.close(remove=not self._feeding and not self._coming)

    def _mend(self) -> None:
        """Use the journal again, or begin another one, where it has failed or was removed."""
        if self._journal is None or self._coming or self._feeding:
            return
        if not self._journal.is_there:
            self._has_gap = True
            self.open()
        elif self._has_gap:
            self._has_gap = False

    def _write(self, store: TurnStore, batch: Sequence[_Kept]) -> set[int]:
        """Feed a batch to the store; the turns that it cannot take. Runs in a thread."""
        refused = _refused(store, [entry for one in batch for entry in one.entries])
        if refused:
            # What they are based on was pruned, or the file removed.
            refused = _refused(store, [entry for one in batch for entry in _whole(one) if entry.id in refused])
        if self._journal is not None:
            self._journal.clear()
        return refused

    def _lose(self, turn: int) -> None:
        if len(self._lost) > _MOST_LOST:
            self._lost.clear()
        self._lost.add(turn)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = asyncio.create_task(self._feed())
            self._task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._task = None
        if self._coming or self._feeding:
            delay = self._retry_seconds if self._feeding else _FEED_EVERY_SECONDS
            self._timer = asyncio.get_running_loop().call_later(delay, self._start)


def _refused(store: TurnStore, entries: Sequence[Entry]) -> set[int]:
    return {entries[place].id for place in store.write(entries)}


def _whole(kept: _Kept) -> list[Entry]:
    if kept.row is None or kept.turn is None:
        return list(kept.entries)
    whole = addition_of(*whole_row(kept.row, kept.turn))
    return [whole if isinstance(entry, Addition) else entry for entry in kept.entries]
