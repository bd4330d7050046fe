"""Records in the ledger's SQLite file, in tables of their own, with a connection of their own."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from context.store.turn_file import connect, identity, insert, prepare, touch, translated
from context.store.turn_rows import TurnStoreError
from metrics.records.record import TurnRecord
from metrics.records.rows import images_of, row_of, size_of, size_sql
from metrics.records.schema import (
    COLUMNS,
    CONVERSATION_SUMS,
    DAY,
    HOUR,
    KEYS,
    NAMED,
    NUMBERS,
    SUMS,
    VALUES,
    make_tables,
)

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
            for statement in _BATCH_TABLES:
                self._connection.execute(statement)
            undo.pop_all()

    def write(self, records: Sequence[TurnRecord]) -> None:
        """Keep records. One whose id is there already is there already: to write a batch again does nothing.

        Raises:
            TurnStoreError: what was written before the failure stays.
        """
        for at in range(0, len(records), _BATCH):
            some = records[at : at + _BATCH]
            rows, images = [row_of(one) for one in some], [row for one in some for row in images_of(one)]
            size = {one.id: size_of(one) for one in some}
            with self._transaction() as connection:
                # Of two with one id the second is none.
                insert(connection, "INSERT OR IGNORE INTO temp.record_batch", rows)
                insert(connection, "INSERT OR IGNORE INTO temp.image_batch", images)
                connection.execute("DELETE FROM temp.record_batch WHERE id IN (SELECT id FROM records)")
                for statement in _WRITE:
                    connection.execute(statement)
                new: list[tuple[int]] = connection.execute("SELECT id FROM temp.record_batch").fetchall()
                connection.execute("UPDATE records_schema SET bytes = bytes + ?", (sum(size[id] for (id,) in new),))
                for table in _EMPTIED:
                    connection.execute(f"DELETE FROM temp.{table}")

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


# The batch under the name by which the expressions of the sums call a record.
_BATCH_NAMED = "temp.record_batch r " + " ".join(
    f"JOIN record_names {name}_name ON {name}_name.name = r.{name}" for name in NAMED
)


def _upsert(table: str, columns: Sequence[str], keys: Sequence[str], changes: Sequence[str], select: str) -> str:
    targets, updates = ", ".join(keys), ", ".join(changes)
    return f"INSERT INTO {table} ({', '.join(columns)}) {select} ON CONFLICT ({targets}) DO UPDATE SET {updates}"


def _added(names: Sequence[str]) -> list[str]:
    return [f"{name} = {name} + excluded.{name}" for name in names]


_SPAN = [
    "first_record = min(first_record, excluded.first_record)",
    "last_record = max(last_record, excluded.last_record)",
]


def _write_conversations() -> str:
    keys = ["tenant", "name", "model", "policy"]
    sums = ", ".join(f"sum({SUMS[name]})" for name in CONVERSATION_SUMS)
    select = (
        "SELECT tenant_name.id, r.conversation, model_name.id, policy_name.id, min(r.id), max(r.id), max(r.number), "
        f"{sums} FROM {_BATCH_NAMED} WHERE r.conversation <> '' GROUP BY 1, 2, 3, 4"
    )
    columns = [*keys, "first_record", "last_record", "turns", *CONVERSATION_SUMS]
    changes = [*_SPAN, "turns = max(turns, excluded.turns)", *_added(CONVERSATION_SUMS)]
    return _upsert("record_conversations", columns, keys, changes, select)


def _sum_up() -> str:
    """The batch's sums by hour for each split, into a table of their own."""
    values = " ".join(f"WHEN {NUMBERS[name]} THEN v_{name}" for name in VALUES)
    return (
        f"INSERT INTO temp.rollup_batch SELECT s.column1, hour, CASE s.column1 {values} END, {', '.join(NAMED)}, "
        f"{', '.join(f'sum({name})' for name in SUMS)} FROM temp.fact_batch "
        f"CROSS JOIN (VALUES {', '.join(f'({number})' for number in NUMBERS.values())}) s GROUP BY 1, 2, 3, 4, 5, 6"
    )


def _add_rollups(table: str, period: str) -> str:
    keys = ", ".join(period if name == "period" else name for name in KEYS)
    places = ", ".join(str(at + 1) for at in range(len(KEYS)))
    select = (
        f"SELECT {keys}, {', '.join(f'sum({name})' for name in SUMS)} FROM temp.rollup_batch "
        f"WHERE true GROUP BY {places}"
    )
    return _upsert(table, [*KEYS, *SUMS], KEYS, _added(tuple(SUMS)), select)


_BATCH_TABLES = (
    f"CREATE TEMP TABLE record_batch (id INTEGER PRIMARY KEY, {', '.join(COLUMNS)})",
    "CREATE TEMP TABLE image_batch (record INTEGER, image BLOB, count INTEGER, PRIMARY KEY (record, image)) "
    "WITHOUT ROWID",
    f"CREATE TEMP TABLE fact_batch (hour, {', '.join(NAMED)}, {', '.join(f'v_{name}' for name in VALUES)}, "
    f"{', '.join(SUMS)})",
    f"CREATE TEMP TABLE rollup_batch ({', '.join(KEYS)}, {', '.join(SUMS)})",
)
_EMPTIED = ("record_batch", "image_batch", "fact_batch", "rollup_batch")
_WRITE = (
    "INSERT OR IGNORE INTO record_names (name) "
    + " UNION ".join(f"SELECT {name} FROM temp.record_batch" for name in NAMED),
    _write_conversations(),
    f"INSERT INTO records (id, {', '.join(COLUMNS)}) SELECT r.id, "
    + ", ".join("c.id" if n == "conversation" else f"{n}_name.id" if n in NAMED else f"r.{n}" for n in COLUMNS)
    + f" FROM {_BATCH_NAMED} LEFT JOIN record_conversations c ON c.tenant = tenant_name.id "
    "AND c.name = r.conversation AND c.model = model_name.id AND c.policy = policy_name.id",
    f"INSERT INTO temp.fact_batch SELECT r.id / {HOUR}, {', '.join(f'r.{name}' for name in NAMED)}, "
    f"{', '.join(VALUES.values())}, {', '.join(SUMS.values())} FROM records r "
    "WHERE r.id IN (SELECT id FROM temp.record_batch)",
    _sum_up(),
    _add_rollups("rollups", "period"),
    _add_rollups("rollups_by_day", f"period / {DAY // HOUR}"),
    _upsert(
        "record_images",
        ["tenant", "image", "conversation", "first_record", "last_record", "turns", "occurrences"],
        ["tenant", "image", "conversation"],
        [*_SPAN, *_added(["turns", "occurrences"])],
        "SELECT r.tenant, i.image, r.conversation, min(r.id), max(r.id), count(*), sum(i.count) "
        "FROM temp.image_batch i JOIN temp.record_batch b ON b.id = i.record JOIN records r ON r.id = b.id "
        "WHERE r.conversation IS NOT NULL GROUP BY 1, 2, 3",
    ),
)
