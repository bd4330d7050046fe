"""Turns in one SQLite file, which several processes may share.

All SQL of the ledger stands here and, for its tables, in `context/store/turn_file.py`.

WAL without a sync on each commit: what is committed survives the death of the process, not of the machine.
docs/adr/0008-context.md says why that is enough. `context/store/turn_rows.py` says what each call promises.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from context.images.memo import Lru
from context.store.known_points import KnownPoints
from context.store.turn_codec import Kept, Texts, cost_of, decode, decode_tools, value_bytes, value_of
from context.store.turn_entries import sort_out
from context.store.turn_file import (
    ERRORS,
    connect,
    identity,
    insert,
    move_aside,
    prepare,
    size_of,
    store_error,
    touch,
    translated,
)
from context.store.turn_rows import Addition, Entry, KnownRows, Point, Reply, Row, Tools, TurnStoreError, reply_name
from context.transcript import DIGEST_BYTES, Message

_log = logging.getLogger(__name__)
# Longest first, and it ends at the first that is known: mostly two or three probes of 180.
_PROBE = f"""
WITH RECURSIVE at (i) AS (VALUES (?) UNION ALL SELECT i - 1 FROM at WHERE i > ?)
SELECT turn, i + 1, at_reply FROM at CROSS JOIN points WHERE tenant = ?
    AND chain = substr(?, i * {DIGEST_BYTES} + 1, {DIGEST_BYTES}) LIMIT 1
"""
_PROBE_ONE = "SELECT turn, at_reply FROM points WHERE tenant = ? AND chain = ?"
# From a row down to one that is whole, or whose base is known, each with its reply; a base has a smaller id than what
# stands on it, and comes first. All in one row: the interpreter's lock changes hands at each.
_LOAD = f"""
WITH RECURSIVE walk (id, base) AS (
    SELECT id, base FROM turns WHERE id = ? AND tenant = ?
    UNION ALL SELECT turns.id, turns.base FROM walk JOIN turns ON turns.id = walk.base{{unless_known}})
SELECT min(ifnull(turns.base, 0)),
    json_array(json_group_array(kept_client), json_group_array(kept_sent), json_group_array(turn IS NOT NULL),
        json_group_array(length(turns.digests) / {2 * DIGEST_BYTES}), json_group_array(length(turns.client)),
        json_group_array(ifnull(length(replies.client), 0))),
    CAST(group_concat(CAST(turns.digests || ifnull(replies.digests, '') AS TEXT), '') AS BLOB),
    CAST(group_concat(turns.client || ifnull(',' || replies.client, '')) AS BLOB),
    group_concat(turns.sent || ifnull(',' || replies.sent, ''))
FROM (SELECT id FROM walk ORDER BY id) CROSS JOIN turns USING (id) LEFT JOIN replies ON turn = id
"""
_LOAD_WHOLE = _LOAD.format(unless_known="")
_LOAD_REST = _LOAD.format(unless_known=" WHERE NOT is_known(walk.base)")
_CONVERSATION = "SELECT conversation FROM turns WHERE id = ? AND tenant = ?"
_HEAD = """
SELECT conversation, number, turns.chain, tools, data, state, epoch, policy, walked, replies.chain
FROM turns LEFT JOIN replies ON turn = id LEFT JOIN tools ON digest = tools WHERE id = ?
"""
_ADD = "INSERT OR IGNORE INTO turns"
_ADD_REPLY = "INSERT OR IGNORE INTO replies"
_ADD_TOOLS = "INSERT OR IGNORE INTO tools"
_ADD_POINT = "INSERT INTO points"
_NEWER_POINT = """
ON CONFLICT DO UPDATE SET turn = excluded.turn, length = excluded.length, at_reply = excluded.at_reply
WHERE excluded.turn >= turn
"""
# What entries stand on. All in one row, as above.
_THERE = """
SELECT json_group_array(json_array(id, tenant, EXISTS (SELECT 1 FROM replies WHERE turn = id))) FROM turns
WHERE id IN (SELECT value FROM json_each(?))
"""
# A row that is needed is based on by one that stays, or by one that is needed.
_EXPIRED = """
WITH RECURSIVE needed (id) AS (
    SELECT base FROM turns WHERE base < :before AND id >= :before
    UNION SELECT base FROM needed JOIN turns USING (id) WHERE base IS NOT NULL)
SELECT id, tenant, turns.chain, replies.chain, replies.digests, tools FROM turns LEFT JOIN replies ON turn = id
WHERE id < :before AND id NOT IN (SELECT id FROM needed) ORDER BY id DESC LIMIT :most
"""
# So many are deleted in one go: other writers wait for about 10 ms.
_BATCH = 256
# So many at a time are given up where space is needed: few, since each may hold megabytes.
_STEP = 32
_VACUUM_PAGES = 1024
_TOOLS_BYTES = 4 * 1024 * 1024


class SqliteTurns:
    """A store of turns in a file. Made by `open_turns`."""

    def __init__(self, path: Path, busy_seconds: float) -> None:
        self._path, self._file = path, identity(path)
        with translated(), contextlib.ExitStack() as undo:
            self._writer = connect(path, busy_seconds)
            undo.callback(self._writer.close)
            prepare(self._writer, path, busy_seconds)
            self._reader = connect(path, busy_seconds)
            undo.callback(self._reader.close)
            self._known: KnownRows | None = None
            self._reader.create_function("is_known", 1, self._is_known)
            # Waits for nothing: it is asked on the event loop.
            self._prober = connect(path, 0)
            undo.callback(self._prober.close)
            # Reads the whole index once, so that the event loop finds its pages in memory.
            self._prober.execute("SELECT count(*), max(length) FROM points").fetchone()
            self._points = _known_points(path)
            if self._points is not None:
                undo.callback(self._points.close)
                self._points.refresh(self._writer)
            undo.pop_all()
        # Used by the reading thread alone.
        self._tools: Lru[bytes, Tools] = Lru(_TOOLS_BYTES, lambda tools: len(tools.data))

    @property
    def reader(self) -> sqlite3.Connection:
        """The connection that `find` and `load` read with."""
        return self._reader

    def probe(self, tenant: str, chain: Sequence[bytes], above: int) -> Point | None:
        try:
            if self._points is not None and not self._points.may_have(chain, above):
                return None
            return _probe(self._prober, tenant, chain, above)
        except ERRORS as error:
            raise store_error(error) from error

    def newest(self, tenant: str, conversation: str) -> int | None:
        with translated():
            query = "SELECT max(id) FROM turns WHERE tenant = ? AND conversation = ?"
            return self._prober.execute(query, (tenant, conversation)).fetchone()[0]

    def find(
        self, tenant: str, chain: Sequence[bytes], above: int, known: KnownRows | None, came: Sequence[Message] = ()
    ) -> tuple[Point, Row] | None:
        with translated():
            if self._points is not None and not self._points.may_have(chain, above):
                return None
            point = _probe(self._reader, tenant, chain, above)
            row = point and self.load(tenant, point.turn, known, came)
            return (point, row) if point and row else None

    def load(self, tenant: str, turn: int, known: KnownRows | None, came: Sequence[Message] = ()) -> Row | None:
        with translated():
            found = self._reader.execute(_CONVERSATION, (turn, tenant)).fetchone()
            if found is None:
                return None
            # To ask about every row takes as long as reading it, and mostly nothing of the conversation is known.
            if known is not None and known.newest(tenant, found[0]) is None:
                known = None
            self._known = known
            query = _LOAD_WHOLE if known is None else _LOAD_REST
            base, kept, *texts = self._reader.execute(query, (turn, tenant)).fetchone()
            # Behind the texts: a reply that is among them has its digest here, also one that came in this moment.
            head = self._reader.execute(_HEAD, (turn,)).fetchone()
            if base is None or head is None:
                return None
            # It is known, unless that was pruned in this moment.
            if base and (known is None or base not in known):
                return None
            all_kept: list[Kept] = list(zip(*value_of(kept), strict=True))
            return self._row(tenant, turn, base or None, all_kept, Texts(*texts), head, came)

    def _row(
        self,
        tenant: str,
        turn: int,
        base: int | None,
        kept: Sequence[Kept],
        texts: Texts,
        last: Sequence[Any],
        came: Sequence[Message],
    ) -> Row:
        conversation, number, chain, tools, tools_data, state, epoch, policy, walked, reply_chain = last
        made = decode(kept, texts, came)
        reply = None
        if kept[-1][2]:
            own = made.client.pop()
            reply = Reply(own, made.sent.pop(), reply_chain, cost_of("", "", 1), reply_name(own.digest))
        return Row(
            id=turn,
            tenant=tenant,
            conversation=conversation,
            number=number,
            base=base,
            kept_client=made.kept_client,
            kept_sent=made.kept_sent,
            client=tuple(made.client),
            sent=tuple(made.sent),
            chain=chain,
            tools=None if tools is None else self._tools_of(tools, tools_data),
            state=value_of(state),
            epoch=epoch,
            policy=policy,
            walked=walked,
            cost=cost_of(texts.client, texts.sent, len(made.client)) + len(state),
            reply=reply,
        )

    def _is_known(self, turn: int) -> bool:
        return self._known is not None and turn in self._known

    def _tools_of(self, digest: bytes, data: bytes) -> Tools:
        tools = self._tools.get(digest)
        if tools is None:
            tools = decode_tools(digest, data)
            self._tools.put(digest, tools)
        return tools

    def write(self, entries: Sequence[Entry]) -> list[int]:
        with self._transaction() as writer:
            sorted_out = sort_out(entries, self._there(entries))
            insert(writer, _ADD, sorted_out.rows)
            insert(writer, _ADD_TOOLS, list(sorted_out.tools.items()))
            insert(writer, _ADD_REPLY, sorted_out.replies)
            # In the order of the table, so that a page is changed once.
            insert(writer, _ADD_POINT, sorted(sorted_out.points), _NEWER_POINT)
            if self._points is not None:
                self._points.add(chain for _, chain, *_ in sorted_out.points)
        if self._points is not None:
            self._points.refresh(self._writer)
        return sorted_out.refused

    def _there(self, entries: Sequence[Entry]) -> dict[int, tuple[str, bool]]:
        asked = {one.id for one in entries} | {one.base for one in entries if isinstance(one, Addition)}
        found = self._writer.execute(_THERE, (value_bytes([one for one in asked if one is not None]).decode(),))
        rows: list[tuple[int, str, int]] = value_of(found.fetchone()[0])
        return {id: (tenant, bool(replied)) for id, tenant, replied in rows}

    def expire(self, before: int) -> tuple[list[int], bool]:
        with self._transaction() as writer:
            gone = writer.execute(_EXPIRED, {"before": before, "most": _BATCH}).fetchall()
            ids = [(one[0],) for one in gone]
            points = [(one[1], chain, one[0]) for one in gone for chain in _chains(*one[2:5])]
            # A newer turn may have taken the point over.
            writer.executemany("DELETE FROM points WHERE tenant = ? AND chain = ? AND turn = ?", points)
            writer.executemany("DELETE FROM replies WHERE turn = ?", ids)
            writer.executemany("DELETE FROM turns WHERE id = ?", ids)
            unused = "DELETE FROM tools WHERE digest = ?1 AND NOT EXISTS (SELECT 1 FROM turns WHERE tools = ?1)"
            writer.executemany(unused, {(one[5],) for one in gone if one[5] is not None})
        return [id for (id,) in ids], len(ids) == _BATCH

    def step(self, after: int) -> int | None:
        with translated():
            query = "SELECT max(id) FROM (SELECT id FROM turns WHERE id > ? ORDER BY id LIMIT ?)"
            return self._writer.execute(query, (after, _STEP)).fetchone()[0]

    def used_bytes(self) -> int:
        with translated():
            return (self._pragma("page_count") - self._pragma("freelist_count")) * self._pragma("page_size")

    def shrink(self) -> bool:
        with translated():
            self._writer.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
            if self._pragma("freelist_count"):
                return True
            # Only now does the file become shorter. A reader that is in the way makes it wait for the next time.
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return False

    def _pragma(self, name: str) -> int:
        return self._writer.execute(f"PRAGMA {name}").fetchone()[0]

    def count(self) -> int:
        with translated():
            return self._reader.execute("SELECT count(*) FROM turns").fetchone()[0]

    def file_bytes(self) -> int:
        return size_of(self._path)

    def close(self) -> None:
        for connection in (self._prober, self._reader, self._writer):
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        if self._points is not None:
            self._points.close()

    def discard(self) -> None:
        move_aside(self._path, self._file)

    @contextlib.contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection]:
        with translated():
            # A file that was taken away would be written to its end, and nobody would find it again.
            if identity(self._path) != self._file:
                raise TurnStoreError("gone")
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")


def _known_points(path: Path) -> KnownPoints | None:
    """None where there is no place for its counter: SQLite is asked for all then."""
    with contextlib.suppress(OSError, ValueError):
        return KnownPoints(path)
    return None


def open_turns(path: Path, busy_seconds: float) -> SqliteTurns:
    """Open the store in a file, or begin one. A damaged file is moved aside to `NAME.damaged`.

    Args:
        path: the file; it and its folder are made when they are not there.
        busy_seconds: how long a write waits for another process.

    Raises:
        ConfigError: it can never be opened: no permission, no file, another program's, or another version's.
        TurnStoreError: it cannot be opened now.
    """
    touch(path)
    file = identity(path)
    try:
        return SqliteTurns(path, busy_seconds)
    except TurnStoreError as error:
        if error.trouble != "damaged":
            raise
    _log.warning("the ledger's file is damaged: it is moved aside to %s.damaged, and a new one begun", path.name)
    move_aside(path, file)
    touch(path)
    return SqliteTurns(path, busy_seconds)


def _chains(request: bytes, reply: bytes | None, digests: bytes | None) -> list[bytes]:
    """What a row's points are found by."""
    names = [] if reply is None or digests is None else [reply, reply_name(digests[:DIGEST_BYTES])]
    return [request, *names]


def _probe(connection: sqlite3.Connection, tenant: str, chain: Sequence[bytes], above: int) -> Point | None:
    if len(chain) <= above:
        return None
    if len(chain) == above + 1:
        # A chat's first turn, and most that go on in memory: without a recursion it takes half the time.
        found = connection.execute(_PROBE_ONE, (tenant, chain[-1])).fetchone()
        return found and Point(found[0], len(chain), bool(found[1]))
    found = connection.execute(_PROBE, (len(chain) - 1, above, tenant, b"".join(chain))).fetchone()
    return found and Point(found[0], found[1], bool(found[2]))
