"""Where the engine keeps a conversation's blocks apart from others, because KV of images in them may be approximate.

Behind the first image whose KV is taken from elsewhere, blocks are found by those requests alone that allow the same:
mode, ratio, profile. A turn that allows something else computes them again though its messages are the same. So each
turn keeps in its state what it allowed, who said so, and from which message on its blocks stand apart.

    exact, then approximate     all blocks are read: exact ones may be read by anybody
    approximate, then exact     read up to where the turn before stood apart
    one ratio, then another     the same

Source: engine/vllm/image_kv/taint.py and tracked.py::look, docs/adr/0015-image-kv.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from context.frozen import frozen
from context.plan import Actor, PrefixBreak, SentMessage, Turn
from context.reuse import Reuse
from context.transcript import ImagePart, Message, parts_of

# In a turn's state.
REUSE = "reuse"
Estimate = Callable[[Mapping[str, Any]], int]
# Of a turn by its number in the ledger: whether the engine kept its blocks apart; None where that is not known.
WasApart = Callable[[int], bool | None]


@frozen
class Allowance:
    """What a request allows of approximate KV, as far as the engine can do it; `reuse` is None for exact KV alone.

    `is_own`: the client said so, and not its policy. `was_apart`: an engine that had nothing to load has kept a turn
    among the exact ones.
    """

    reuse: Reuse | None = None
    is_own: bool = False
    was_apart: WasApart = lambda _: None

    @property
    def actor(self) -> Actor:
        """Who has said so."""
        return "client" if self.is_own else "policy"

    def mover(self, before: Allowance) -> Actor:
        """Who has brought about that this is another one than before."""
        return "client" if self.is_own or before.is_own else "policy"


EXACT = Allowance()


@frozen
class Separation:
    """What follows for one turn.

    Attributes:
        state: what the next turn has to know; None where nothing stands apart.
        place: message as sent, and part of it, from which on what is repeated cannot be read; None where it can.
        actor: who has changed what is allowed, where there is such a place.
        detail: the change, in words.
    """

    state: Mapping[str, Any] | None = None
    place: tuple[int, int] | None = None
    actor: Actor = "policy"
    detail: str = ""


_NOTHING = Separation()


def allowed_before(base: Turn | None) -> Allowance:
    """What a turn allowed, by what the ledger has of it. Whether the engine had anything to keep apart is not said."""
    kept = None if base is None else base.state.get(REUSE)
    if kept is None:
        return EXACT
    ratio, profile = kept["allowed"]
    return Allowance(Reuse(ratio, profile), kept["by"] == "client")


def separated(base: Turn | None, now: Allowance, sent: Sequence[SentMessage], replayed: int) -> Separation:
    """Where a turn and the one that it goes on from are kept apart.

    Args:
        base: the turn that it goes on from.
        now: what it allows.
        sent: what is sent.
        replayed: how many messages at its start were sent in the turn before.
    """
    before = allowed_before(base)
    if base is None or before.reuse is None or now.was_apart(base.id) is False:
        before, exact = EXACT, replayed
    else:
        exact = min(replayed, base.state[REUSE]["from"])
    state = None
    if now.reuse is not None and (first := _first_apart(sent, exact)) is not None:
        state = {"allowed": [float(now.reuse.ratio), now.reuse.profile], "from": first, "by": now.actor}
    if before.reuse in (None, now.reuse) or exact == replayed:
        return _NOTHING if state is None else Separation(state)
    detail = f"KV of images: {_told(now.reuse)}, where the turn before had {_told(before.reuse)}"
    part = next((at for at, part in enumerate(parts_of(sent[exact].wire)) if isinstance(part, ImagePart)), 0)
    return Separation(state, (exact, part), now.mover(before), detail)


def salt_break(
    found: Separation,
    sent: Sequence[SentMessage],
    before: Sequence[SentMessage],
    client: Sequence[Message],
    count: Estimate,
) -> PrefixBreak | None:
    """The break that it is; None where all that is repeated can be read.

    Args:
        found: where they are apart.
        sent, before: what is sent, and what was in the turn before.
        client: the client's messages of this turn.
        count: prompt tokens of a message.
    """
    if found.place is None:
        return None
    at, part = found.place
    place = next((one.source for one in sent[at:] if one.source is not None), len(client) - 1)
    is_theirs = sent[at].source is not None and sent[at].wire.get("content") == client[place].wire.get("content")
    lost = sum(count(one.wire) for one in before[at:]) - in_front(before[at].wire, part, count)
    return PrefixBreak("salt", found.actor, place, part if is_theirs else None, None, lost, found.detail)


def in_front(wire: Mapping[str, Any], part: int, count: Estimate) -> int:
    """About how many of a message's tokens stand in front of one of its parts."""
    return count({**wire, "content": parts_of(wire)[:part]}) if part else 0


def _first_apart(sent: Sequence[SentMessage], exact: int) -> int | None:
    """The first message with an image that the engine may load. Of those in front of `exact` that can be the last one,
    for it may end in a block that was not full."""
    behind = next((at for at in range(exact, len(sent)) if sent[at].images), None)
    return behind if behind is not None else next((at for at in range(exact - 1, -1, -1) if sent[at].images), None)


def _told(reuse: Reuse | None) -> str:
    if reuse is None:
        return "exact"
    return f"ratio {reuse.ratio:g}{' by layer' if reuse.profile else ''}"
