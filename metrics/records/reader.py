"""The records of one file, opened to be read while others write, and which of them a question is about."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from context.errors import ConfigError
from context.files import UnusableFile, require_file
from context.store.turn_file import ERRORS, store_error
from context.store.turn_rows import TurnStoreError
from metrics.records.record import TurnRecord
from metrics.records.rows import read
from metrics.records.schema import NAMED, NANOSECONDS, has_records

# Behind every id.
END = 2**62
_BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Filter:
    """Which turns: from `since` on until before `until`, in seconds since 1970, None for all times; of one tenant,
    model and policy by their names, None for all."""

    since: float | None = None
    until: float | None = None
    tenant: str | None = None
    model: str | None = None
    policy: str | None = None

    @property
    def first(self) -> int:
        """The first id that it may take."""
        return 0 if self.since is None else max(0, int(self.since * NANOSECONDS))

    @property
    def end(self) -> int:
        """The first id behind it."""
        return END if self.until is None else max(0, min(END, int(self.until * NANOSECONDS)))


class Records:
    """The records of one file, to read while others write. Made by `open_records`; for one thread at a time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query.

        Raises:
            ConfigError: the file cannot be read any more.
        """
        with _said():
            return self._connection.execute(query, tuple(parameters)).fetchall()

    def records(self, rest: str, parameters: Sequence[Any]) -> list[TurnRecord]:
        """Records by a condition and an order.

        Raises:
            ConfigError: the file cannot be read any more.
        """
        with _said():
            return read(self._connection, rest, parameters)

    def close(self) -> None:
        """End it."""
        self._connection.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_records(path: Path, busy_seconds: float = _BUSY_SECONDS) -> Records:
    """Open the records of a data folder's `ledger.db`, to read them alone. A file that is locked is waited for.

    Raises:
        ConfigError: there is no such file, it is none of ours, or it holds no records.
    """
    try:
        require_file(path)
    except FileNotFoundError as error:
        reason = "there is no such file; a gateway makes it as data_dir/ledger.db with its first turn"
        raise ConfigError(str(path), "", reason) from error
    except UnusableFile as error:
        raise ConfigError(str(path), "", str(error)) from error
    with _said(str(path)):
        name = f"file:{quote(str(path.absolute()))}?mode=ro"
        connection = sqlite3.connect(name, busy_seconds, isolation_level=None, check_same_thread=False, uri=True)
        with contextlib.ExitStack() as undo:
            undo.callback(connection.close)
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA cache_size = -65536")
            if not has_records(connection):
                reason = "holds no records; name the ledger.db of a gateway of this version or a newer one"
                raise ConfigError(str(path), "", reason)
            undo.pop_all()
    return Records(connection)


@contextlib.contextmanager
def _said(where: str = "ledger.db") -> Generator[None]:
    try:
        yield
    except ERRORS as error:
        # What is no fault of SQLite's is a row that makes no sense.
        is_told = isinstance(error, sqlite3.Error | OSError)
        raise ConfigError(where, "", (store_error(error) if is_told else TurnStoreError("damaged")).remedy) from error


def names_where(of: Filter, at: str) -> tuple[str, list[str]]:
    """A condition for the names of a filter, to stand behind others."""
    given = [(name, value) for name in NAMED if (value := getattr(of, name)) is not None]
    condition = "".join(f" AND {at}{name} = (SELECT id FROM record_names WHERE name = ?)" for name, _ in given)
    return condition, [value for _, value in given]
