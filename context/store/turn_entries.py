"""Rows and replies as entries of a store, and what may be kept of them in one go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from context.store.turn_codec import value_bytes
from context.store.turn_rows import Addition, Answer, Blobs, Entry, Reply, Row


def addition_of(row: Row, blobs: Blobs) -> Addition:
    """A row as a store keeps it."""
    tools = row.tools
    columns = (
        *(row.id, row.tenant, row.conversation, row.number, row.base, row.kept_client, row.kept_sent, row.walked),
        *(row.chain, None if tools is None else tools.digest, value_bytes(dict(row.state)), row.epoch, row.policy),
        *(blobs.digests, blobs.client, blobs.sent),
    )
    named = None if tools is None else (tools.digest, tools.data)
    return Addition(row.id, row.tenant, row.base, row.on_reply, row.chain, row.length, named, columns)


def answer_of(tenant: str, turn: int, length: int, reply: Reply, blobs: Blobs) -> Answer:
    """The reply to a turn of `length` client messages as a store keeps it."""
    columns = (turn, reply.chain, blobs.digests, blobs.client, blobs.sent)
    return Answer(turn, tenant, reply.chain, reply.name, length, columns)


@dataclass(frozen=True, slots=True)
class SortedOut:
    """Rows for each table, and the places of the entries that cannot be kept."""

    rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    replies: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    points: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    tools: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    refused: list[int] = field(default_factory=list[int])


def sort_out(entries: Sequence[Entry], there: Mapping[int, tuple[str, bool]]) -> SortedOut:
    """What is to be inserted for entries, each of which stands behind what it needs.

    Args:
        entries: rows and replies.
        there: tenant of each row that they need and is there, and whether it has a reply.
    """
    made, known = SortedOut(), dict(there)
    for place, one in enumerate(entries):
        if isinstance(one, Addition):
            base = None if one.base is None else known.get(one.base)
            if one.base is not None and (base is None or base[0] != one.tenant or (one.on_reply and not base[1])):
                made.refused.append(place)
            elif one.id not in known:
                known[one.id] = (one.tenant, False)
                made.rows.append(one.columns)
                made.points.append((one.tenant, one.chain, one.id, one.length, 0))
                if one.tools is not None:
                    made.tools[one.tools[0]] = one.tools[1]
        else:
            row = known.get(one.id)
            if row is None or row[0] != one.tenant:
                made.refused.append(place)
            elif not row[1]:
                known[one.id] = (one.tenant, True)
                made.replies.append(one.columns)
                made.points.extend((one.tenant, chain, one.id, one.length + 1, 1) for chain in (one.chain, one.name))
    return made
