"""What of an earlier turn's sent form is sent again for a transcript."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from context.alignment import Alignment, Difference, align
from context.plan import PrefixBreak, SentMessage, Turn
from context.policies.base import Estimate, Rules
from context.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Replay:
    """What is sent again, in order, with `source` in the new transcript; where the client has changed its history; and
    what it has cut and is sent all the same."""

    kept: list[SentMessage]
    breaks: list[PrefixBreak] = field(default_factory=list[PrefixBreak])
    deferred: list[PrefixBreak] = field(default_factory=list[PrefixBreak])


def replay_prefix(turn: Turn, length: int) -> Replay:
    """What was sent for the first `length` client messages: up to the first message that stands for a later one."""
    kept: list[SentMessage] = []
    for one in turn.sent:
        if one.source is not None and one.source >= length:
            break
        kept.append(one)
    return Replay(kept)


def replay_changed(latest: Turn, transcript: Transcript, rules: Rules, estimate: Estimate) -> Replay:
    """What was sent for the messages that mean the same as before, and a break for each difference."""
    found = align(latest.client, transcript.messages, patterns=rules.patterns, slot_match=rules.slot_match)
    behind: dict[int, list[SentMessage]] = {}
    source = -1
    for one in latest.sent:
        source = source if one.source is None else one.source
        behind.setdefault(source, []).append(one)
    deferred = _deferred(found) if rules.defer_client_window else {}
    places = sorted([*found.pairs, *deferred.items()])
    made = Replay([_moved(one, after) for before, after in places for one in behind.get(before, ())])
    for difference in found.differences:
        is_deferred = difference.before is not None and difference.before in deferred
        first = difference.before if difference.before is not None else difference.at
        counts = not is_deferred and not made.breaks
        lost = sum(estimate(one.wire) for at, ones in behind.items() if at >= first for one in ones) if counts else 0
        broken = PrefixBreak(
            *(difference.cause, "client", difference.at, difference.part, difference.character, lost),
            detail=f"{difference.detail}; put off until the policy shrinks" if is_deferred else difference.detail,
        )
        (made.deferred if is_deferred else made.breaks).append(broken)
    return made


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
        if one.wire is not two.wire and one.wire != two.wire:
            break
        count += 1
    return count


def _deferred(found: Alignment) -> dict[int, int | None]:
    """Old messages from which the client has only cut, to their new index; None for those that it has cut whole."""
    cut: dict[int, int | None] = {}
    other: set[int] = set()
    for difference in found.differences:
        if difference.before is None:
            continue
        if _is_cut(difference):
            cut[difference.before] = difference.after
        else:
            other.add(difference.before)
    return {before: after for before, after in cut.items() if before not in other}


def _is_cut(difference: Difference) -> bool:
    return difference.cause == "client_window" and difference.kind in ("changed", "removed")


def _moved(one: SentMessage, after: int | None) -> SentMessage:
    if one.source is None:
        return one
    if after is None:
        return replace(one, source=None, origin="stale")
    return one if one.source == after else replace(one, source=after)
