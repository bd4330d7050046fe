"""Which prefixes a file of turns may have: most that it does not have are told without asking SQLite.

Nearly every request asks for a prefix that nobody has sent, its own newest message, and SQLite gives the interpreter's
lock away for the answer. So each process keeps a Bloom filter of all points: what it says is not there is not there.

Other processes write to the file, too. Beside it stands a counter in memory that all of them share, `NAME.points`: who
adds points counts up first, with SQLite's lock for writing. A process whose own count is another one asks SQLite, until
it has read all points anew. A count without a commit, of a process that was killed, costs the others that.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from context.store.turn_file import connect

# Of one byte each: 100,000 points give one false answer of 500, a million one of 7. A false one costs a look.
_PLACES = 1 << 22
_MOST_POINTS = 1 << 20
_MASK = _PLACES - 1
_COUNT_BYTES = 8
# While others write, reading anew is not worth it.
QUIET_SECONDS = 60.0


class KnownPoints:
    """The points of one file. `may_have` is for the event loop, all else for the thread that writes.

    Args:
        path: the file of turns.
        clock: in seconds.

    Raises:
        OSError: the counter cannot be had.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        fd = os.open(path.with_name(f"{path.name}.points"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Two that begin it at once must not set each other back.
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_size < _COUNT_BYTES:
                # Written, not only made longer: on a full disk the first use of it would end the process.
                os.pwrite(fd, bytes(_COUNT_BYTES), 0)
            # The map keeps the file open, and a lock with it.
            fcntl.flock(fd, fcntl.LOCK_UN)
            self._shared = mmap.mmap(fd, _COUNT_BYTES)
        finally:
            os.close(fd)
        self._table = bytearray(_PLACES)
        self._marked = 0
        # None until all points were read, and after others have written.
        self._count: int | None = None
        self._counted, self._read_after = -1, float("-inf")

    def may_have(self, chain: Sequence[bytes], above: int) -> bool:
        """Whether a prefix of `chain` that is longer than `above` messages may be in the file."""
        if self._now() != self._count:
            return True
        table = self._table
        return any(
            table[int.from_bytes(digest[:4], "little") & _MASK] and table[int.from_bytes(digest[4:8], "little") & _MASK]
            for digest in chain[above:]
        )

    def add(self, chains: Iterable[bytes]) -> None:
        """Points are about to be committed. Whoever calls has SQLite's lock for writing."""
        self._marked += _mark(self._table, chains)
        before = self._now()
        self._shared[:] = (before + 1).to_bytes(_COUNT_BYTES, "little")
        if before != (self._counted if self._count is None else self._count):
            self._count, self._read_after = None, self._clock() + QUIET_SECONDS
        elif self._count is not None:
            self._count = before + 1 if self._marked <= _MOST_POINTS else None
        self._counted = before + 1

    def refresh(self, writer: sqlite3.Connection) -> None:
        """Read all points where they are not known, once others are quiet. Where that fails, or there are too many,
        SQLite goes on being asked.

        Args:
            writer: a connection that is in no transaction.
        """
        if self._count is not None or self._clock() < self._read_after:
            return
        self._read_after = self._clock() + QUIET_SECONDS
        with contextlib.suppress(sqlite3.Error), contextlib.closing(connect(self._path, 0)) as reader:
            # Between two commits, so that what was counted is there.
            writer.execute("BEGIN IMMEDIATE")
            try:
                reader.execute("BEGIN")
                reader.execute("SELECT 1 FROM points LIMIT 1").fetchone()
                count = self._now()
            finally:
                writer.execute("ROLLBACK")
            if reader.execute("SELECT count(*) FROM points").fetchone()[0] > _MOST_POINTS:
                return
            table = bytearray(_PLACES)
            self._marked = _mark(table, (chain for (chain,) in reader.execute("SELECT chain FROM points")))
            # In this order: the count makes it known.
            self._table = table
            self._count = count

    def close(self) -> None:
        """Let the counter go."""
        self._count = None
        self._shared.close()

    def _now(self) -> int:
        return int.from_bytes(self._shared[:], "little")


def _mark(table: bytearray, chains: Iterable[bytes]) -> int:
    """Enter points in a table; how many."""
    marked = 0
    for chain in chains:
        table[int.from_bytes(chain[:4], "little") & _MASK] = 1
        table[int.from_bytes(chain[4:8], "little") & _MASK] = 1
        marked += 1
    return marked
