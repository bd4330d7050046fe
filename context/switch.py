"""What a policy's liberties have left in what was sent, undone where the policy in force now does not take them.

    names       images of the turn stand at its tail, and their names in the history
    waiting     so do those of a tool group that is still open
    phrases     values that change stand at the tail, and phrases in their place
    old_values  values are those of an earlier turn
    stale       what the client has cut is sent on

Each turn keeps which of them its policy took (`Turn.state`). Without the first three a text would stand for something
that is shown nowhere; the last two send what the client does not say any more. What a policy evicted stays evicted:
it did not go to another place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import field
from typing import Any

from context.frozen import frozen
from context.layout.names import as_name
from context.plan import SentMessage, Turn
from context.policies.base import Rules
from context.policies.current import asked_now
from context.policies.eviction import NOTHING_LEFT
from context.policies.places import cut_by_client, places_of
from context.transcript import ImagePart, Message, Transcript, text_part, texts_of

LIBERTIES = "liberties"
_NONE = frozenset[str]()
_VALUES = frozenset(("phrases", "old_values"))
_SHOWN_ELSEWHERE = frozenset(("names", "waiting"))


def liberties(rules: Rules) -> frozenset[str]:
    """The liberties that a policy takes, by the names above."""
    if not rules.replay:
        return _NONE
    taken: list[str] = []
    if rules.images_at_tail:
        taken.append("names")
    if rules.tool_images == "hoist":
        taken.append("waiting")
    if rules.volatile != "report":
        taken += ["old_values", "phrases"] if rules.volatile == "tail" else ["old_values"]
    if rules.defer_client_window:
        taken.append("stale")
    return frozenset(taken) if taken else _NONE


def given_up(turn: Turn, rules: Rules) -> frozenset[str]:
    """The liberties that a turn's policy took and the one that goes on from it does not."""
    taken = turn.state.get(LIBERTIES)
    return frozenset(taken) - liberties(rules) if taken else _NONE


@frozen
class Undone:
    """What is left of what was sent.

    Attributes:
        kept: what is sent again as it was.
        anew: messages that are laid out anew, by index, as what: images that a policy evicted are only named in them.
        is_less: whether anything of what was sent is not kept.
    """

    kept: list[SentMessage]
    anew: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    is_less: bool = False


def undo(kept: Sequence[SentMessage], transcript: Transcript, lost: Set[str]) -> Undone:
    """Part what was sent from what the `lost` liberties left in it.

    Args:
        kept: what would be sent again, `source` being an index in the transcript.
        transcript: what came.
        lost: as `given_up` has them.
    """
    asked = asked_now(transcript.messages)
    cut = _with_cut_images(kept, transcript) if "stale" in lost else frozenset[int]()
    left: list[SentMessage] = []
    anew: dict[int, Mapping[str, Any]] = {}
    # From the end, for images of tool results stand behind them.
    shown_behind: set[str] = set()
    for at in range(len(kept) - 1, -1, -1):
        one = kept[at]
        if one.origin == "stale" and "stale" in lost:
            continue
        if one.origin == "hoisted":
            shown_behind |= {part.ref.image_id for part in one.images}
        if one.source is None:
            left.append(one)
            continue
        message, is_asked = transcript.messages[one.source], one.source in asked
        lacks = is_asked and not lost.isdisjoint(_SHOWN_ELSEWHERE) and _lacks_images(one, message, shown_behind)
        differs = at in cut or (not lost.isdisjoint(_VALUES) and _said(one.wire) != _said(message.wire))
        if lacks or differs:
            anew[one.source] = message.wire if is_asked else _less_evicted(message, one)
        else:
            left.append(one)
    return Undone(left[::-1], anew, len(left) < len(kept))


def _with_cut_images(kept: Sequence[SentMessage], transcript: Transcript) -> frozenset[int]:
    places = [place for place in places_of(kept) if kept[place.message].origin == "client"]
    return frozenset(place.message for place in cut_by_client(kept, transcript.messages, places))


def _lacks_images(one: SentMessage, message: Message, shown_behind: Set[str]) -> bool:
    """Whether an image of the client's is only named in what was sent for it."""
    names = tuple(_names(one))
    shown = shown_behind | {part.ref.image_id for part in one.images}
    ids = (part.ref.image_id for _, part in message.images) if names else ()
    return any(image_id.startswith(names) and image_id not in shown for image_id in ids)


def _said(wire: Mapping[str, Any]) -> list[str]:
    """What a message says, names of images aside."""
    return [text for text in texts_of(wire) if not as_name(text)]


def _less_evicted(message: Message, one: SentMessage) -> Mapping[str, Any]:
    """The client's message without those images that were taken out of what was sent for it: their names in their
    places where they were left, nothing where a policy leaves none."""
    count = sum(1 for _ in message.images)
    if not count:
        return message.wire
    names, shown = _names(one), {part.ref.image_id for part in one.images}
    has_fewer = len(names) + sum(1 for _ in one.images) < count
    parts: list[Any] = []
    for part in message.parts:
        if not isinstance(part, ImagePart) or part.ref.image_id in shown:
            parts.append(part)
            continue
        name = next((text for start, text in names.items() if part.ref.image_id.startswith(start)), None)
        if name is not None or not has_fewer:
            parts.append(part if name is None else text_part(name))
    return {**message.wire, "content": parts or [text_part(NOTHING_LEFT)]}


def _names(one: SentMessage) -> dict[str, str]:
    """The names that are parts of their own, by the digits of the id."""
    return {found[1]: found[0] for text in texts_of(one.wire) if (found := as_name(text))}
