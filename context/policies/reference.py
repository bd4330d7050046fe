"""Images by name in the history, and their payload at the tail of the turn that needs it (group H).

    history   [system] [user: text, "[image_id ..., turn 1]"] [reply] ... [user: text, "[image_id ..., turn 9]"]
    tail      the images of turn 9, and those that were named, each under its name

What stands in the history never changes, so that each turn is read up to its own tail; an image costs its tokens in
the turns that look at it, and the prompt grows by its name alone. The model does not see older images unless they are
named.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from context.images.base import ImageRef
from context.layout.groups import turn_boundaries
from context.layout.names import ID_CHARS, MIN_NAME_CHARS, as_name, name
from context.plan import SentMessage
from context.policies.base import Rules, Shaped, View
from context.policies.current import asked_now, question
from context.transcript import SYSTEM_ROLES, ImagePart, Message, parts_of, text_part, texts_of

_NAME = re.compile(rf"(?<![0-9a-zA-Z])[0-9a-f]{{{MIN_NAME_CHARS},{ID_CHARS}}}(?![0-9a-zA-Z])")


@dataclass(frozen=True, slots=True)
class Reference:
    """Sends images at the tail, and their names in the history.

    At the tail stand, in this order and each image once: those of the `keep_turns` turns before, pinned ones that stand
    nowhere else, those that were named, those of this turn. This turn's are the images of what is current
    (`context/policies/current.py`): an agent's step sees its own screenshot, and what the user showed. Where they are
    more than the engine takes, the first ones are left out; this turn's never are.

    Attributes:
        id_chars: how many digits of an image's id its name has, 12 to 64. 64 bits, which are 16 digits, tell the images
            of any conversation apart; all 64 cost some 50 tokens a name. Where two images of a conversation agree
            in so many, their names are whole.
        keep_turns: how many turns before this one show their images, too.
        recall: whether an image that is named in the last user message or in the last reply is shown again. A name is
            12 or more digits of an id from its start, as long as no other image of the conversation has them.
    """

    id_chars: int = 16
    keep_turns: int = 0
    recall: bool = True
    name: str = "reference"
    version: str = "1"
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", replace(self.rules, images_at_tail=True))

    def shape(self, view: View) -> Shaped:
        """What was sent as it was, new messages with names in place of images, and the tail."""
        names = _Names.of(view, self.id_chars)
        fixed = len(view.before) if view.broken_at is None else view.broken_at
        pins = view.request.pins
        sent: list[SentMessage] = []
        for at, one in enumerate(view.sent):
            if at < fixed or one.wire["role"] in SYSTEM_ROLES or not one.images:
                sent.append(one)
            elif one.origin != "hoisted":
                # What was hoisted is at the tail.
                sent.append(SentMessage(names.in_place(one.wire, pins), one.source, one.origin))
        return Shaped(tuple(sent), tail=tuple(self._tail(view, sent, names)), state=view.state)

    def _tail(self, view: View, sent: Sequence[SentMessage], names: _Names) -> Iterator[Any]:
        in_history = {part.ref.image_id for one in sent for part in one.images}
        in_message = {(one.source, part.ref.image_id) for one in sent for part in one.images}
        images = [(at, part) for at, message in enumerate(view.client) for _, part in message.images]
        images = [(at, part) for at, part in images if view.client[at].role not in SYSTEM_ROLES]
        known = {part.ref.image_id: part for _, part in images}
        now, kept = asked_now(view.client), _turns_before(view.client, self.keep_turns)
        current = [part for at, part in images if at in now and (at, part.ref.image_id) not in in_message]
        others = [part for at, part in images if at in kept and at not in now]
        others += [part for _, part in images if part.ref.image_id in view.request.pins]
        others += [known[one] for one in _named(view.client, sorted(known))] if self.recall else []
        limit = view.request.limits.max_images
        shown = _once(current)
        more = [part for part in _once(others) if part.ref.image_id not in in_history | _ids(shown)]
        if limit is not None:
            room = max(0, limit - sum(len(one.images) for one in sent) - len(shown))
            more = more[len(more) - room :] if room < len(more) else more
        for part in [*more, *shown]:
            yield text_part(names.name(part.ref))
            yield part


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of a conversation's images: `ids` by image, and `turns` in which they first came."""

    ids: Mapping[str, str]
    turns: Mapping[str, int]

    @classmethod
    def of(cls, view: View, id_chars: int) -> _Names:
        came: dict[str, int] = {}
        numbers = _turn_numbers(view)
        for at, message in enumerate(view.client):
            for _, part in message.images:
                came.setdefault(part.ref.image_id, numbers[at])
        short = Counter(one[:id_chars] for one in came)
        ids = {one: one[:id_chars] if short[one[:id_chars]] == 1 else one for one in came}
        by_id = {shown: one for one, shown in ids.items()}
        said = {by_id[shown]: turn for shown, turn in reversed(list(_markers(view.sent))) if shown in by_id}
        # What was written once is the truth: a client that cut its beginning counts less.
        return cls(ids, came | said)

    def name(self, ref: ImageRef) -> str:
        """The name of an image."""
        shown, turn = self.ids.get(ref.image_id, ref.image_id), self.turns.get(ref.image_id, 1)
        return name(ref, shown, turn)

    def in_place(self, wire: Mapping[str, Any], pins: Iterable[str]) -> Mapping[str, Any]:
        """The message with names in place of its images; pinned ones stay."""
        pinned = frozenset(pins)
        parts = [
            text_part(self.name(part.ref)) if isinstance(part, ImagePart) and part.ref.image_id not in pinned else part
            for part in parts_of(wire)
        ]
        return {**wire, "content": parts}


def _markers(sent: Sequence[SentMessage]) -> Iterator[tuple[str, int]]:
    for one in sent:
        if not isinstance(one.wire.get("content"), list):
            continue
        for part in parts_of(one.wire):
            text = None if isinstance(part, ImagePart) else part.get("text")
            # A name of ours is a part of its own; what a user writes about one is not.
            if (found := as_name(text)) and found[2]:
                yield found[1], int(found[2])


def _turn_numbers(view: View) -> list[int]:
    """The turn in which each of the client's messages came: one more than the replies before it, and the turn's own
    number for the current ones, where the client has cut its beginning."""
    replies = [message.role == "assistant" for message in view.client]
    ends_with_reply = bool(replies) and replies[-1]
    before = sum(replies) - ends_with_reply
    missing = max(0, view.number - 1 - before)
    numbers: list[int] = []
    number = 1 + missing
    for is_reply in replies:
        numbers.append(number)
        number += is_reply
    return numbers


def _turns_before(client: Sequence[Message], turns: int) -> set[int]:
    starts = turn_boundaries([message.wire for message in client]) if turns else ()
    return set(range(starts[max(0, len(starts) - 1 - turns)], len(client))) if starts else set()


def _named(client: Sequence[Message], ids: Sequence[str]) -> Iterator[str]:
    """Ids that the last reply or the last user messages name, in order of mention. `ids` are sorted."""
    replies = [at for at in range(len(client) - 1) if client[at].role == "assistant"]
    asked = [at for at in question(client) if client[at].role == "user"]
    for at in sorted({*replies[-1:], *asked}):
        for text in _texts(client[at].wire):
            for match in _NAME.finditer(text):
                first = bisect_left(ids, match[0])
                found = [one for one in ids[first : first + 2] if one.startswith(match[0])]
                if len(found) == 1:
                    yield found[0]


def _texts(wire: Mapping[str, Any]) -> Iterator[str]:
    """A message's texts, and the arguments of its calls."""
    yield from texts_of(wire)
    for call in cast("Sequence[Any]", wire.get("tool_calls") or ()):
        function: Any = cast("dict[str, Any]", call).get("function") if isinstance(call, dict) else None
        arguments = cast("dict[str, Any]", function).get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            yield arguments


def _once(parts: Iterable[ImagePart]) -> list[ImagePart]:
    return list({part.ref.image_id: part for part in parts}.values())


def _ids(parts: Iterable[ImagePart]) -> set[str]:
    return {part.ref.image_id for part in parts}
