"""Images in what is sent: where they stand, what names them once they went, and which ones the client has cut."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from context.layout.hoist import marker
from context.plan import SentMessage
from context.transcript import ImagePart, Message, parts_of

# `reference` names images more shortly, and adds the turn.
_MARKER = re.compile(r"\[image_id ([0-9a-f]{12,64}) \d+x\d+(?:, turn \d+)?\]")


@dataclass(frozen=True, slots=True)
class Place:
    """An image in what is sent: indices of the message and of its part."""

    message: int
    part: int
    image: ImagePart


def names_of(one: SentMessage) -> Iterator[str]:
    """Markers of a message's images in order, those that already stand for one among them."""
    return (found.group() for found in _found(one))


def first_ids(sent: Iterable[SentMessage], count: int) -> frozenset[str]:
    """The ids of the first distinct images of a conversation; those that markers stand for count."""
    ids: dict[str, None] = {}
    for one in sent if count else ():
        for found in _found(one):
            ids[found.group(1)] = None
            if len(ids) == count:
                return frozenset(ids)
    return frozenset(ids)


def cut_by_client(sent: Sequence[SentMessage], client: Sequence[Message], places: Iterable[Place]) -> set[Place]:
    """Those of these images that are sent and that the client's message does not hold any more.

    Images that a slot match let stand for others are there: of a message no more are cut than it holds less.
    """
    by_message: dict[int, list[Place]] = {}
    for place in places:
        by_message.setdefault(place.message, []).append(place)
    everywhere = {image.ref.image_id for message in client for _, image in message.images}
    cut: set[Place] = set()
    for index, ones in by_message.items():
        one = sent[index]
        if one.origin == "stale":
            cut.update(ones)
        elif one.source is None:
            cut.update(place for place in ones if place.image.ref.image_id not in everywhere)
        else:
            cut.update(_cut_from(one, client[one.source], ones))
    return cut


def _cut_from(one: SentMessage, message: Message, places: Sequence[Place]) -> list[Place]:
    theirs = Counter(image.ref.image_id for _, image in message.images)
    fewer = sum(1 for _ in _found(one)) - theirs.total()
    unmatched: list[Place] = []
    # Windows move forward: of equal images it is the first that went.
    for place in reversed(places):
        if theirs[place.image.ref.image_id] > 0:
            theirs[place.image.ref.image_id] -= 1
        else:
            unmatched.append(place)
    return unmatched[::-1][: max(fewer, 0)]


def _found(one: SentMessage) -> Iterator[re.Match[str]]:
    for part in parts_of(one.wire):
        text: Any = marker(part.ref) if isinstance(part, ImagePart) else part.get("text")
        if isinstance(text, str) and "[image_id " in text:
            yield from _MARKER.finditer(text)
