"""Which of the messages between two equal ones stand in the same slot."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

from pydantic_core import to_json

from context.alignment.order import common
from context.alignment.texts import may_stand_for_an_image
from context.layout.volatile import first_difference
from context.transcript import SYSTEM_ROLES, Message, texts_of

# How many old messages are looked at for each new one, so that the work grows with the number of messages alone.
_LOOK_AHEAD = 16
_SAMPLE_CHARACTERS = 256


def slots(old: Sequence[Message], new: Sequence[Message]) -> list[tuple[int, int]]:
    """Pairs (index in old, index in new) to compare part by part, increasing in both.

    First messages that are equal but for images and what may stand for them, then by position where roles agree, then
    what looks alike. What is left over was removed or inserted.
    """
    if not old or not new:
        return []
    if len(old) == len(new) == 1:
        return [(0, 0)] if old[0].role == new[0].role or old[0].parts == new[0].parts else []
    found = common([_skeleton(message) for message in old], [_skeleton(message) for message in new])
    pairs: list[tuple[int, int]] = []
    one, two = 0, 0
    for left, right in [*found, (len(old), len(new))]:
        pairs += ((one + i, two + j) for i, j in _alike(old[one:left], new[two:right]))
        pairs += [(left, right)] if left < len(old) else []
        one, two = left + 1, right + 1
    return pairs


def _skeleton(message: Message) -> Hashable:
    """What stays of a message when its images go: role, texts, calls."""
    texts = tuple(text for text in texts_of(message.wire) if not may_stand_for_an_image(text))
    calls = message.wire.get("tool_calls")
    return message.role, texts, message.wire.get("tool_call_id"), to_json(calls) if calls else None


def _alike(old: Sequence[Message], new: Sequence[Message]) -> Iterator[tuple[int, int]]:
    if len(old) == len(new) and all(one.role == two.role for one, two in zip(old, new, strict=True)):
        yield from ((index, index) for index in range(len(old)))
        return
    start = 0
    for index, message in enumerate(new):
        for candidate in range(start, min(start + _LOOK_AHEAD, len(old))):
            if _related(old[candidate], message):
                yield candidate, index
                start = candidate + 1
                break


def _related(old: Message, new: Message) -> bool:
    if old.role != new.role:
        return False
    if old.role in SYSTEM_ROLES or _calls(old) & _calls(new):
        return True
    if {part.ref.image_id for _, part in old.images} & {part.ref.image_id for _, part in new.images}:
        return True
    return _look_alike("".join(texts_of(old.wire)), "".join(texts_of(new.wire)))


def _calls(message: Message) -> set[str]:
    """Ids of the tool calls that a message makes or answers."""
    calls = message.wire.get("tool_calls")
    found = [cast("dict[str, Any]", call).get("id") for call in calls if isinstance(call, dict)] if calls else []
    return {one for one in (*found, message.wire.get("tool_call_id")) if isinstance(one, str)}


def _look_alike(old: str, new: str) -> bool:
    """Whether two texts start and end alike: together, half of the shorter one or of a sample of it."""
    bound = min(len(old), len(new), _SAMPLE_CHARACTERS)
    if not bound:
        return False
    head = first_difference(old[:bound], new[:bound])
    tail = first_difference(old[-bound:][::-1], new[-bound:][::-1])
    return head is None or tail is None or 2 * (head + tail) >= bound
