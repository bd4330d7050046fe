"""Taking images and whole turns out of what is sent: what `batched`, `sliding` and the engine's limits share.

Never taken out: system messages, summaries, open tool groups, and what is current (`context/policies/current.py`). An
image leaves its marker in place; turns leave one message in front that names the images that went with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from context.layout.groups import tool_groups, turn_boundaries, units
from context.layout.names import marker
from context.plan import SentMessage
from context.policies.base import Shaped, View, break_at, part_tokens
from context.policies.current import asked_now, last_step
from context.policies.places import Place, cut_by_client, first_ids, names_of, places_of
from context.transcript import SYSTEM_ROLES, parts_of, text_part

# Said in place of a message of which nothing is left, so that the message stays.
NOTHING_LEFT = "[images left out]"
_TURNS_LEFT_OUT = "[Earlier messages of this conversation are left out.]"
_OLDER_IMAGES = "[Older images are not named.]"
# A name takes some 50 tokens: what a conversation has lost must not fill the prompt in its turn.
_MOST_NAMED = 64
# Messages of ours that stand in no turn, and one that goes with the group before it.
_APART = frozenset(("marker", "summary"))
_OURS = _APART | {"hoisted"}


# What goes or stays together: indices of messages.
Unit = tuple[int, ...]
Weigh = Callable[[Place], int]


class Draft:
    """What is sent, while things are taken out of it. Indices stay those of what was laid out.

    Args:
        view: what the policy sees; `view.sent` is what things are taken out of, and is not mutated.
        pin_first_images: so many images stay, the first ones of the conversation.
    """

    def __init__(self, view: View, pin_first_images: int = 0) -> None:
        self.view, self.sent = view, view.sent
        self.left: list[SentMessage | None] = list(view.sent)
        self.first: int | None = None
        """Index of the first message that is not what it was; None while there is none."""
        self._pins = view.request.pins | first_ids(view.sent, pin_first_images)
        self._tokens: list[int | None] = [None] * len(view.sent)
        # The message for turns that went, and its index; named in it are the images that went with them.
        self._marker_at: int | None = None
        self._named: dict[str, None] = {}
        self._has_unnamed = False

    def images(self, *, pinned: bool = False) -> Iterator[Place]:
        """Images that are left, in order, wherever they stand; those that are pinned only on demand."""
        return (one for one in places_of(self.left) if pinned or one.image.ref.image_id not in self._pins)

    def evictable(self, *, pinned: bool = False) -> Iterator[Place]:
        """Images that may go, the oldest first."""
        return (place for place in self.images(pinned=pinned) if place.message not in self.locked)

    def turns(self, *, pinned: bool = False) -> list[tuple[Unit, ...]]:
        """Turns before the last step that may go, in order: of each its messages that may. With `pinned` also those
        with pinned images."""
        starts = [one for one in self._starts if one < self._last_step]
        found: list[tuple[Unit, ...]] = []
        for start, stop in pairwise([*starts, self._last_step]):
            inside = [unit for unit in self._units if start <= unit[0] < stop]
            free = tuple(unit for unit in inside if self._may_go(unit) and (pinned or not self._is_pinned(unit)))
            if free:
                found.append(free)
        return found

    def tokens(self) -> int:
        """Prompt tokens of what is left, by estimate."""
        return sum(map(self._message_tokens, range(len(self.left)))) + self._marker_tokens()

    def image_tokens(self, place: Place) -> int:
        """Visual tokens of an image, by estimate."""
        return part_tokens(place.image, self.view.request.estimate)

    def saved_tokens(self, place: Place) -> int:
        """Prompt tokens less when a marker stands for an image, by estimate."""
        return self.image_tokens(place) - part_tokens(text_part(marker(place.image.ref)), self.view.request.estimate)

    def take_images(self, places: Iterable[Place], *, leave_marker: bool = True) -> None:
        """Put markers in the place of images, or nothing; a message of which nothing is left says so."""
        by_message: dict[int, list[Place]] = {}
        for place in places:
            by_message.setdefault(place.message, []).append(place)
        for index, ones in by_message.items():
            one = self.left[index]
            assert one is not None, "the image stands in what is left"
            parts: list[Any] = list(parts_of(one.wire))
            for place in ones:
                parts[place.part] = text_part(marker(place.image.ref)) if leave_marker else None
            left = [part for part in parts if part is not None] or [text_part(NOTHING_LEFT)]
            self._put(index, replace(one, wire={**one.wire, "content": left}))

    def take_oldest(self, excess: int, weigh: Weigh, *, pinned: bool = False) -> int:
        """Take images out, the oldest first, until they weigh `excess`; what they weighed."""
        gone, places = 0, list[Place]()
        for place in self.evictable(pinned=pinned) if excess > 0 else ():
            if (weight := weigh(place)) > 0:
                gone += weight
                places.append(place)
            if gone >= excess:
                break
        self.take_images(places)
        return gone

    def take_turn(self, turn: Iterable[Unit]) -> int:
        """Take a turn out; how many tokens less are left, by estimate."""
        before = self._marker_tokens()
        gone = 0
        if self._marker_at is None:
            for index, one in enumerate(self.sent):
                if one.origin == "marker" and self.left[index] is not None:
                    gone += self._message_tokens(index)
                    self._remove(index)
        for index in sorted(index for unit in turn for index in unit):
            gone += self._message_tokens(index)
            self._remove(index)
        return gone + before - self._marker_tokens()

    def take_stale(self, start: int = 0) -> None:
        """Take out what the client has cut, from index `start` on. What belongs to a tool group that it has not cut
        whole loses its images only."""
        evictable = list(self.evictable())
        for unit in self._units:
            if unit[0] < start or not all(self._may_go_stale(index) for index in unit):
                continue
            if not self._is_pinned(unit):
                for index in unit:
                    self._put(index, None)
        cut = cut_by_client(self.sent, self.view.client, evictable)
        places = [place for place in evictable if place.message >= start and place in cut]
        self.take_images(place for place in places if self.left[place.message] is not None)

    def shaped(self, detail: str, *, base: Shaped | None = None) -> Shaped:
        """What is left, with the break that it is where it rewrites what was sent.

        Args:
            detail: of the break.
            base: what the rest is taken from.
        """
        base = base or Shaped(self.sent, state=self.view.state)
        if self.first is None:
            return base
        sent: list[SentMessage] = []
        for index, one in enumerate(self.left):
            if index == self._marker_at:
                sent.append(self._marker_message())
            if one is not None:
                sent.append(one)
        readable = len(self.view.before) if self.view.broken_at is None else self.view.broken_at
        broken = break_at(self.view, self.first, "policy_eviction", detail) if self.first < readable else None
        return replace(base, sent=tuple(sent), broken=broken or base.broken)

    def rewritten_tokens(self) -> int:
        """Tokens that were sent before and are prefilled again since something in front of them went."""
        if self.first is None:
            return 0
        readable = len(self.view.before) if self.view.broken_at is None else self.view.broken_at
        return sum(self._message_tokens(index) for index in range(self.first, min(readable, len(self.left))))

    @cached_property
    def locked(self) -> frozenset[int]:
        """Messages that nothing is taken out of."""
        found = {index for index, one in enumerate(self.sent) if one.origin == "summary" or _is_head(one)}
        asked = asked_now(self.view.client)
        for unit in self._units:
            now = [index for index in unit if self.sent[index].source in asked]
            found.update(now)
            if now:
                # The images of the unit's results.
                found.update(index for index in unit if self.sent[index].origin == "hoisted")
        for group in tool_groups([self.sent[index].wire for index in self._own]):
            if group.is_open:
                found |= set(self._with_hoisted(group.range))
        return frozenset(found)

    @cached_property
    def _own(self) -> list[int]:
        """Messages that are the client's, or were."""
        return [index for index, one in enumerate(self.sent) if one.origin not in _OURS]

    @cached_property
    def _starts(self) -> list[int]:
        return [self._own[start] for start in turn_boundaries([self.sent[index].wire for index in self._own])]

    @cached_property
    def _units(self) -> list[Unit]:
        return [self._with_hoisted(unit) for unit in units([self.sent[index].wire for index in self._own])]

    def _with_hoisted(self, unit: Sequence[int]) -> Unit:
        """Indices of a unit of the client's messages, with the images that were taken out of it."""
        found = [self._own[at] for at in unit]
        after = found[-1] + 1
        while after < len(self.sent) and self.sent[after].origin == "hoisted":
            found.append(after)
            after += 1
        return tuple(found)

    @cached_property
    def _last_step(self) -> int:
        """Where the last step starts."""
        source = last_step(self.view.client)
        places = (index for index, one in enumerate(self.sent) if one.source is not None and one.source >= source)
        return next(places, len(self.sent))

    def _may_go(self, unit: Unit) -> bool:
        return not any(index in self.locked or self.left[index] is None for index in unit)

    def _may_go_stale(self, index: int) -> bool:
        one = self.sent[index]
        return index not in self.locked and one.origin in ("stale", "hoisted")

    def _is_pinned(self, unit: Unit) -> bool:
        return any(image.ref.image_id in self._pins for index in unit for image in self.sent[index].images)

    def _put(self, index: int, one: SentMessage | None) -> None:
        self.left[index] = one
        self._tokens[index] = None
        self.first = index if self.first is None else min(self.first, index)

    def _remove(self, index: int) -> None:
        """Take out a message whose images the marker message names."""
        one = self.sent[index]
        self._named |= dict.fromkeys(names_of(one))
        self._has_unnamed |= one.origin == "marker" and _OLDER_IMAGES in one.wire["content"]
        self._marker_at = index if self._marker_at is None else min(self._marker_at, index)
        self._put(index, None)

    def _message_tokens(self, index: int) -> int:
        one = self.left[index]
        if one is None:
            return 0
        known = self._tokens[index]
        if known is None:
            known = self._tokens[index] = self.view.request.estimate(one.wire)
        return known

    def _marker_message(self) -> SentMessage:
        names = list(self._named)
        older = [_OLDER_IMAGES] if self._has_unnamed or len(names) > _MOST_NAMED else []
        text = "\n".join([_TURNS_LEFT_OUT, *older, *names[-_MOST_NAMED:]])
        return SentMessage({"role": "user", "content": text}, None, "marker")

    def _marker_tokens(self) -> int:
        return 0 if self._marker_at is None else self.view.request.estimate(self._marker_message().wire)


def _is_head(one: SentMessage) -> bool:
    return one.wire["role"] in SYSTEM_ROLES
