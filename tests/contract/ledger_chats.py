"""Chats for the tests of the ledger: wires, new turns, and what a gateway does with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from context.images.base import ImageRef
from context.ledger import Found, Ledger, NewReply, NewTurn
from context.plan import SentMessage, Turn
from context.transcript import ImagePart, Message, message_of, transcript

Wire = Mapping[str, Any]


def system(text: str = "You are kind.") -> Wire:
    return {"role": "system", "content": text}


def user(text: str, *images: int) -> Wire:
    parts = [ImagePart(ImageRef(f"{number:064x}", 320, 200, "image/png", 1000 + number)) for number in images]
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts] if parts else text}


def assistant(text: str) -> Wire:
    return {"role": "assistant", "content": text}


def chain(wires: Sequence[Wire], tenant: str = "t") -> tuple[bytes, ...]:
    return transcript(wires, tenant.encode()).chain


def messages(wires: Sequence[Wire]) -> tuple[Message, ...]:
    return tuple(message_of(wire) for wire in wires)


def new_turn(
    wires: Sequence[Wire],
    parent: Turn | None = None,
    *,
    sent: Sequence[Wire] | None = None,
    conversation: str = "c",
    tenant: str = "t",
    **more: Any,
) -> NewTurn:
    """A turn for which the client's messages are sent as they are, or others in their place; what the parent sent
    for the same messages is replayed."""
    read = transcript(wires, tenant.encode())
    made = [SentMessage(wire, index) for index, wire in enumerate(wires if sent is None else sent)]
    if parent is not None:
        made = [
            old if old.wire == one.wire else one
            for one, old in zip(made, (*parent.sent, *made[len(parent.sent) :]), strict=False)
        ]
    number = parent.number + 1 if parent else 1
    return NewTurn(conversation, number, parent and parent.id, read.messages, read.chain[-1], tuple(made), **more)


async def answer(ledger: Ledger, turn: Turn, wires: Sequence[Wire], text: str, tenant: str = "t") -> Turn:
    """Keep the reply `text` to the turn whose request was `wires`."""
    reply = assistant(text)
    return await ledger.reply(tenant, turn, new_reply([*wires, reply], tenant))


def new_reply(wires: Sequence[Wire], tenant: str = "t") -> NewReply:
    """The last message as the reply to those before it."""
    return NewReply(message_of(wires[-1]), SentMessage(wires[-1], len(wires) - 1), chain(wires, tenant)[-1])


async def converse(ledger: Ledger, turns: int, conversation: str = "c", tenant: str = "t") -> tuple[list[Wire], Turn]:
    """A conversation of so many answered turns, each found as the next turn of the one before. Every other turn is kept
    with its reply in one go, and two of four are drafted first."""
    wires: list[Wire] = [system()]
    turn: Turn | None = None
    for number in range(turns):
        wires.append(user(f"{conversation}: question {number}", number))
        found = await ledger.find(tenant, chain(wires, tenant))
        new = new_turn(wires, found and found.turn, conversation=conversation, tenant=tenant)
        draft = ledger.draft(tenant, new) if number % 4 > 1 else None
        reply = f"{conversation}: answer {number}"
        if number % 2:
            turn = await ledger.commit(tenant, new, new_reply([*wires, assistant(reply)], tenant), draft)
        else:
            turn = await answer(ledger, await ledger.commit(tenant, new, draft=draft), wires, reply, tenant)
        wires.append(assistant(reply))
    assert turn is not None
    return wires, turn


def same(found: Turn | None, kept: Turn) -> bool:
    """Whether the ledger gives back what it was given, to the order of keys."""
    return found is not None and found == kept and spelled(found) == spelled(kept)


def spelled(turn: Turn) -> list[str]:
    return [repr(one) for one in (*turn.client, *turn.sent, turn.tools, turn.state)]


def at(found: Found | None) -> tuple[int, int, bool] | None:
    return found and (found.turn.id, found.length, found.at_reply)
