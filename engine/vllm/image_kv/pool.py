"""The pool: entries in memory, and behind it in files.

An entry that is put is there at once; its file is written by a thread. Whoever uses an entry holds it, and what is held
does not go. To hold one that is in a file alone, a thread reads it first. Nothing but a dictionary is touched under a
lock that callers take, so that none of them waits for a disk but who empties the pool.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from engine.vllm.image_kv.entry import Entry, Layout
from engine.vllm.image_kv.files import FileTier
from engine.vllm.image_kv.keys import EntryKey
from engine.vllm.image_kv.order import Order
from engine.vllm.image_kv.stats import FileStats, PoolStats


class Hold:
    """An entry in use. It stays in memory until it is released; to release it again does nothing."""

    def __init__(self, pool: ImagePool, resident: _Resident) -> None:
        self._pool, self._resident, self._released = pool, resident, False
        self.entry = resident.entry

    def release(self) -> None:
        """Let the entry go when there is no room. Its tensors must not be read after this."""
        self._pool.release(self)

    def __enter__(self) -> Entry:
        return self.entry

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    def end(self) -> _Resident | None:
        """For the pool, under its lock: what is to be counted down, once."""
        resident, self._released = None if self._released else self._resident, True
        return resident


@dataclass(slots=True)
class _Counts:
    memory_hits: int = 0
    file_hits: int = 0
    misses: int = 0
    evicted: int = 0
    refused: int = 0


@dataclass(slots=True, eq=False)
class _Resident:
    entry: Entry
    holds: int = 0
    unwritten: bool = False

    @property
    def needed(self) -> bool:
        return self.holds > 0 or self.unwritten


class ImagePool:
    """Entries of one model. May be used from several threads.

    Args:
        layout: that of all its entries.
        memory_bytes: what entries in memory may have together; none is held beyond it.
        files: where entries go too, and come back from; None keeps them in memory alone.
        threads: how many files are read or written at a time.
    """

    def __init__(self, layout: Layout, memory_bytes: int, files: FileTier | None = None, threads: int = 2) -> None:
        self.layout = layout
        self._memory_bytes, self._files = memory_bytes, files
        self._lock = threading.Lock()
        self._order = Order()
        self._resident: dict[str, _Resident] = {}
        # Forgotten, and in memory for who still needs it.
        self._leaving: set[_Resident] = set()
        self._reading: dict[str, list[Future[Hold | None]]] = {}
        self._counts = _Counts()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="stillframe-image-pool")
        # All now: to start one while another reads was seen to take 40 ms of whoever asked.
        started = threading.Barrier(threads + 1)
        for _ in range(threads):
            self._threads.submit(started.wait)
        started.wait()

    def put(self, key: EntryKey, entry: Entry) -> bool:
        """Take an entry, which its maker does not write to any more; whether it was taken.

        One that is there already stays. It is not taken when all that would have to go for it is held.

        Raises:
            ValueError: it has another layout than the pool.
        """
        if entry.layout != self.layout:
            raise ValueError("the entry has another layout than the pool")
        with self._lock:
            if key.digest in self._resident:
                self._order.touch(key.digest)
                return True
            if not self._admit(key, entry):
                return False
            if self._files is None:
                return True
            resident = self._resident[key.digest]
            resident.unwritten = True
        self._threads.submit(self._write, self._files, key, resident)
        return True

    def count_refused(self) -> None:
        """An entry found no room before it was made."""
        with self._lock:
            self._counts.refused += 1

    def where(self, key: EntryKey) -> Literal["memory", "file"] | None:
        """In which tier an entry is. Of a file only its name is known."""
        with self._lock:
            if key.digest in self._resident:
                return "memory"
        return "file" if self._files is not None and key in self._files else None

    def hold(self, key: EntryKey) -> Future[Hold | None]:
        """Hold an entry; done at once when it is in memory. None: it is nowhere, not sound, or there is no room for it.

        A future that is cancelled before it is done holds nothing.
        """
        future: Future[Hold | None] = Future()
        with self._lock:
            if key.digest in self._resident:
                self._counts.memory_hits += 1
                self._order.touch(key.digest)
                future.set_result(self._held(key.digest))
                return future
            if self._files is None:
                self._counts.misses += 1
                future.set_result(None)
                return future
            if key.digest in self._reading:
                self._reading[key.digest].append(future)
                return future
            waiting = self._reading[key.digest] = [future]
        self._threads.submit(self._read, self._files, key, waiting)
        return future

    def release(self, hold: Hold) -> None:
        """What `Hold.release` does."""
        with self._lock:
            resident = hold.end()
            if resident is not None:
                resident.holds -= 1
                self._leave(resident)

    def clear(self) -> bool:
        """Forget all entries, in memory and in files; whether all files are gone. Waits for the disk.

        Nobody gets one of them after this. What is held stays in memory for its holders and goes with the last of them;
        what is being read is given to nobody, what is being written gets no file.
        """
        # Before the disk is waited for: a write that has the disk first leaves its file to be removed, and any other
        # one finds that it is not wanted any more.
        self._forget()
        if self._files is None:
            return True
        gone = self._files.clear()
        # What was put or read in the meantime may be of a file that was still there.
        self._forget()
        return gone

    def close(self) -> None:
        """Wait for the files that are being written, and end the threads. Nothing is put or held after this."""
        self._threads.shutdown(wait=True)

    def stats(self) -> PoolStats:
        """Figures now."""
        files = FileStats() if self._files is None else self._files.stats()
        with self._lock:
            counts, residents = self._counts, [*self._resident.values(), *self._leaving]
            return PoolStats(
                memory_entries=len(residents),
                memory_bytes=self._bytes,
                held_entries=sum(resident.holds > 0 for resident in residents),
                unwritten_entries=sum(resident.unwritten for resident in residents),
                memory_hits=counts.memory_hits,
                file_hits=counts.file_hits,
                misses=counts.misses,
                memory_evicted=counts.evicted,
                refused_entries=counts.refused,
                files=files,
            )

    def _held(self, digest: str) -> Hold:
        resident = self._resident[digest]
        resident.holds += 1
        return Hold(self, resident)

    @property
    def _bytes(self) -> int:
        return self._order.bytes + sum(resident.entry.bytes for resident in self._leaving)

    def _forget(self) -> None:
        with self._lock:
            self._leaving |= {resident for resident in self._resident.values() if resident.needed}
            # Reads find that they are no longer among these, and give nothing.
            self._resident, self._reading, self._order = {}, {}, Order()

    def _leave(self, resident: _Resident) -> None:
        """Under the lock: let go of what is forgotten and no longer needed."""
        if not resident.needed:
            self._leaving.discard(resident)

    def _admit(self, key: EntryKey, entry: Entry) -> bool:
        """Under the lock: make room for an entry and take it."""
        over = self._bytes + entry.bytes - self._memory_bytes
        if over > 0:
            fits = entry.bytes <= self._memory_bytes
            gone = self._order.make_room(over, lambda member: self._resident[member].needed) if fits else None
            if gone is None:
                self._counts.refused += 1
                return False
            for digest in gone:
                del self._resident[digest]
            self._counts.evicted += len(gone)
        self._resident[key.digest] = _Resident(entry)
        self._order.add(key.digest, key.group, entry.bytes, entry.cost)
        return True

    def _write(self, files: FileTier, key: EntryKey, resident: _Resident) -> None:
        def is_wanted() -> bool:
            with self._lock:
                return self._resident.get(key.digest) is resident

        try:
            if is_wanted():
                files.write(key, resident.entry, is_wanted)
        finally:
            with self._lock:
                resident.unwritten = False
                self._leave(resident)

    def _read(self, files: FileTier, key: EntryKey, waiting: list[Future[Hold | None]]) -> None:
        entry = None
        try:
            entry = files.read(key, self.layout)
        finally:
            self._answer(key, waiting, entry)

    def _answer(self, key: EntryKey, waiting: list[Future[Hold | None]], entry: Entry | None) -> None:
        """Give what was read to all that wait for it."""
        with self._lock:
            # Of what was forgotten since nobody is given anything.
            sound = self._reading.get(key.digest) is waiting
            if sound:
                del self._reading[key.digest]
            # From here on it cannot be cancelled: what is counted as held reaches its holder.
            waiting = [one for one in waiting if one.set_running_or_notify_cancel()]
            # It may have been put in the meantime.
            there = sound and (key.digest in self._resident or (entry is not None and self._admit(key, entry)))
            answers = [(future, self._held(key.digest) if there else None) for future in waiting]
            self._counts.file_hits += len(waiting) if there else 0
            self._counts.misses += 0 if there else len(waiting)
        for future, hold in answers:
            future.set_result(hold)
