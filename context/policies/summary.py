"""The oldest part of a history as one block that the engine has summed up.

    before   [system] [turn 1] [turn 2] ... [turn 40] [turn 41] ... [turn 50]
    after    [system] [summary of turns 1-40] [turn 41] ... [turn 50]

A summary is made at a boundary, stays as it was made, and is summed up itself, together with what came after it, at the
next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from context.layout.control import neutralize
from context.layout.groups import tool_groups, turn_boundaries
from context.layout.names import marker
from context.plan import SentMessage, SummaryRequest
from context.policies.base import Rules, Shaped, View, break_at
from context.policies.current import asked_now
from context.policies.places import names_of
from context.transcript import SYSTEM_ROLES, ImagePart, texts_of

SummaryUnit = Literal["turns", "prompt_tokens", "images"]
INSTRUCTION = (
    "Sum up the conversation up to here, so that it can go on from your summary alone. Keep what the user wants, "
    "facts, names, numbers, decisions, what was done and what is still open. Say what each image shows where it "
    "matters, by its id where it has one. Write the summary only, as plain text."
)
# Turns until a summary that was not made is asked for again.
RETRY_TURNS = 4
_ASIDE = frozenset(("summary", "marker"))
_OURS = _ASIDE | {"hoisted"}
# A name takes some 50 tokens.
_MOST_NAMED = 64
# An estimate may be wrong by as much.
_LONGEST_RATIO = 2
_TITLE = re.compile(r"\[Summary v\d+ of messages (\d+)-\d+\]")


@dataclass(frozen=True, slots=True)
class Summary:
    """Sums up the oldest turns when `unit` of what is sent exceeds `high`, down to `low`.

    The block is one message of a user: all chat templates take one, where a system message in the middle is refused by
    many. It holds a title with its version and the client's messages that it stands for (from 1), the engine's text,
    and the names of the images that went, so that they can be asked for. It stands where the first message that it sums
    up stood.

    Never summed up, and sent on as they are, in order, behind the block or in front of it as they stood: system
    messages, messages with pinned images (of a tool group all), what is current (`context/policies/current.py`), and
    everything from the last turn on. Open tool groups end what may be summed up. An agent that works on one question
    for long has its oldest steps summed up; the question stays.

    Attributes:
        unit: `turns`, `prompt_tokens` (by estimate) or `images`.
        high, low: the two waters, in the unit. With `prompt_tokens` the summary counts with its `max_tokens`.
        max_tokens: how long a summary's text may be.
        instruction: what the engine is told.
    """

    unit: SummaryUnit = "prompt_tokens"
    high: int = 16_000
    low: int = 6_000
    max_tokens: int = 400
    instruction: str = INSTRUCTION
    name: str = "summary"
    version: str = "1"
    rules: Rules = field(default_factory=Rules)

    def shape(self, view: View) -> Shaped:
        """What is sent, with the block where its text is there, and the wish for one where it is due."""
        segment = self._due(view)
        if segment is None:
            return Shaped(view.sent, state=view.state)
        if view.summary is not None and (text := view.summary.strip()) and self._is_short(view, text):
            return self._summed_up(view, segment, text)
        tried = view.state.get("tried", -RETRY_TURNS)
        if view.number - tried < RETRY_TURNS:
            return Shaped(view.sent, state=view.state)
        told = {"role": "user", "content": self.instruction}
        messages = (*(one.wire for one in view.sent[: segment[-1] + 1]), told)
        state = {**view.state, "tried": view.number}
        return Shaped(view.sent, state=state, summary=SummaryRequest(messages, self.max_tokens))

    def _is_short(self, view: View, text: str) -> bool:
        """Whether an engine kept to `max_tokens`, more or less: an upstream may not know that parameter, and what it
        wrote would be in every prompt from now on."""
        return view.request.estimate({"role": "user", "content": text}) <= _LONGEST_RATIO * self.max_tokens

    def _due(self, view: View) -> list[int] | None:
        """Indices of the messages to sum up; None where none is due, or none may be."""
        sent = view.sent
        weights = list(self._weights(view))
        level = sum(weights)
        if level <= self.high:
            return None
        kept = _kept(view)
        extra = self.max_tokens if self.unit == "prompt_tokens" else 0
        segment: list[int] = []
        for stop in _boundaries(view):
            segment = [index for index in range(stop) if index not in kept]
            if level + extra - sum(weights[index] for index in segment) <= self.low:
                break
        own = [index for index in segment if sent[index].source is not None]
        if not own or sum(weights[index] for index in segment) <= extra:
            return None
        return segment

    def _weights(self, view: View) -> Iterator[int]:
        """What each message counts."""
        if self.unit == "turns":
            starts = set(_turn_starts(view.sent))
            yield from (int(index in starts) for index in range(len(view.sent)))
        elif self.unit == "images":
            yield from (len(one.images) for one in view.sent)
        else:
            yield from (view.request.estimate(one.wire) for one in view.sent)

    def _summed_up(self, view: View, segment: Sequence[int], text: str) -> Shaped:
        version = view.state.get("version", 0) + 1
        if self.rules.control_tokens is not None:
            text = neutralize(text, self.rules.control_tokens)
        ones = [view.sent[index] for index in segment]
        title = f"[Summary v{version} of messages {_first_number(ones)}-{_last_number(ones)}]"
        names = list(dict.fromkeys(_names(view, ones)))
        listed = ["Images in these messages:", *names[-_MOST_NAMED:]] if names else []
        block = {"role": "user", "content": "\n".join([title, text, *listed])}
        gone = frozenset(segment)
        sent = [one for index, one in enumerate(view.sent) if index not in gone]
        sent.insert(segment[0], SentMessage(block, None, "summary"))
        detail = f"{self.unit.replace('_', ' ')} above {self.high}: {len(segment)} messages summed up"
        return Shaped(
            tuple(sent),
            broken=break_at(view, segment[0], "summary", detail),
            state={"version": version},
        )


def _turn_starts(sent: Sequence[SentMessage]) -> list[int]:
    """Where turns start; messages of ours belong to the turn before."""
    own = [index for index, one in enumerate(sent) if one.origin not in _OURS]
    return [own[start] for start in turn_boundaries([sent[index].wire for index in own])]


def _boundaries(view: View) -> list[int]:
    """Where a segment may end, in order: at starts of turns up to the current one, outside of open tool groups."""
    starts = _turn_starts(view.sent)[1:]
    open_at = [group.start for group in tool_groups([one.wire for one in view.sent]) if group.is_open]
    last = min([*open_at, *starts[-1:]], default=0)
    return [start for start in starts if start <= last]


def _kept(view: View) -> set[int]:
    """Messages that are sent on as they are, wherever they stand."""
    sent, asked = view.sent, asked_now(view.client)
    heads = {index for index, one in enumerate(sent) if one.wire["role"] in SYSTEM_ROLES}
    now = {index for index, one in enumerate(sent) if one.source in asked}
    pinned = {index for index, one in enumerate(sent) if any(_is_pinned(view, part) for part in one.images)}
    kept = heads | now | pinned
    for group in tool_groups([one.wire for one in sent]):
        stop = group.stop
        while stop < len(sent) and sent[stop].origin == "hoisted":
            stop += 1
        whole = set(range(group.start, stop))
        if not whole.isdisjoint(now | pinned):
            kept |= whole
    return kept


def _is_pinned(view: View, part: ImagePart) -> bool:
    return part.ref.image_id in view.request.pins


def _names(view: View, ones: Iterable[SentMessage]) -> Iterator[str]:
    """Names of the images of messages, those that are named in place of one included."""
    for one in ones:
        if one.source is not None:
            yield from (marker(part.ref) for _, part in view.client[one.source].images)
        elif one.origin in _ASIDE:
            yield from names_of(one)
        else:
            yield from (marker(part.ref) for part in one.images)


def _first_number(ones: Sequence[SentMessage]) -> int:
    """The first of the client's messages that is summed up, from 1: what an earlier summary began with."""
    for one in ones:
        if one.origin == "summary":
            found = next((match for text in texts_of(one.wire) if (match := _TITLE.match(text))), None)
            if found:
                return int(found[1])
        elif one.source is not None:
            return one.source + 1
    return 1


def _last_number(ones: Sequence[SentMessage]) -> int:
    return max(one.source for one in ones if one.source is not None) + 1
