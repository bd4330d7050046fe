"""What a client's changes of its history come to, in view of what was sent for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, cast

from context.alignment import Alignment, Difference
from context.layout.groups import tool_groups
from context.layout.revise import Wire, freeze_message
from context.plan import SentMessage, Turn
from context.policies.base import Rules
from context.policies.current import asked_now
from context.policies.places import names_of
from context.transcript import Message, Transcript, last_reply, parts_of

# What the client brings about by changing a message that is sent no more.
_NOT_SENT = "; nothing was sent for it any more"
# Messages of ours that hold what is known of those that were taken out.
_STAND_FOR_OTHERS = frozenset(("summary", "marker"))
_RESULT_ROLES = frozenset(("tool", "function"))


@dataclass(frozen=True, slots=True)
class Unsent:
    """What the client has in its history and is not sent, for a policy took it out.

    Attributes:
        behind: what was sent, by the old index of what it stands for or behind. A summary stands for the first message
            that it sums up.
        silent: old messages that stay out: what the client does to them changes nothing in the prompt.
        summaries: indices in `behind` of summaries that still hold.
    """

    behind: Mapping[int, Sequence[SentMessage]]
    silent: frozenset[int]
    summaries: tuple[int, ...]

    @classmethod
    def of(cls, turn: Turn, found: Alignment, transcript: Transcript) -> Unsent:
        """Look at a turn's messages for which nothing was sent.

        None of them stays out where the client went back to before the last of them, or has edited what a summary sums
        up: they are then sent in place of the summary or the marker that stands for them. Nor does what belongs to the
        current turn, or to a tool group of which something is sent.
        """
        out = sorted(set(range(len(turn.client))) - {one.source for one in turn.sent})
        behind: dict[int, list[SentMessage]] = {}
        summaries: list[int] = []
        source = -1
        for one in turn.sent:
            source = source if one.source is None else one.source
            first = next((at for at in out if at > source), None) if one.origin == "summary" else None
            behind.setdefault(source if first is None else first, []).append(one)
            summaries += [] if first is None else [first]
        edited = {one.before for one in found.differences if one.cause == "client_edit"}
        holds = any(before > out[-1] for before, _ in found.pairs) if out else True
        if not holds or (summaries and not edited.isdisjoint(out)):
            left = {at: [one for one in ones if one.origin not in _STAND_FOR_OTHERS] for at, ones in behind.items()}
            return cls(left, frozenset(), ())
        return cls(behind, frozenset(out) - _back(out, found, transcript), tuple(summaries))

    def of_the_client(self) -> Unsent:
        """Without what holds more than the client's message that it stands for: nothing stays out then."""
        own = {at: [one for one in ones if one.source is not None] for at, ones in self.behind.items()}
        return Unsent(own, frozenset(), ())


def _back(out: Sequence[int], found: Alignment, transcript: Transcript) -> set[int]:
    """Which of the messages that were taken out are needed again."""
    if not out:
        return set()
    absent = set(out)
    places = {new: old for old, new in found.pairs if old in absent}
    places |= {one.after: one.before for one in found.differences if one.before in absent and one.after is not None}
    asked = asked_now(transcript.messages)
    back = {old for new, old in places.items() if new in asked}
    for group in tool_groups([message.wire for message in transcript.messages]):
        if any(index not in places for index in group.range):
            back |= {places[index] for index in group.range if index in places}
    return back


@dataclass(frozen=True, slots=True)
class Volatile:
    """Volatile text that is sent as it was.

    Attributes:
        whole: messages that differ in nothing else, old index to new.
        revised: the first message that differs in something else too, by its new index, with the values that were
            sent: what it shares with what was sent ends at what else differs.
    """

    whole: Mapping[int, int] = field(default_factory=dict[int, int])
    revised: Mapping[int, Wire] = field(default_factory=dict[int, Wire])

    @classmethod
    def of(
        cls,
        differences: Sequence[Difference],
        transcript: Transcript,
        behind: Mapping[int, Sequence[SentMessage]],
        rules: Rules,
    ) -> Volatile:
        """What the rules undo."""
        if rules.volatile == "report":
            return cls()
        other = {one.before for one in differences if one.cause != "volatile_text"}
        whole = {
            one.before: one.after
            for one in differences
            if one.before is not None and one.after is not None and one.before not in other
        }
        if rules.volatile == "tail":
            # What the model is asked now holds today's values, and none of them would be at the tail.
            now = last_reply(transcript.messages)
            roles = {old: transcript.messages[new].role for old, new in whole.items()}
            whole = {old: new for old, new in whole.items() if new < now or roles[old] in rules.volatile_roles}
        first = next((one for one in differences if one.before not in whole), None)
        if first is None or first.before is None or first.after is None:
            return cls(whole)
        message = transcript.messages[first.after]
        if rules.volatile == "tail" and message.role in rules.volatile_roles:
            # Laying it out takes its values out.
            return cls(whole, {first.after: message.wire})
        sent = next((one.wire for one in behind.get(first.before, ()) if one.source == first.before), None)
        wire = message.wire if sent is None else freeze_message(message.wire, sent, rules.patterns)
        return cls(whole, {} if wire is message.wire else {first.after: wire})

    def undoes(self, difference: Difference) -> bool:
        """Whether a difference is undone."""
        mine = difference.before in self.whole or difference.after in self.revised
        return difference.cause == "volatile_text" and mine


def cut_messages(
    turn: Turn, found: Alignment, transcript: Transcript, unsent: Unsent, rules: Rules
) -> dict[int, int | None]:
    """Old messages that are sent on though the client has cut from them, to their new index; None for those that it
    has cut whole. Without `defer_client_window`: those whose images were taken out of what is sent before."""
    cut: dict[int, int | None] = {}
    other: set[int | None] = set()
    for one in found.differences:
        if one.before is not None and one.cause == "client_window" and one.kind in ("changed", "removed"):
            cut[one.before] = one.after
        else:
            other.add(one.before)
    only = {old: new for old, new in cut.items() if old not in other}
    # What it cuts from what it asks now is no window: it asks without it.
    asked = asked_now(transcript.messages)
    only = {old: new for old, new in only.items() if new is None or new not in asked}
    if rules.defer_client_window:
        return only
    return {old: new for old, new in only.items() if _is_out(turn, transcript, unsent.behind.get(old, ()), old, new)}


def is_outdated(one: SentMessage, message: Message, rules: Rules, hoisted: Set[str]) -> bool:
    """Whether a message was sent with other images than it holds: some were taken out, or are sent though the client
    has cut them. Where the client went back, such a message may belong to the current turn.

    Args:
        one: as it was sent.
        message: as the client has it.
        rules: the policy's.
        hoisted: images of tool results that stand behind their groups.
    """
    if rules.tool_images == "hoist" and message.role in _RESULT_ROLES:
        # What was put behind its group is gone where the group's last message is.
        return any(image.ref.image_id not in hoisted for _, image in message.images)
    sent = Counter(image.ref.image_id for image in one.images)
    theirs = Counter(image.ref.image_id for _, image in message.images)
    if len(parts_of(one.wire)) != len(message.parts):
        return True
    if rules.slot_match is not None:
        return sent.total() != theirs.total()
    # A marker stands for what the client has cut since.
    return sent != theirs or len(list(names_of(one))) != len(list(names_of(SentMessage(message.wire, None))))


def without_parted(kept: Sequence[SentMessage]) -> list[SentMessage]:
    """What is kept, less what the client has cut and what would be sent as calls without results, or as results
    without calls."""
    left = list(kept)
    while stale := [at for at, one in enumerate(left) if one.origin == "stale"]:
        parted = _parted([one.wire for one in left]).intersection(stale)
        if not parted:
            break
        left = _less_hoisted([one for at, one in enumerate(left) if at not in parted])
    return left


def _parted(wires: Sequence[Wire]) -> set[int]:
    """Calls that lack a result, and results that lack their call.

    A result that has no id, or one that is no call's, answers the next call directly in front of it that nothing else
    answers: the API's older form has no ids, and some clients write ids of their own. Further in front it finds none,
    unlike in a tool group: without its call it would pass for another one's.
    """
    unanswered: dict[int, list[str | None]] = {}
    last: dict[str, int] = {}
    unnamed: list[int] = []
    for at, wire in enumerate(wires):
        if ids := _call_ids(wire):
            unanswered[at] = ids
            last |= {identity: at for identity in ids if identity}
        elif wire["role"] in _RESULT_ROLES:
            call = last.get(wire.get("tool_call_id") or "")
            if call is None:
                unnamed.append(at)
            else:
                unanswered[call] = [one for one in unanswered[call] if one != wire["tool_call_id"]]
    alone = [at for at in unnamed if not _answers(at, wires, unanswered)]
    return {*alone, *(at for at, ids in unanswered.items() if ids)}


def _answers(at: int, wires: Sequence[Wire], unanswered: Mapping[int, list[str | None]]) -> bool:
    """Give a result to a call directly in front of it; whether there is one."""
    while at > 0:
        at -= 1
        if unanswered.get(at):
            unanswered[at].pop(0)
            return True
        if at not in unanswered and wires[at]["role"] not in _RESULT_ROLES:
            break
    return False


def _call_ids(wire: Wire) -> list[str | None]:
    calls = wire.get("tool_calls") if wire["role"] == "assistant" else None
    if isinstance(calls, list) and calls:
        found = [cast("Wire", call).get("id") for call in cast("list[Any]", calls) if isinstance(call, dict)]
        return [one if isinstance(one, str) else None for one in found]
    return [None] if wire["role"] == "assistant" and wire.get("function_call") else []


def _less_hoisted(left: Sequence[SentMessage]) -> list[SentMessage]:
    """What is left, less images of tool results none of which is left in front of them."""
    made: list[SentMessage] = []
    for one in left:
        is_behind = bool(made) and (made[-1].origin == "hoisted" or made[-1].wire["role"] in _RESULT_ROLES)
        if one.origin != "hoisted" or is_behind:
            made.append(one)
    return made


def _is_out(turn: Turn, transcript: Transcript, sent: Sequence[SentMessage], old: int, new: int | None) -> bool:
    if new is None or not sent:
        return False
    left = {part.ref.image_id for _, part in transcript.messages[new].images}
    cut = {part.ref.image_id for _, part in turn.client[old].images} - left
    return bool(cut) and cut.isdisjoint(part.ref.image_id for one in sent for part in one.images)


def put_off(difference: Difference, unsent: Unsent, cut: Mapping[int, int | None]) -> str | None:
    """Why a difference changes nothing in the prompt; None where it does."""
    if difference.before in unsent.silent:
        return _NOT_SENT
    return "; put off until the policy shrinks" if difference.before in cut else None
