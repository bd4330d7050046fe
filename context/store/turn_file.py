"""The file of turns itself: making, opening and checking it, moving a damaged one aside, and SQLite's errors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from context.errors import ConfigError
from context.store.turn_rows import Trouble, TurnStoreError

_VERSION = 1
_APPLICATION_ID = 0x5374466C
_SCHEMA = """
CREATE TABLE turns (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, conversation TEXT NOT NULL, number INTEGER NOT NULL, base INTEGER,
    kept_client INTEGER NOT NULL, kept_sent INTEGER NOT NULL, walked INTEGER NOT NULL, chain BLOB NOT NULL, tools BLOB,
    state BLOB NOT NULL, epoch INTEGER NOT NULL, policy TEXT NOT NULL,
    digests BLOB NOT NULL, client BLOB NOT NULL, sent BLOB NOT NULL) STRICT;
CREATE INDEX turns_of_conversation ON turns (tenant, conversation, id);
CREATE INDEX turns_of_base ON turns (base) WHERE base IS NOT NULL;
CREATE INDEX turns_of_tools ON turns (tools) WHERE tools IS NOT NULL;
CREATE TABLE replies (
    turn INTEGER PRIMARY KEY, chain BLOB NOT NULL,
    digests BLOB NOT NULL, client BLOB NOT NULL, sent BLOB NOT NULL) STRICT;
CREATE TABLE tools (digest BLOB PRIMARY KEY, data BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE points (
    tenant TEXT NOT NULL, chain BLOB NOT NULL,
    turn INTEGER NOT NULL, length INTEGER NOT NULL, at_reply INTEGER NOT NULL,
    PRIMARY KEY (tenant, chain)) STRICT, WITHOUT ROWID;
"""
# The binding looks in vain for a way to adapt each None, which is half of what it takes to hand a record over.
sqlite3.register_adapter(type(None), lambda none: none)
_INSERT_ROWS = 64
_WAL_PAGES = 4096
_SETTINGS = (
    "synchronous = NORMAL",
    "cache_size = -8192",
    # Else a temporary file is written for every statement that inserts many rows.
    "temp_store = MEMORY",
    # The more is in the log, the more often a page is written there before it is written once to the file.
    f"wal_autocheckpoint = {_WAL_PAGES}",
    f"journal_size_limit = {_WAL_PAGES * 4096}",
)
_TROUBLES: dict[int, Trouble] = {
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_FULL: "full",
    sqlite3.SQLITE_READONLY: "read-only",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
}

# SQLite's errors, and what a damaged row makes of its readers.
ERRORS = (sqlite3.Error, OSError, ValueError, OverflowError, TypeError, IndexError)


def touch(path: Path) -> None:
    """Make the file and its folder when they are not there.

    Raises:
        ConfigError: it can never be written: no permission, or no file.
        TurnStoreError: it cannot be made now.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not opened when it is there: closing it would take the locks of SQLite's own handles in this process.
        if not path.exists():
            # What people said stands in it: readable by its owner alone.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if not path.is_file():
            raise ConfigError("settings", "ledger.path", f"{path.name} is not a file; name one")
        if not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            raise TurnStoreError("full") from error
        reason = f"cannot keep {path.name} there ({error.strerror}); name a file that can be written"
        raise ConfigError("settings", "ledger.path", reason) from error


def move_aside(path: Path, damaged: tuple[int, int] | None) -> None:
    """Rename a damaged file to `NAME.damaged`, in place of an earlier one.

    Args:
        path: where it was.
        damaged: its identity; nothing happens when another file stands there, for another process was faster.

    Raises:
        TurnStoreError: it could not be renamed.
    """
    with translated(), contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if identity(path) != damaged:
            return
        # The log of a damaged file must not be taken for that of the next one.
        for name in reversed(_names(path)):
            with contextlib.suppress(FileNotFoundError):
                os.replace(name, name.with_name(name.name.replace(path.name, f"{path.name}.damaged", 1)))


def _names(path: Path) -> tuple[Path, Path, Path]:
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def size_of(path: Path) -> int:
    """Bytes on disk, those of its log among them; 0 where there is nothing."""
    total = 0
    for name in _names(path)[:2]:
        with contextlib.suppress(OSError):
            total += os.stat(name).st_size
    return total


def identity(path: Path) -> tuple[int, int] | None:
    """Which file stands there, by any name; None for none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """A connection that waits for others so long, for any one thread at a time."""
    # `rw`: a reader that finds no file must not begin one.
    name = f"file:{quote(str(path.absolute()))}?mode=rw"
    connection = sqlite3.connect(name, busy_seconds, isolation_level=None, check_same_thread=False, uri=True)
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        for setting in _SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        undo.pop_all()
    return connection


def prepare(writer: sqlite3.Connection, path: Path, busy_seconds: float) -> None:
    """Make the tables in an empty file.

    Raises:
        ConfigError: it holds something else than turns, or those of another version.
    """
    if _is_ready(writer, path):
        return
    writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
    deadline = time.monotonic() + busy_seconds
    # SQLite does not wait by itself when another process begins the same file in this moment.
    while True:
        try:
            writer.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    writer.execute("BEGIN IMMEDIATE")
    if not _is_ready(writer, path):
        for statement in _SCHEMA.split(";"):
            writer.execute(statement)
        writer.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        writer.execute(f"PRAGMA user_version = {_VERSION}")
    writer.execute("COMMIT")


def _is_ready(writer: sqlite3.Connection, path: Path) -> bool:
    """Whether it holds turns already.

    Raises:
        ConfigError: it holds something else, or those of a newer version.
    """
    tables, application, version = (
        writer.execute(query).fetchone()[0]
        for query in ("SELECT count(*) FROM sqlite_master", "PRAGMA application_id", "PRAGMA user_version")
    )
    if application == _APPLICATION_ID and version == _VERSION:
        return True
    if application == _APPLICATION_ID:
        reason = f"{path.name} was written by another version of Stillframe; use that one, or name another file"
        raise ConfigError("settings", "ledger.path", reason)
    if tables:
        reason = f"{path.name} is a database of another program; name another file"
        raise ConfigError("settings", "ledger.path", reason)
    return False


@contextlib.contextmanager
def translated() -> Generator[None]:
    """`ERRORS` as the seam's."""
    try:
        yield
    except ERRORS as error:
        raise store_error(error) from error


def store_error(error: BaseException) -> TurnStoreError:
    """One of `ERRORS` as the seam's."""
    code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return TurnStoreError(_TROUBLES.get(code, "unusable"))


def insert(connection: sqlite3.Connection, start: str, rows: Sequence[tuple[Any, ...]], end: str = "") -> None:
    """Insert rows, many with one statement: a thread gives the interpreter's lock away at each, and waits for it."""
    at, size = 0, _INSERT_ROWS
    while at < len(rows):
        # Powers of two, so that SQLite's statements are prepared once.
        while size > len(rows) - at:
            size //= 2
        some = rows[at : at + size]
        values = ",".join([f"({','.join('?' * len(some[0]))})"] * size)
        connection.execute(f"{start} VALUES {values} {end}", [value for row in some for value in row])
        at += size
