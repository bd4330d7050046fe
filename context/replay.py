"""What of an earlier turn's sent form is sent again for a transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from context.alignment import Alignment, align
from context.changes import (
    Unsent,
    Volatile,
    cut_messages,
    is_outdated,
    put_off,
    without_parted,
)
from context.frozen import frozen
from context.plan import Healed, PrefixBreak, SentMessage, Turn
from context.policies.base import Rules
from context.policies.current import asked_now
from context.switch import Undone, given_up, undo
from context.transcript import Transcript


@frozen
class Replay:
    """What of an earlier turn is sent again.

    Attributes:
        kept: it, in order, with `source` in the new transcript.
        breaks: where the client has changed its history.
        deferred: where it has changed it and nothing that is sent changes: what it has cut is sent all the same, or a
            policy had taken out what it changed.
        covered: messages of the new transcript that are not laid out anew: what was sent for them is in `kept`, or a
            policy has taken it out.
        revised: messages that are laid out anew as another wire than the client's, by index: with the volatile values
            that were sent, or with names for images that a policy took out.
        healed: differences that were undone here.
        unchanged: so many messages at the start are as the client had them then.
        is_switched: what a policy's liberties had left was undone, for another one is in force.
    """

    kept: list[SentMessage]
    breaks: list[PrefixBreak] = field(default_factory=list[PrefixBreak])
    deferred: list[PrefixBreak] = field(default_factory=list[PrefixBreak])
    covered: frozenset[int] = frozenset()
    revised: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    healed: tuple[Healed, ...] = ()
    unchanged: int = 0
    is_switched: bool = False


def replay_prefix(turn: Turn, length: int, transcript: Transcript, rules: Rules) -> Replay:
    """What was sent for the first `length` client messages: up to the first message that stands for a later one."""
    kept: list[SentMessage] = []
    for one in turn.sent:
        if one.source is not None and one.source >= length:
            break
        kept.append(one)
    covered = frozenset(range(length))
    if not (lost := given_up(turn, rules)):
        return Replay(kept, covered=covered, unchanged=length)
    left = undo(kept, transcript, lost)
    return Replay(left.kept, [], [], covered - left.anew.keys(), left.anew, (), length, left.is_less)


def replay_changed(latest: Turn, transcript: Transcript, rules: Rules, *, is_sure: bool = True) -> Replay:
    """What was sent for the messages that mean the same as before, and a break for each difference.

    Where it is not sure that this is the turn's conversation, nothing is sent that the client does not hold now.
    """
    slot_match = rules.slot_match if is_sure else None
    found = align(latest.client, transcript.messages, patterns=rules.patterns, slot_match=slot_match)
    unsent = Unsent.of(latest, found, transcript)
    volatile, cut = Volatile(), dict[int, int | None]()
    if is_sure:
        volatile = Volatile.of(found.differences, transcript, unsent.behind, rules)
        cut = cut_messages(latest, found, transcript, unsent, rules)
    else:
        unsent = unsent.of_the_client()
    kept, places, cut = _kept(latest, transcript, rules, unsent, {**dict(found.pairs), **volatile.whole}, cut)
    left = Undone(kept)
    if lost := given_up(latest, rules):
        left = undo(kept, transcript, lost)
        kept = left.kept
    breaks, deferred = _differences(found, volatile, unsent, cut)
    word = "frozen" if rules.volatile == "freeze" else "tail"
    healed = [Healed(word, new) for new in sorted({*volatile.whole.values(), *volatile.revised})]
    healed += [Healed("slot_match", one.after[0]) for one in found.matched_images]
    unchanged = min((one.message for one in breaks), default=len(transcript))
    covered = _covered(found, unsent, places, kept) - left.anew.keys()
    revised = {**volatile.revised, **left.anew}
    return Replay(kept, breaks, deferred, covered, revised, tuple(healed), unchanged, left.is_less)


def _kept(
    latest: Turn,
    transcript: Transcript,
    rules: Rules,
    unsent: Unsent,
    same: Mapping[int, int],
    cut: Mapping[int, int | None],
) -> tuple[list[SentMessage], Mapping[int, int | None], Mapping[int, int | None]]:
    """What was sent and is sent again, where each old message stands now, and what the client has cut of it.

    Args:
        latest, transcript, rules: as above.
        unsent: what is not sent of what the client has.
        same: the new index of each old message that means the same.
        cut: where the messages that the client has cut would stand.
    """
    places: dict[int, int | None] = {**same, **cut}
    # What stands in front of every message, and what stands for messages that are not sent.
    for first in (-1, *unsent.summaries):
        places.setdefault(first, None)
    moved = {old: [_moved(one, places[old]) for one in unsent.behind.get(old, ())] for old in sorted(places)}
    kept = without_parted([one for ones in moved.values() for one in ones])
    cut = {old: new for old, new in cut.items() if not moved[old] or any(one is moved[old][0] for one in kept)}
    hoisted = {image.ref.image_id for one in kept if one.origin == "hoisted" for image in one.images}
    asked = asked_now(transcript.messages)
    kept = [
        one
        for one in kept
        if one.source not in asked or not is_outdated(one, transcript.messages[one.source or 0], rules, hoisted)
    ]
    return kept, places, cut


def _differences(
    found: Alignment, volatile: Volatile, unsent: Unsent, cut: Mapping[int, int | None]
) -> tuple[list[PrefixBreak], list[PrefixBreak]]:
    """What the client changed: what counts now, and what changes nothing that is sent."""
    breaks: list[PrefixBreak] = []
    deferred: list[PrefixBreak] = []
    for difference in found.differences:
        if volatile.undoes(difference):
            continue
        why = put_off(difference, unsent, cut)
        # Of a message that is sent with older values it would be the place of the first of those.
        character = None if difference.after in volatile.revised else difference.character
        broken = PrefixBreak(
            *(difference.cause, "client", difference.at, difference.part, character),
            detail=difference.detail + (why or ""),
        )
        (breaks if why is None else deferred).append(broken)
    return breaks, deferred


def _covered(
    found: Alignment, unsent: Unsent, places: Mapping[int, int | None], kept: Sequence[SentMessage]
) -> frozenset[int]:
    """The new messages for which something is sent already, or nothing is to be sent."""
    covered = {new for old, new in places.items() if old in unsent.silent and new is not None}
    covered |= {one.after for one in found.differences if one.before in unsent.silent and one.after is not None}
    covered |= {one.source for one in kept if one.source is not None}
    return frozenset(covered)


def in_order(kept: Sequence[SentMessage], fresh: Sequence[SentMessage]) -> list[SentMessage]:
    """Both by the message they stand for; what stands for none stays behind the one before it."""
    made: list[SentMessage] = []
    rest = list(reversed(fresh))
    for one in kept:
        while one.source is not None and rest and rest[-1].source is not None and rest[-1].source < one.source:
            made.append(rest.pop())
        made.append(one)
    return made + rest[::-1]


def common(before: Sequence[SentMessage], now: Sequence[SentMessage]) -> int:
    """How many messages at the start are sent as they were."""
    count = 0
    for one, two in zip(before, now, strict=False):
        if one.wire is not two.wire and one.wire != two.wire and _said(one.wire) != _said(two.wire):
            break
        count += 1
    return count


def _moved(one: SentMessage, after: int | None) -> SentMessage:
    if one.source is None:
        return one
    if after is None:
        return replace(one, source=None, origin="stale")
    return one if one.source == after else replace(one, source=after)


def _said(wire: Mapping[str, Any]) -> dict[str, Any]:
    """A message without its empty keys, with which clients resend replies: no prompt shows them. An empty content a
    template may show."""
    return {key: value for key, value in wire.items() if value is not None or key == "content"}
