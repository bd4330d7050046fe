"""Reading all turns of a ledger's file, in the order of their time, also while a gateway writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from context.errors import ConfigError
from context.files import UnusableFile, require_file
from context.store.turn_file import translated
from context.store.turn_rows import Row
from context.store.turns import SqliteTurns

_STEP = 256
_HAS_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
_BUSY_SECONDS = 5.0


class TurnReader:
    """Turns of a ledger's file. Used by one thread; `close` it. Turns that begin meanwhile are read too.

    Raises:
        ConfigError: there is no such file, or it is no ledger's.
        TurnStoreError: it cannot be read now.
    """

    def __init__(self, path: Path, busy_seconds: float = _BUSY_SECONDS) -> None:
        try:
            require_file(path)
        except FileNotFoundError as error:
            reason = "there is none yet: no gateway has served a chat with this data_dir"
            raise ConfigError("settings", str(path), reason) from error
        except UnusableFile as error:
            raise ConfigError("settings", str(path), str(error)) from error
        self._store = SqliteTurns(path, busy_seconds)

    def turns(self, tenant: str | None = None) -> Iterator[Row]:
        """Each turn, whole: based on no other row.

        Args:
            tenant: whose; all tenants' without one.

        Raises:
            TurnStoreError: it cannot be read now.
        """
        after = 0
        while listed := self._listed(after, tenant):
            for id, owner in listed:
                # None: it was pruned in this moment.
                if (row := self._store.load(owner, id, None)) is not None:
                    yield row
            after = listed[-1][0]

    def latest(self, limit: int, tenant: str | None = None) -> list[tuple[int, str, str, int]]:
        """Which turns came last, the latest first: id, tenant, conversation and number of each.

        Raises:
            TurnStoreError: it cannot be read now.
        """
        query = (
            "SELECT id, tenant, conversation, number FROM turns WHERE ?1 IS NULL OR tenant = ?1 "
            "ORDER BY id DESC LIMIT ?2"
        )
        with translated():
            return self._store.reader.execute(query, (tenant, limit)).fetchall()

    def has_beginning(self, tenant: str, conversation: str) -> bool:
        """Whether the first turn of a conversation is there.

        Raises:
            TurnStoreError: it cannot be read now.
        """
        query = "SELECT 1 FROM turns WHERE tenant = ? AND conversation = ? AND number <= 1 LIMIT 1"
        with translated():
            return self._store.reader.execute(query, (tenant, conversation)).fetchone() is not None

    def load(self, tenant: str, id: int) -> Row | None:
        """One turn, whole; None where it is there no more.

        Raises:
            TurnStoreError: it cannot be read now.
        """
        return self._store.load(tenant, id, None)

    def has_table(self, name: str) -> bool:
        """Whether the file has a table that is not the ledger's own."""
        with translated():
            return bool(self._store.reader.execute(_HAS_TABLE, (name,)).fetchone()[0])

    def close(self) -> None:
        """End it."""
        self._store.close()

    def _listed(self, after: int, tenant: str | None) -> list[tuple[int, str]]:
        query = "SELECT id, tenant FROM turns WHERE id > ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY id LIMIT ?3"
        with translated():
            return self._store.reader.execute(query, (after, tenant, _STEP)).fetchall()
