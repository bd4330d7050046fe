"""What a client's changes of its history come to, in view of what was sent for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from context.alignment import Alignment, Difference
from context.layout.groups import tool_groups
from context.layout.revise import Wire, freeze_message
from context.plan import SentMessage, Turn
from context.policies.base import Rules
from context.policies.places import names_of
from context.transcript import Message, Transcript, last_reply, parts_of

# What the client brings about by changing a message that is sent no more.
_NOT_SENT = "; nothing was sent for it any more"
# Messages of ours that hold what is known of those that were taken out.
_STAND_FOR_OTHERS = frozenset(("summary", "marker"))


def last_of_user(messages: Sequence[Message]) -> int:
    """The index of the last message of a user; -1 where there is none."""
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), -1)


def current_turn(messages: Sequence[Message]) -> int:
    """Where the current turn starts: with the messages that lead up to the last one of a user."""
    last = last_of_user(messages)
    last = last if last >= 0 else len(messages)
    while last > 0 and messages[last - 1].role == "user":
        last -= 1
    return last


def asked_now(messages: Sequence[Message]) -> frozenset[int]:
    """The messages of the current turn: the last one of a user with those that lead up to it, and the last reply
    behind it with what follows: of an agent's steps only the last one."""
    start = current_turn(messages)
    question = start
    while question < len(messages) and messages[question].role == "user":
        question += 1
    return frozenset((*range(start, question), *range(max(question, last_reply(messages)), len(messages))))


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
    if rules.tool_images == "hoist" and message.role in ("tool", "function"):
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
    while True:
        calls: set[str] = set()
        results: set[str] = set()
        alone: set[int] = set()
        for at, one in enumerate(left):
            calls |= _call_ids(one)
            if one.wire["role"] == "tool" and one.origin == "stale" and one.wire.get("tool_call_id") not in calls:
                alone.add(at)
        for at in range(len(left) - 1, -1, -1):
            one = left[at]
            if one.origin == "stale" and not _call_ids(one) <= results:
                alone.add(at)
            results |= {one.wire["tool_call_id"]} if one.wire.get("tool_call_id") else set()
        if not alone:
            return left
        left = [one for at, one in enumerate(left) if at not in alone]


def _call_ids(one: SentMessage) -> set[str]:
    return {call.get("id") for call in one.wire.get("tool_calls") or ()}


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
