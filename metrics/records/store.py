"""Records in the ledger's SQLite file, in tables of their own, with a connection of their own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from context.store.turn_file import connect, identity, prepare, touch, translated
from context.store.turn_rows import TurnStoreError
from metrics.records.batch import write_batch
from metrics.records.record import TurnRecord
from metrics.records.rows import size_sql
from metrics.records.schema import DAY, HOUR, NAMED, NUMBERS, make_tables

# So many go in one transaction: other writers wait so long.
_BATCH = 512
_PRUNE_STEP = 250
_VACUUM_PAGES = 512
_PRUNE_TO_RATIO = 0.9
_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Bounds. `max_bytes` is of the records in the file, by estimate; `max_waiting` of those in memory, in records."""

    max_age_seconds: float = 90 * 86_400.0
    max_bytes: int = 512 * 1024**2
    max_waiting: int = 65_536


class RecordStore:
    """The records of one file. Used by one thread at a time.

    Args:
        path: the ledger's file; it is begun where it is not there.
        busy_seconds: how long a write waits for other processes.

    Raises:
        ConfigError: the file can never be used.
        TurnStoreError: it cannot be used now.
    """

    def __init__(self, path: Path, busy_seconds: float) -> None:
        touch(path)
        self._path, self._file = path, identity(path)
        with translated(), contextlib.ExitStack() as undo:
            self._connection = connect(path, busy_seconds)
            undo.callback(self._connection.close)
            prepare(self._connection, path, busy_seconds)
            make_tables(self._connection)
            undo.pop_all()

    def write(self, records: Sequence[TurnRecord]) -> None:
        """Keep records. One whose id is there already is there already: to write a batch again does nothing.

        Raises:
            TurnStoreError: what was written before the failure stays.
        """
        for at in range(0, len(records), _BATCH):
            some = records[at : at + _BATCH]
            with self._transaction() as connection:
                write_batch(connection, some)

    def used_bytes(self) -> int:
        """What the records take in the file, by estimate."""
        with translated():
            return self._connection.execute("SELECT bytes FROM records_schema").fetchone()[0]

    def prune(self, before: int, max_bytes: int, hours_before: int = 0) -> int:
        """Delete the records from before an id and their sums, and the oldest ones until they are within their bound.

        Sums by day stay for as long as their age allows, also where the space does not allow the records.

        Args:
            before: the first id that is young enough.
            max_bytes: the bound, for `used_bytes`.
            hours_before: the sums by hour from before this id go, but for those over all splits.

        Returns:
            How many records went.
        """
        deleted = 0
        while step := self._delete_oldest(before):
            deleted += step
        if self.used_bytes() > max_bytes:
            while self.used_bytes() > max_bytes * _PRUNE_TO_RATIO and (step := self._delete_oldest(None)):
                deleted += step
        with self._transaction() as connection:
            hours = hours_before // HOUR
            connection.execute("UPDATE records_schema SET hours_from = max(hours_from, ?)", (hours,))
            for split in NUMBERS.values():
                # By split: so the table is laid out.
                bound = max(before // HOUR, hours if split else 0)
                connection.execute("DELETE FROM rollups WHERE split = ? AND period < ?", (split, bound))
                connection.execute("DELETE FROM rollups_by_day WHERE split = ? AND period < ?", (split, before // DAY))
            oldest = connection.execute("SELECT min(id) FROM records").fetchone()[0]
            if deleted:
                connection.execute("DELETE FROM record_images WHERE last_record < ?", (oldest or _END,))
                connection.execute("DELETE FROM record_conversations WHERE last_record < ?", (oldest or _END,))
                used = " UNION ".join(f"SELECT {name} FROM rollups_by_day WHERE split = 0" for name in NAMED)
                connection.execute(f"DELETE FROM record_names WHERE id NOT IN ({used})")
        if deleted:
            with translated():
                self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
        return deleted

    def _delete_oldest(self, before: int | None) -> int:
        """Delete some of the oldest, of those from before an id where there is one; how many."""
        with self._transaction() as connection:
            bound = "" if before is None else f"WHERE id < {before}"
            last, size = connection.execute(
                f"SELECT max(id), sum(size) FROM (SELECT id, {size_sql()} size FROM records {bound} "
                f"ORDER BY id LIMIT {_PRUNE_STEP})"
            ).fetchone()
            if last is None:
                return 0
            connection.execute("UPDATE records_schema SET bytes = max(0, bytes - ?)", (size,))
            return connection.execute("DELETE FROM records WHERE id <= ?", (last,)).rowcount

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with translated():
            # A file that was moved away would be written to its end, and nobody would find it again.
            if identity(self._path) != self._file:
                raise TurnStoreError("gone")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
