"""From a turn to the row that stands for it: what it adds to its parent, or the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

from context.frozen import frozen
from context.plan import SentMessage, Turn
from context.store.turn_codec import cost_of, encode, encode_tools, same_bytes, value_bytes
from context.store.turn_rows import Blobs, Reply, Row, Tools, reply_name
from context.transcript import Message

_T = TypeVar("_T")
# A row is whole when reading it would cost more than twice what it holds. A history that only grows never gets there,
# since all that is read is held; one whose middle is dropped each turn does, and a small request that is sent again and
# again, which would else stand on a row for each time.
_WASTE_RATIO = 2


@frozen
class NewTurn:
    """A turn as it is sent, to be kept.

    Attributes:
        conversation, number: which conversation, and the turn's number in its branch, from 1.
        parent: the turn that it was planned from.
        client: all messages of the request.
        chain: digest of the transcript at their end.
        sent: all that is sent for them, in order.
        tools: as they are sent.
        state, epoch, policy: see `Turn`.
    """

    conversation: str
    number: int
    parent: int | None
    client: tuple[Message, ...]
    chain: bytes
    sent: tuple[SentMessage, ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    epoch: int = 0
    policy: str = ""


@frozen
class NewReply:
    """The reply to a turn, to be kept.

    Attributes:
        client: as the client will send it back.
        sent: as the engine made it.
        chain: digest of the transcript with it as the last message.
    """

    client: Message
    sent: SentMessage
    chain: bytes


def row_of(id: int, tenant: str, new: NewTurn, rows: Sequence[Row], parent: Turn | None) -> tuple[Row, Blobs]:
    """A new turn as a row.

    Args:
        id: its own.
        rows, parent: the row of its parent behind those that it is based on, and what they come to; none when it has
            no parent, or that is not known any more.
    """
    base, kept_client, kept_sent, walked, on_reply = None, 0, 0, 0, False
    whole = len(new.client) + len(new.sent)
    client, sent = new.client, new.sent
    if parent is not None:
        kept_client = _common(parent.client, client, lambda one, other: one.digest == other.digest)
        kept_sent = _common(parent.sent, sent, same_bytes)
        base, walked = parent.id, rows[-1].walked
        on_reply = parent.replied and (kept_client == len(parent.client) or kept_sent == len(parent.sent))
    walked += 1 + whole - kept_client - kept_sent
    if parent is not None and walked > _WASTE_RATIO * whole:
        # A message stays as it was first seen.
        client = parent.client[:kept_client] + client[kept_client:]
        base, kept_client, kept_sent, walked = None, 0, 0, 1 + whole
    client, sent = client[kept_client:], sent[kept_sent:]
    blobs = encode(client, sent, kept_client)
    row = Row(
        id=id,
        tenant=tenant,
        conversation=new.conversation,
        number=new.number,
        base=base,
        kept_client=kept_client,
        kept_sent=kept_sent,
        client=client,
        sent=sent,
        chain=new.chain,
        tools=_tools(new.tools, rows),
        state=new.state,
        epoch=new.epoch,
        policy=new.policy,
        walked=walked,
        cost=_row_cost(blobs, len(client), new.state),
        on_reply=on_reply and base is not None,
    )
    return row, blobs


def whole_row(row: Row, turn: Turn) -> tuple[Row, Blobs]:
    """The same turn as a row that is based on none, without its reply."""
    end = -1 if turn.replied else None
    client, sent = turn.client[:end], turn.sent[:end]
    blobs = encode(client, sent, 0)
    whole = replace(row, base=None, kept_client=0, kept_sent=0, client=client, sent=sent, reply=None, on_reply=False)
    cost = _row_cost(blobs, len(client), row.state)
    return replace(whole, walked=1 + len(client) + len(sent), cost=cost), blobs


def reply_of(length: int, answer: NewReply) -> tuple[Reply, Blobs]:
    """The reply to a turn of `length` client messages."""
    client, sent = answer.client, answer.sent
    blobs = encode((client,), (sent,), length)
    return Reply(client, sent, answer.chain, _cost(blobs, 1), reply_name(client.digest)), blobs


def _row_cost(blobs: Blobs, messages: int, state: Mapping[str, Any]) -> int:
    return _cost(blobs, messages) + len(value_bytes(dict(state)))


def _cost(blobs: Blobs, messages: int) -> int:
    return cost_of(blobs.client, blobs.sent, messages)


def _tools(tools: Sequence[Mapping[str, Any]] | None, rows: Sequence[Row]) -> Tools | None:
    if tools is None:
        return None
    before = rows[-1].tools if rows else None
    if before is not None and before.value is tools:
        return before
    made = encode_tools(tools)
    return before if before is not None and before.digest == made.digest else made


def _common(old: Sequence[_T], new: Sequence[_T], same: Callable[[_T, _T], bool]) -> int:
    """How many at the start are the same."""
    for index, (one, other) in enumerate(zip(old, new, strict=False)):
        if not same(one, other):
            return index
    return min(len(old), len(new))
