"""From the steps of a session and a client's habits to a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metrics.replay.material import Draft, first_difference
from metrics.replay.trace import Expect, Trace, TraceTurn


@dataclass(frozen=True, slots=True)
class Step:
    """What comes up in one turn: new messages, and the reply to them."""

    new: tuple[Draft, ...]
    reply: Draft


# What the client sends in a turn, from its number and everything that there has been.
View = Callable[[int, Sequence[Draft]], Sequence[Draft]]
Tools = Callable[[int], Sequence[Mapping[str, Any]] | None]


def build(
    name: str,
    head: Sequence[Draft],
    steps: Sequence[Step],
    view: View = lambda _, whole: whole,
    tools: Tools = lambda _: None,
    limits: Mapping[str, int] | None = None,
) -> Trace:
    """The trace of a session. Messages in `new` and `reply` are marked with their turn."""
    turns: list[TraceTurn] = []
    whole, shown = list(head), list[Draft]()
    for number, step in enumerate(steps, start=1):
        new = [replace(draft, step=number) for draft in step.new]
        reply = replace(step.reply, step=number)
        whole += new
        before, shown = shown, list(view(number, whole))
        turns.append(
            TraceTurn(
                number,
                tuple(draft.wire() for draft in shown),
                tuple(draft.wire() for draft in ([*head, *new] if number == 1 else new)),
                reply.wire(),
                _tools(tools(number)),
                _expect(before, shown, is_first=number == 1),
            )
        )
        whole.append(reply)
        shown.append(reply)
    return Trace(name, tuple(turns), limits or {})


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, Any], ...] | None:
    return None if tools is None else tuple(tools)


def _expect(before: Sequence[Draft], now: Sequence[Draft], *, is_first: bool) -> Expect:
    """`before` ends with the reply to the turn before."""
    pictures = [shown for draft in now for shown in draft.pictures]
    old = Counter(shown.picture for draft in before for shown in draft.pictures)
    new = Counter(shown.picture for shown in pictures)
    difference = None if is_first else first_difference(before, now)
    return Expect(difference, len({shown.key for shown in pictures}), len(pictures), bool(old - new))
