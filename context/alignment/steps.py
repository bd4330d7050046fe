"""The messages that are not equal, in the order of both transcripts, and what went with a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from context.alignment.slots import slots
from context.transcript import SYSTEM_ROLES, Message


@dataclass(frozen=True, slots=True)
class Step:
    """A slot that two messages share (both indices), a message that is gone or one that came in.

    `at` is the index in the new messages at which it is met or missed.
    """

    before: int | None
    after: int | None
    at: int


@dataclass(frozen=True, slots=True)
class Run:
    """Messages in a row that are gone. `window` says that a window of the client's left them behind."""

    length: int
    window: bool
    detail: str


def steps_between(
    old: Sequence[Message], new: Sequence[Message], pairs: Sequence[tuple[int, int]]
) -> tuple[list[Step], int]:
    """All steps, and how many of them stand before the last pair."""
    steps: list[Step] = []
    tail, one, two = 0, 0, 0
    for left, right in [*pairs, (len(old), len(new))]:
        tail = len(steps)
        if left > one or right > two:
            steps += _gap(old, new, range(one, left), range(two, right))
        if left < len(old):
            tail = len(steps)
        one, two = left + 1, right + 1
    return steps, tail


def _gap(old: Sequence[Message], new: Sequence[Message], olds: range, news: range) -> list[Step]:
    shared = slots(old[olds.start : olds.stop], new[news.start : news.stop])
    steps: list[Step] = []
    one, two = olds.start, news.start
    for left, right in [*((olds.start + i, news.start + j) for i, j in shared), (olds.stop, news.stop)]:
        steps += (Step(index, None, two) for index in range(one, left))
        steps += (Step(None, index, index) for index in range(two, right))
        if left < olds.stop:
            steps.append(Step(left, right, right))
        one, two = left + 1, right + 1
    return steps


def runs_of_removed(old: Sequence[Message], steps: Sequence[Step]) -> dict[int, Run]:
    """For each old message that is gone, the run that it is part of.

    A window drops messages with images from anywhere, together with what stands around them, and the oldest messages
    with or without images: those behind the instructions, or behind the first question where that one is kept.
    """
    gone = [step.before for step in steps if step.before is not None and step.after is None]
    if not gone:
        return {}
    head = next((index for index, message in enumerate(old) if message.role not in SYSTEM_ROLES), len(old))
    runs: dict[int, Run] = {}
    start = 0
    for end in range(1, len(gone) + 1):
        if end < len(gone) and gone[end] == gone[end - 1] + 1:
            continue
        indices = gone[start:end]
        run = _run(old, indices, head)
        runs |= dict.fromkeys(indices, run)
        start = end
    return runs


def _run(old: Sequence[Message], indices: Sequence[int], head: int) -> Run:
    count = len(indices)
    words = "a message was removed" if count == 1 else f"{count} messages in a row were removed"
    if any(next(old[index].images, None) is not None for index in indices):
        return Run(count, True, f"{words} with what images they held" if count > 1 else f"{words} with its image")
    oldest = head <= indices[0] <= head + (count > 1)
    return Run(count, oldest, f"{words} from the oldest ones" if oldest else words)
