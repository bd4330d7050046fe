"""The turns that are in memory, bounded in bytes: what was used longest ago is forgotten first.

A turn is kept as its row, so that turns of one conversation share what they have in common.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import repeat

from context.plan import SentMessage, Turn
from context.store.turn_rows import Point, Reply, Row, replied
from context.transcript import Message

# What a row takes beside its messages: itself, its places in the maps below, its name and state.
_ROW_COST = 2048
# A tool's JSON as values and as bytes.
_TOOLS_COST_RATIO = 4


class RowMemory:
    """Rows with all that they are based on. No row is kept whose base is not.

    Args:
        bound: bytes that they may take, by estimate.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._rows: OrderedDict[int, Row] = OrderedDict()
        self._children: dict[int, int] = {}
        self._points: dict[tuple[str, bytes], Point] = {}
        self._newest: dict[tuple[str, str], int] = {}
        self._tools: dict[bytes, int] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, turn: int) -> Row | None:
        return self._rows.get(turn)

    def match(self, tenant: str, chain: Sequence[bytes]) -> Point | None:
        """The longest prefix of `chain` that is in memory."""
        # Mostly none of 180 is there when one was not found at once: in C that takes two thirds of the time.
        return next(filter(None, map(self._points.get, zip(repeat(tenant), reversed(chain), strict=False))), None)

    def newest(self, tenant: str, conversation: str) -> int | None:
        """The last turn of a conversation that is in memory."""
        return self._newest.get((tenant, conversation))

    def walk(self, turn: int) -> list[Row]:
        """A row behind all that it is based on, and marks them as used; empty when it is not in memory."""
        rows: list[Row] = []
        at: int | None = turn
        while at is not None:
            row = self._rows.get(at)
            if row is None:
                return []
            # From the last to the first: a base is always younger than what stands on it, and goes later.
            self._rows.move_to_end(at)
            rows.append(row)
            at = row.base
        rows.reverse()
        return rows

    def __contains__(self, turn: object) -> bool:
        """Whether a turn that was answered is in memory, as what is read from the store is based on. Any thread may
        ask."""
        row = self._rows.get(turn) if isinstance(turn, int) else None
        return row is not None and row.reply is not None

    def put(self, row: Row) -> None:
        """Keep a row as the newest. One whose base is not in memory, or which is larger than the bound, is not kept.

        Of one that is there already only the reply is taken: another process may have added it.
        """
        if row.id in self._rows:
            if row.reply is not None:
                self.reply(row.tenant, row.id, row.reply)
        elif (row.base is None or row.base in self._rows) and row.cost <= self._bound:
            self._insert(row)
        self.walk(row.id)
        self._evict()

    def _insert(self, row: Row) -> None:
        self._rows[row.id] = row
        if row.base is not None:
            self._children[row.base] = self._children.get(row.base, 0) + 1
        self._account(row, 1)
        self._point(row.tenant, row.chain, Point(row.id, row.length, at_reply=False))
        if row.reply is not None:
            self._reply_points(row, row.reply)
        name = (row.tenant, row.conversation)
        self._newest[name] = max(row.id, self._newest.get(name, row.id))

    def reply(self, tenant: str, turn: int, reply: Reply) -> None:
        """Add a row's reply. Nothing happens when the tenant has no such row in memory, or it has one."""
        row = self._rows.get(turn)
        if row is None or row.tenant != tenant or row.reply is not None:
            return
        self._rows[turn] = replied(row, reply)
        self.size_bytes += reply.cost
        self._reply_points(row, reply)
        self._evict()

    def forget(self, turns: Iterable[int]) -> int:
        """Drop those of these rows that no other row in memory is based on; how many went."""
        before = len(self._rows)
        # The newest first: it may be what an older one is needed for.
        for turn in sorted(turns, reverse=True):
            if turn in self._rows and not self._children.get(turn):
                self._drop(turn)
        return before - len(self._rows)

    def expire(self, before: int) -> int:
        """Drop the rows older than `before`, as `forget` does."""
        return self.forget([turn for turn in self._rows if turn < before])

    def _evict(self) -> None:
        # A base is younger than what stands on it (see `walk`), so that none goes before it is free.
        while self.size_bytes > self._bound and self._rows:
            self._drop(next(iter(self._rows)))

    def _drop(self, turn: int) -> None:
        row = self._rows.pop(turn)
        self._account(row, -1)
        chains = [row.chain] if row.reply is None else [row.chain, row.reply.chain, row.reply.name]
        for chain in chains:
            if (found := self._points.get((row.tenant, chain))) and found.turn == turn:
                del self._points[row.tenant, chain]
        if self._newest.get((row.tenant, row.conversation)) == turn:
            del self._newest[row.tenant, row.conversation]
        if row.base is not None:
            self._children[row.base] -= 1
            if not self._children[row.base]:
                del self._children[row.base]

    def _account(self, row: Row, sign: int) -> None:
        self.size_bytes += sign * (row.cost + _ROW_COST + (row.reply.cost if row.reply is not None else 0))
        if row.tools is not None:
            # Shared by all rows that have them.
            users = self._tools.get(row.tools.digest, 0) + sign
            if users == (1 if sign > 0 else 0):
                self.size_bytes += sign * len(row.tools.data) * _TOOLS_COST_RATIO
            self._tools[row.tools.digest] = users
            if not users:
                del self._tools[row.tools.digest]

    def _reply_points(self, row: Row, reply: Reply) -> None:
        for chain in (reply.chain, reply.name):
            self._point(row.tenant, chain, Point(row.id, row.length + 1, at_reply=True))

    def _point(self, tenant: str, chain: bytes, point: Point) -> None:
        known = self._points.get((tenant, chain))
        if known is None or known.turn <= point.turn:
            self._points[tenant, chain] = point


def assemble(rows: Sequence[Row]) -> Turn | None:
    """The turn of the last of these rows, each of which is based on the one before; None when they do not fit."""
    client: list[Message] = []
    sent: list[SentMessage] = []
    for row in rows:
        if len(client) < row.kept_client or len(sent) < row.kept_sent:
            return None
        del client[row.kept_client :], sent[row.kept_sent :]
        client += row.client
        sent += row.sent
        if row.reply is not None:
            client.append(row.reply.client)
            sent.append(row.reply.sent)
    if not rows:
        return None
    last = rows[-1]
    return Turn(
        id=last.id,
        conversation=last.conversation,
        number=last.number,
        client=tuple(client),
        sent=tuple(sent),
        tools=last.tools and last.tools.value,
        replied=last.reply is not None,
        state=last.state,
        epoch=last.epoch,
        policy=last.policy,
    )
