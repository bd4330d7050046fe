"""The ledger: what was sent for which transcript, found by the digests of the transcript.

Its turns are in memory (`context/ledger/memory.py`), at once in a journal that outlives the process
(`context/ledger/feed.py`), and a moment later in a store that other processes see
(`context/store/turn_rows.py::TurnStore`; by default a SQLite file, `context/store/turns.py`). Losing the store loses
reuse, never a request: `context/ledger/file.py`. docs/adr/0008-context.md says why it is so.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from context.frozen import frozen
from context.ledger.feed import Feed
from context.ledger.file import StoreFile
from context.ledger.memory import RowMemory, assemble
from context.ledger.prune import Pruner
from context.ledger.rows import NewReply, NewTurn, reply_of, row_of, whole_row
from context.plan import Turn
from context.store.turn_entries import addition_of, answer_of
from context.store.turn_rows import Addition, Entry, Row, replied, reply_name
from context.transcript import Message

__all__ = ["Draft", "Found", "Ledger", "LedgerLimits", "LedgerStats", "NewReply", "NewTurn"]

# Up to so many digests are looked up on the event loop: 30 microseconds, where a thread's round trip takes 100.
_INLINE_DIGESTS = 8


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """Bounds of the ledger. `max_bytes` is of the file and is passed by little and for a short time; `memory_bytes`
    is of the turns in memory, by estimate."""

    max_age_seconds: float = 30 * 86_400.0
    max_bytes: int = 2 * 1024**3
    memory_bytes: int = 64 * 1024**2


@frozen
class Found:
    """The turn that a transcript continues: `length` client messages are known, `at_reply` up to the turn's reply and
    else up to the end of its request."""

    turn: Turn
    length: int
    at_reply: bool


@frozen
class Draft:
    """A turn that is ready to be kept: its row with what it stands on, as bytes too. Made by `Ledger.draft`."""

    rows: Sequence[Row]
    row: Row
    addition: Addition


@dataclass(frozen=True, slots=True)
class LedgerStats:
    """`turns` in the file (in memory without one), as last counted; `hits` from memory, `store_hits` from the file;
    `failures` counts calls of the file that failed."""

    turns: int
    file_bytes: int
    memory_bytes: int
    hits: int
    store_hits: int
    misses: int
    failures: int
    pruned: int


class Ledger:
    """Turns by tenant. Made by `open`; called from one event loop. Nothing but `open` raises.

    Of two turns with the same transcript the one that was drafted later is found.
    """

    def __init__(self, limits: LedgerLimits, file: StoreFile, feed: Feed, clock: Callable[[], float]) -> None:
        self._file, self._feed, self._clock = file, feed, clock
        self._memory = RowMemory(limits.memory_bytes)
        self._pruner = Pruner(file, feed, self._memory, limits.max_age_seconds, limits.max_bytes)
        self._last_id = self._hits = self._store_hits = self._misses = 0

    @classmethod
    async def open(
        cls,
        path: Path | None,
        limits: LedgerLimits | None = None,
        *,
        clock: Callable[[], float] = time.time,
        busy_seconds: float = 0.5,
        retry_seconds: float = 5.0,
    ) -> Ledger:
        """A ledger on a file, which other processes may use too; in memory alone without one.

        Args:
            path: the file; it and its folder are made when they are not there.
            limits: its bounds.
            clock: seconds since 1970.
            busy_seconds: how long a write to the file waits for other processes before it is put off.
            retry_seconds: how long nothing is written to the file after it failed.

        Raises:
            ConfigError: the file can never be used: no permission, no file, another program's or a newer version's.
        """
        file = StoreFile(path, busy_seconds, retry_seconds)
        try:
            await file.open()
        except BaseException:
            await file.close()
            raise
        bounds = limits or LedgerLimits()
        # What is on its way must not leave the memory before it has arrived.
        feed = Feed(file, path, bounds.memory_bytes // 4, retry_seconds)
        feed.open()
        ledger = cls(bounds, file, feed, clock)
        await ledger._pruner.count()
        return ledger

    async def find(self, tenant: str, chain: Sequence[bytes], came: Sequence[Message] = ()) -> Found | None:
        """The longest prefix of a transcript that this tenant has sent, with the turn that ends there.

        Args:
            tenant: its name; other tenants' turns are never found.
            chain: the digest after each message of the transcript.
            came: its messages. What is kept in the same spelling need not be read from the file then.
        """
        point = self._memory.match(tenant, chain)
        # What is in memory may have been continued by another process, or before this one began.
        if (longer := await self._find_in_store(tenant, chain, point.length if point else 0, came)) is not None:
            self._store_hits += 1
            return longer
        turn = point and assemble(await self._rows(tenant, point.turn))
        if not point or not turn:
            self._misses += 1
            return None
        self._hits += 1
        return Found(turn, point.length, point.at_reply)

    async def answered(self, tenant: str, digest: bytes) -> Turn | None:
        """The newest turn whose reply has this digest, whatever stood before it."""
        found = await self.find(tenant, [reply_name(digest)])
        return found and found.turn

    async def latest(self, tenant: str, conversation: str) -> Turn | None:
        """The turn of a conversation that was drafted last."""
        stored = self._file.ask(lambda store: store.newest(tenant, conversation))
        known = self._memory.newest(tenant, conversation)
        newest = max((id for id in (stored, known) if id is not None), default=None)
        return None if newest is None else await self._turn(tenant, newest)

    def draft(self, tenant: str, new: NewTurn) -> Draft | None:
        """What takes longest of `commit`, for a turn that may be kept: to be done while the engine works. It keeps
        nothing. None where that turn's parent would have to be read from the file."""
        rows = [] if new.parent is None else self._memory.walk(new.parent)
        if new.parent is not None and (not rows or rows[-1].tenant != tenant):
            return None
        return self._drafted(tenant, new, rows)

    async def commit(
        self, tenant: str, new: NewTurn, answer: NewReply | None = None, draft: Draft | None = None
    ) -> Turn:
        """Keep a turn. It is found from now on, and after the death of the process once this returns.

        Messages that mean the same as the parent's at the same place stay as they were first seen.

        Args:
            tenant: whose it is.
            new: the turn.
            answer: its reply, where that is known already: to keep both in one go takes half the time.
            draft: of the same turn.
        """
        if draft is None:
            draft = self._drafted(tenant, new, [] if new.parent is None else await self._rows(tenant, new.parent))
        row, addition = draft.row, draft.addition
        answered = None if answer is None else reply_of(row.length, answer)
        if answered is not None:
            row = replied(row, answered[0])
        turn = assemble([*draft.rows, row])
        assert turn is not None, "a row fits the rows that it was made from"
        if row.base is not None and (self._memory.get(row.base) is None or self._feed.is_lost(row.base)):
            # Its parent did not fit into memory, or has left it meanwhile; or it will never be in the file.
            row, blobs = whole_row(row, turn)
            addition = addition_of(row, blobs)
            row = row if answered is None else replied(row, answered[0])
        entries: list[Entry] = [addition] if self._file.is_used else []
        if entries and answered is not None:
            entries.append(answer_of(tenant, row.id, row.length, *answered))
        self._memory.put(row)
        if entries:
            await self._arrived(row.id, self._feed.take(*entries, row=row, turn=turn))
        self._pruner.committed(self._clock())
        return turn

    async def reply(self, tenant: str, turn: Turn, answer: NewReply) -> Turn:
        """Keep the reply to a turn, with the promise of `commit`. The first reply of a turn stays.

        Args:
            tenant: whose it is.
            turn: as `commit` gave it.
            answer: the reply.
        """
        if turn.replied:
            return turn
        length = len(turn.client)
        reply, blobs = reply_of(length, answer)
        self._memory.reply(tenant, turn.id, reply)
        kept = self._memory.get(turn.id)
        if kept is not None and kept.reply is not None and kept.reply is not reply:
            return await self._turn(tenant, turn.id) or turn
        if self._file.is_used:
            await self._arrived(turn.id, self._feed.take(answer_of(tenant, turn.id, length, reply, blobs)))
        return _answered(turn, answer)

    async def flush(self) -> None:
        """Write what is kept to the file, where other processes see it. The ledger does this by itself in the
        background."""
        await self._feed.flush()

    async def prune(self, now: float) -> int:
        """Delete the turns older than the bound, and the oldest ones until the file is within its bound. What a kept
        turn is based on is kept. The ledger does this by itself now and then.

        Args:
            now: seconds since 1970.

        Returns:
            How many turns went from the file, or from memory where there is no file.
        """
        return await self._pruner.prune(now)

    def stats(self) -> LedgerStats:
        return LedgerStats(
            turns=self._pruner.turns,
            file_bytes=self._file.file_bytes(),
            memory_bytes=self._memory.size_bytes,
            hits=self._hits,
            store_hits=self._store_hits,
            misses=self._misses,
            failures=self._file.failures,
            pruned=self._pruner.pruned,
        )

    async def close(self) -> None:
        """End it; what was begun is written. It may not be used afterwards."""
        await self._pruner.close()
        await self._feed.close()
        await self._file.close()

    async def _find_in_store(
        self, tenant: str, chain: Sequence[bytes], above: int, came: Sequence[Message]
    ) -> Found | None:
        if len(chain) - above > _INLINE_DIGESTS:
            found = await self._file.read(lambda store: store.find(tenant, chain, above, self._memory, came))
            if not found:
                return None
            point, row = found
            rows = self._remembered(row) or await self._rows(tenant, point.turn, with_reply=point.at_reply)
        else:
            point = self._file.ask(lambda store: store.probe(tenant, chain, above))
            if point is None:
                return None
            rows = await self._rows(tenant, point.turn, with_reply=point.at_reply)
        turn = assemble(rows)
        return turn and Found(turn, point.length, point.at_reply)

    async def _arrived(self, turn: int, is_kept: bool) -> None:
        """Wait until a turn can be found and outlives the process: mostly it does already."""
        if not is_kept or self._memory.get(turn) is None:
            # Shielded: a request that is cancelled must not leave it half done.
            await asyncio.shield(self._feed.flush())

    async def _turn(self, tenant: str, id: int) -> Turn | None:
        return assemble(await self._rows(tenant, id, with_reply=True))

    async def _rows(self, tenant: str, id: int, *, with_reply: bool = False) -> list[Row]:
        """A row behind those that it is based on; empty when it is not known.

        `with_reply`: one that has none in memory is read again, for another process may have added it.
        """
        rows = self._memory.walk(id)
        if rows and rows[-1].tenant != tenant:
            return []
        if rows and (rows[-1].reply is not None or not with_reply):
            return rows
        for known in (self._memory, None):
            row = await self._file.read(lambda store, known=known: store.load(tenant, id, known))
            if row is None:
                break
            # Else what it is based on has left the memory in this moment.
            if read := self._remembered(row):
                return read
        return rows

    def _remembered(self, row: Row) -> list[Row]:
        """Put a row into memory; it behind those that it is based on, even if there is no room for it."""
        self._memory.put(row)
        if rows := self._memory.walk(row.id):
            return rows
        before = [] if row.base is None else self._memory.walk(row.base)
        return [*before, row] if before or row.base is None else []

    def _drafted(self, tenant: str, new: NewTurn, rows: Sequence[Row]) -> Draft:
        parent = assemble(rows) if rows else None
        row, blobs = row_of(self._next_id(new.parent or 0), tenant, new, rows, parent)
        return Draft(rows, row, addition_of(row, blobs))

    def _next_id(self, after: int) -> int:
        # The last digits keep processes apart that share the file.
        now = int(self._clock() * 1_000_000) * 1000 + int(random.random() * 1000)  # noqa: S311
        self._last_id = max(now, self._last_id + 1, after + 1)
        return self._last_id


def _answered(turn: Turn, answer: NewReply) -> Turn:
    return Turn(
        id=turn.id,
        conversation=turn.conversation,
        number=turn.number,
        client=(*turn.client, answer.client),
        sent=(*turn.sent, answer.sent),
        tools=turn.tools,
        replied=True,
        state=turn.state,
        epoch=turn.epoch,
        policy=turn.policy,
    )
