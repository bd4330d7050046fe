"""Runs traces under policies, one session after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic_core import to_json

from metrics.replay.base import Target
from metrics.replay.figures import Row, TurnFigures, row
from metrics.replay.images import TraceImages
from metrics.replay.trace import Trace, Wire

Progress = Callable[[str], None]


async def run(
    target: Target,
    images: TraceImages,
    traces: Sequence[Trace],
    policies: Sequence[str],
    progress: Progress = lambda _: None,
) -> list[Row]:
    """Every trace under every policy; rows in that order.

    Raises:
        ConfigError: there is no such policy.
        EngineUnavailable: the gateway or its engine broke.
    """
    rows: list[Row] = []
    for trace in traces:
        progress(f"{trace.name}: images")
        counted = await images.count(trace)
        floor: int | None = None
        for at, policy in enumerate(policies):
            turns, replies = await replay(target, trace, policy, progress)
            if not at:
                # Replies of a real engine differ a little from policy to policy; the floor is to be the same for all.
                floor = await target.floor(trace, trace.everything(replies))
            rows.append(row(trace.name, policy, target.engine, turns, floor, counted))
    return rows


async def replay(
    target: Target, trace: Trace, policy: str, progress: Progress = lambda _: None
) -> tuple[list[TurnFigures], dict[int, Wire]]:
    """One session: the figures of its turns, and the replies by turn.

    Raises:
        ConfigError, EngineUnavailable: see `run`.
    """
    figures: list[TurnFigures] = []
    replies: dict[int, Wire] = {}
    async with target.session(trace, policy) as session:
        for turn in trace.turns:
            progress(f"{trace.name} under {policy}: turn {turn.number} of {len(trace.turns)}")
            found, reply = await session.ask(turn, with_replies(trace, turn.messages, replies))
            figures.append(found)
            replies[turn.number] = reply
    return figures, replies


def with_replies(trace: Trace, messages: Sequence[Wire], replies: Mapping[int, Wire]) -> list[Wire]:
    """A client's messages with the replies that it got in place of those that the trace was written with. Of equal
    ones the last in the messages are the last that it got."""
    got: dict[bytes, list[Wire]] = {}
    for turn in trace.turns:
        if (reply := replies.get(turn.number)) is not None and reply is not turn.reply:
            got.setdefault(to_json(turn.reply), []).append(reply)
    if not got:
        return list(messages)
    made: list[Wire] = []
    for message in reversed(messages):
        known = got.get(to_json(message)) if message["role"] == "assistant" else None
        made.append(known.pop() if known else message)
    return made[::-1]
