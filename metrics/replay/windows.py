"""How clients cut their history: what they send of everything that there has been."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from context.errors import ConfigError
from metrics.replay.material import Draft, Part, Shown
from metrics.replay.session import View

PLACEHOLDER = "[the older screenshot was left out to save space here]"
_FORMS = re.compile(
    r"keep(?P<keep>\d{1,6})_(?P<how>delete|placeholder|message)|chunk(?P<k>\d{1,6})_(?P<r>\d{1,6})|turns(?P<n>\d{1,6})"
)
HELP = (
    "all; keepN_delete, keepN_placeholder or keepN_message (the last N images stay; older ones are deleted, replaced "
    "by a text, or go with their whole message); chunkK_R (at least K stay, R go at a time); turnsN (the last N "
    "turns); halveN (at N turns the older half goes); state (one message that is rebuilt each turn); tail (old "
    "images are named, the newest is shown)"
)


def window(name: str, where: str) -> View:
    """A client's habit by its name; see `HELP`.

    Raises:
        ConfigError: there is none of that name.
    """
    if name in _NAMED:
        return _NAMED[name]
    found = _FORMS.fullmatch(name)
    halve = re.fullmatch(r"halve([1-9]\d{0,5})", name)
    if halve:
        most = int(halve[1])
        return lambda number, whole: _last_turns(number, whole, _halved(number, most))
    if found is None or any(value == "0" for value in found.groups()):
        raise ConfigError(where, "window", f"is no way to cut; write one of {HELP}")
    if found["n"]:
        return lambda number, whole: _last_turns(number, whole, int(found["n"]))
    if found["k"]:
        keep, chunk = int(found["k"]), int(found["r"])
        return lambda _, whole: _cut(whole, _chunked(_images(whole), keep, chunk), "delete")
    return lambda _, whole: _cut(whole, max(0, _images(whole) - int(found["keep"])), found["how"])


def _images(whole: Sequence[Draft]) -> int:
    return sum(len(draft.pictures) for draft in whole)


def _chunked(images: int, keep: int, chunk: int) -> int:
    return max(0, images - keep) // chunk * chunk


def _cut(whole: Sequence[Draft], count: int, how: str) -> list[Draft]:
    """Without the first `count` images."""
    made: list[Draft] = []
    for draft in whole:
        gone = min(count, len(draft.pictures))
        count -= gone
        if not gone:
            made.append(draft)
        elif how != "message":
            made.append(replace(draft, content=_without(draft.content, gone, how)))
    return made


def _without(content: Sequence[Part], gone: int, how: str) -> tuple[Part, ...]:
    made: list[Part] = []
    for part in content:
        if not isinstance(part, Shown) or not gone:
            made.append(part)
            continue
        gone -= 1
        if how == "placeholder":
            made.append(PLACEHOLDER)
    return tuple(made)


def _last_turns(number: int, whole: Sequence[Draft], count: int) -> list[Draft]:
    return [draft for draft in whole if draft.step < 0 or draft.step > number - count]


def _halved(number: int, most: int) -> int:
    """How many turns are kept: from `most` on the older half goes, again and again."""
    kept = 0
    for _ in range(number):
        kept += 1
        if kept > most:
            kept = most // 2
    return kept


def _state(number: int, whole: Sequence[Draft]) -> list[Draft]:
    head = [draft for draft in whole if draft.step < 0]
    past = [
        f"{draft.role}: {part}"
        for draft in whole
        if 0 <= draft.step < number
        for part in draft.content
        if isinstance(part, str)
    ]
    now = [part for draft in whole if draft.step == number for part in draft.content]
    return [*head, Draft("user", tuple((["\n".join(past)] if past else []) + now), step=number)]


def _tail(number: int, whole: Sequence[Draft]) -> list[Draft]:
    """The name stands in front of the picture, so that taking the picture out changes nothing before it."""
    made: list[Draft] = []
    for draft in whole:
        content: list[Part] = []
        for part in draft.content:
            if isinstance(part, Shown):
                content.append(f"[picture {part.picture.seed}]")
            if not isinstance(part, Shown) or draft.step == number:
                content.append(part)
        made.append(replace(draft, content=tuple(content)))
    return made


_NAMED: dict[str, View] = {"all": lambda _, whole: whole, "state": _state, "tail": _tail}
