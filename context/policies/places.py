"""Images in what is sent: where they stand, what names them once they went, and which ones the client has cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from context.layout.names import names_in
from context.plan import SentMessage
from context.transcript import ImagePart, Message, parts_of


@dataclass(frozen=True, slots=True)
class Place:
    """An image in what is sent: indices of the message and of its part."""

    message: int
    part: int
    image: ImagePart


def places_of(sent: Iterable[SentMessage | None]) -> Iterator[Place]:
    """All images, in order."""
    for index, one in enumerate(sent):
        for part, image in enumerate(parts_of(one.wire)) if one is not None else ():
            if isinstance(image, ImagePart):
                yield Place(index, part, image)


def names_of(one: SentMessage) -> Iterator[str]:
    """Markers of a message's images in order, those that already stand for one among them."""
    return (found.group() for found in names_in(one.wire))


def first_ids(sent: Iterable[SentMessage], count: int) -> frozenset[str]:
    """The ids of the first distinct images of a conversation; those that markers stand for count."""
    ids: dict[str, None] = {}
    for one in sent if count else ():
        for found in names_in(one.wire):
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
    fewer = sum(1 for _ in names_in(one.wire)) - theirs.total()
    unmatched: list[Place] = []
    # Windows move forward: of equal images it is the first that went.
    for place in reversed(places):
        if theirs[place.image.ref.image_id] > 0:
            theirs[place.image.ref.image_id] -= 1
        else:
            unmatched.append(place)
    return unmatched[::-1][: max(fewer, 0)]
