"""Which messages belong together: a call with its results, and where one turn ends and the next begins.

Messages are wires: `SentMessage.wire` or `Message.wire`. Nothing is mutated; all functions take one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from context.transcript import SYSTEM_ROLES

_RESULT_ROLES = frozenset(("tool", "function"))
_GROUP = "group"
_REPLIES = frozenset(("assistant", _GROUP))


@dataclass(frozen=True, slots=True)
class ToolGroup:
    """Messages `start` to `stop - 1`: assistant messages that call tools, their results, and what stands between.

    `is_open` while a call has no result yet. A group of results alone is one whose call is not in the messages.
    """

    start: int
    stop: int
    is_open: bool

    @property
    def range(self) -> range:
        """Its indices."""
        return range(self.start, self.stop)


@dataclass(slots=True)
class _Call:
    """An assistant message that calls, while its results are being looked for."""

    start: int
    stop: int
    unanswered: set[str] = field(default_factory=set[str])
    # Calls without an id, less results whose id is none of ours: either can stand for the other.
    unmatched: int = 0

    @property
    def is_open(self) -> bool:
        return len(self.unanswered) + self.unmatched > 0


def tool_groups(messages: Sequence[Mapping[str, Any]]) -> tuple[ToolGroup, ...]:
    """All groups in order; none overlaps another.

    A result belongs to the last call before it that has its id; when none has, to the last call before it, because
    some clients write ids of their own. Calls whose results are interleaved are one group. Results with no call before
    them at all (the client cut it off) are a group of their own, as long as they stand together.
    """
    calls: list[_Call] = []
    by_id: dict[str, _Call] = {}
    last_call: _Call | None = None
    for index, message in enumerate(messages):
        if (ids := _call_ids(message)) is not None:
            last_call = _Call(index, index + 1, {one for one in ids if one}, sum(not one for one in ids))
            by_id |= dict.fromkeys(last_call.unanswered, last_call)
            calls.append(last_call)
        elif message["role"] in _RESULT_ROLES:
            identity = message.get("tool_call_id")
            known = by_id.get(identity) if isinstance(identity, str) else None
            if call := known or last_call:
                _answer(call, identity if known else None, index)
            elif calls and calls[-1].stop == index:
                calls[-1].stop = index + 1
            else:
                calls.append(_Call(index, index + 1))
    return _merged(calls)


def units(messages: Sequence[Mapping[str, Any]]) -> tuple[range, ...]:
    """All messages in order, cut into what a policy may keep or drop: a tool group, or one message outside of any."""
    cut: list[range] = []
    done = 0
    for group in tool_groups(messages):
        cut += [range(index, index + 1) for index in range(done, group.start)]
        cut.append(group.range)
        done = group.stop
    return tuple(cut + [range(index, index + 1) for index in range(done, len(messages))])


def turn_boundaries(messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Indices at which a turn starts, in order. A cut there splits no tool group and parts no question from its reply.

    The first turn starts behind the system messages at the top. From then on a turn starts with the first message of
    a user (or whoever is neither the model nor a tool) behind a reply, and with each tool group that follows
    another directly: one step of an agent that nobody interrupts.
    """
    boundaries: list[int] = []
    before: str | None = None
    for unit in units(messages):
        role = _GROUP if _is_group(messages, unit) else cast("str", messages[unit.start]["role"])
        if before is None and role in SYSTEM_ROLES:
            continue
        asks = role not in _REPLIES
        if before is None or (before in _REPLIES and asks) or (before == role == _GROUP):
            boundaries.append(unit.start)
        before = role
    return tuple(boundaries)


def _is_group(messages: Sequence[Mapping[str, Any]], unit: range) -> bool:
    first = messages[unit.start]
    return len(unit) > 1 or first["role"] in _RESULT_ROLES or _call_ids(first) is not None


def _call_ids(message: Mapping[str, Any]) -> list[str | None] | None:
    """The ids of a message's calls, None for one without; None when it calls nothing."""
    if message["role"] != "assistant":
        return None
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:
        found = [cast("dict[str, Any]", call).get("id") for call in cast("list[Any]", calls) if isinstance(call, dict)]
        return [one if isinstance(one, str) else None for one in found]
    # The form of the API before tool calls: one call, without an id.
    return [None] if message.get("function_call") else None


def _answer(call: _Call, identity: str | None, index: int) -> None:
    call.stop = index + 1
    if identity is None:
        call.unmatched -= 1
    else:
        call.unanswered.discard(identity)


def _merged(calls: Sequence[_Call]) -> tuple[ToolGroup, ...]:
    groups: list[ToolGroup] = []
    for call in calls:
        if groups and call.start < groups[-1].stop:
            last = groups.pop()
            groups.append(ToolGroup(last.start, max(last.stop, call.stop), last.is_open or call.is_open))
        else:
            groups.append(ToolGroup(call.start, call.stop, call.is_open))
    return tuple(groups)
