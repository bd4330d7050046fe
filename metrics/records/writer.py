"""Records on their way into the file: kept in memory for a second at most, written in batches by a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from context.errors import ConfigError, place_of
from context.store.turn_rows import TurnStoreError
from metrics.records.record import TurnRecord
from metrics.records.schema import NANOSECONDS
from metrics.records.store import RecordLimits, RecordStore

T = TypeVar("T")

_log = logging.getLogger(__name__)
# What SQLite's binding says of a value that no file can hold.
_FAULTS_OF_DATA = (ValueError, OverflowError, TypeError)
# With what the recorder waits for, a second: so much a killed process loses.
_WRITE_EVERY_SECONDS = 0.5
# So many are written before their time has come.
_EARLY_RECORDS = 1024
_PRUNE_EVERY_SECONDS = 3600.0
# So long the sums by hour are kept of every split.
_HOURS_SECONDS = 8 * 86_400
_WARN_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class WriterStats:
    """`written` to the file; `waiting` in memory; `dropped` for good since the file could not be written for too long;
    `failures`: writes that failed, and were or will be tried again."""

    written: int
    waiting: int
    dropped: int
    failures: int


class RecordWriter:
    """Keeps records. Made by `open`; called from one event loop. Nothing but `open` raises."""

    def __init__(self, path: Path, limits: RecordLimits, busy_seconds: float) -> None:
        self._path, self._limits, self._busy_seconds = path, limits, busy_seconds
        self._waiting: deque[TurnRecord] = deque()
        self._store: RecordStore | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records-write")
        self._wake = asyncio.Event()
        self._one_writes = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._written = self._dropped = self._failures = 0
        self._told_dropped = 0
        self._closing = False
        self._pruned_at = self._warned_at = float("-inf")

    @classmethod
    async def open(cls, path: Path, limits: RecordLimits | None = None, *, busy_seconds: float = 0.5) -> RecordWriter:
        """A writer on a file that it shares with the ledger and with other processes.

        Args:
            path: the ledger's file.
            limits: bounds.
            busy_seconds: how long a write waits for other processes.

        Raises:
            ConfigError: the file can never be used.
        """
        writer = cls(path, limits or RecordLimits(), busy_seconds)
        try:
            await writer._run(writer._opened)
        except TurnStoreError as error:
            writer._failed(error)
        except ConfigError:
            writer._thread.shutdown()
            raise
        writer._task = asyncio.create_task(writer._write_on(), name="stillframe-records")
        return writer

    def put(self, record: TurnRecord) -> None:
        """Keep a record. Never blocks. What does not fit into memory while the file cannot be written is counted."""
        waiting = self._waiting
        waiting.append(record)
        if len(waiting) > self._limits.max_waiting:
            waiting.popleft()
            self._dropped += 1
        if len(waiting) == _EARLY_RECORDS:
            self._wake.set()

    def stats(self) -> WriterStats:
        """What became of the records so far."""
        return WriterStats(self._written, len(self._waiting), self._dropped, self._failures)

    async def flush(self) -> None:
        """Write all that was put. What cannot be written now stays."""
        async with self._one_writes:
            while await self._write(self._taken()):
                pass

    async def close(self) -> None:
        """Write all, and end. What cannot be written is counted as dropped, and said so."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            # Not cancelled: a batch that was taken must be written, or put back.
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()
        await self._prune()
        if self._waiting:
            self._dropped += len(self._waiting)
            self._waiting.clear()
            self._tell_dropped()
        if self._store is not None:
            await self._run(self._store.close)
        self._thread.shutdown()

    async def _write_on(self) -> None:
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_EVERY_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            async with self._one_writes:
                if await self._write(self._taken()):
                    await self._prune()
            self._tell_dropped()

    def _taken(self) -> list[TurnRecord]:
        return [self._waiting.popleft() for _ in range(min(len(self._waiting), _EARLY_RECORDS))]

    async def _write(self, records: Sequence[TurnRecord]) -> bool:
        """Write records, or put them back; whether they are done with."""
        if not records:
            return False
        try:
            await self._run(lambda: self._opened().write(records))
        except (TurnStoreError, ConfigError) as error:
            if isinstance(error.__cause__, _FAULTS_OF_DATA):
                return await self._write_without_faulty(records)
            self._failed(error)
            self._waiting.extendleft(reversed(records))
            return False
        except Exception as error:
            # Whatever it is, the records that come next are still to be written.
            _log.error("records could not be written, because of a fault at %s", place_of(error))
            return await self._write_without_faulty(records)
        self._written += len(records)
        return True

    async def _write_without_faulty(self, records: Sequence[TurnRecord]) -> bool:
        """Write what can be written of records of which one never can, or it would keep back all that come after it."""
        if len(records) == 1:
            self._failures += 1
            self._dropped += 1
            return True
        half = len(records) // 2
        # The second half first: what is put back stands in front of what was put back before.
        written = [await self._write(part) for part in (records[half:], records[:half])]
        return all(written)

    def _opened(self) -> RecordStore:
        """The store, opened again where it was given up. Runs in the thread.

        Raises:
            ConfigError, TurnStoreError: there is none now.
        """
        if self._store is None:
            self._store = RecordStore(self._path, self._busy_seconds)
        return self._store

    async def _prune(self) -> None:
        store, limits = self._store, self._limits
        due = time.monotonic() - self._pruned_at > _PRUNE_EVERY_SECONDS
        if store is None:
            return
        try:
            if due or await self._run(store.used_bytes) > limits.max_bytes:
                now = time.time_ns()
                before = now - int(limits.max_age_seconds * NANOSECONDS)
                await self._run(lambda: store.prune(before, limits.max_bytes, now - _HOURS_SECONDS * NANOSECONDS))
                self._pruned_at = time.monotonic()
        except TurnStoreError as error:
            self._failed(error)

    def _failed(self, error: TurnStoreError | ConfigError) -> None:
        self._failures += 1
        if isinstance(error, ConfigError) or error.trouble not in ("locked", "full"):
            # Opened again before the next write: the ledger moves a damaged file away and begins a new one.
            store, self._store = self._store, None
            if store is not None:
                store.close()
        trouble = error.trouble if isinstance(error, TurnStoreError) else "unusable"
        if time.monotonic() - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = time.monotonic()
            _log.warning("records cannot be written, the ledger's file is %s; they wait in memory", trouble)

    def _tell_dropped(self) -> None:
        if self._dropped > self._told_dropped:
            lost, self._told_dropped = self._dropped - self._told_dropped, self._dropped
            _log.warning("%d records are lost: the ledger's file could not be written for too long", lost)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, call))
