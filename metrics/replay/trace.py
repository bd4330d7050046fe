"""A recorded or generated session: what the client sent in each turn, whole, and what it got back.

As a file it has one JSON object a line: `{turn, messages, tools?, new?, reply?, limits?, expect?}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from pydantic_core import from_json, to_json

from context.errors import ConfigError

Wire = Mapping[str, Any]
_LIMITS = ("max_images", "max_prompt_tokens")


@dataclass(frozen=True, slots=True)
class Expect:
    """What is so about a turn, whatever is made of it.

    Attributes:
        first_diff: message and part, in this turn's messages, at which they stop meaning the same as the turn before
            and its reply; None where they extend them.
        unique_images: images with different pixels in this turn's messages.
        occurrences: image parts in them.
        eviction: whether images are gone that the turn before had.
    """

    first_diff: Mapping[str, int | None] | None
    unique_images: int
    occurrences: int
    eviction: bool


@dataclass(frozen=True, slots=True)
class TraceTurn:
    """One request of the client.

    Attributes:
        number: from 1.
        messages: all that the client sends.
        new: what comes up in this turn for the first time, as it was meant: mostly the last of the messages.
        reply: what the client got back, as it will stand in its history.
        tools: of the request; None for none.
        expect: None where nobody said.
    """

    number: int
    messages: tuple[Wire, ...]
    new: tuple[Wire, ...]
    reply: Wire
    tools: tuple[Wire, ...] | None = None
    expect: Expect | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A session. `limits` are those of the engine that it was made for: `max_images`, `max_prompt_tokens`."""

    name: str
    turns: tuple[TraceTurn, ...]
    limits: Mapping[str, int] = field(default_factory=dict[str, int])

    def everything(self, replies: Mapping[int, Wire] | None = None) -> list[Wire]:
        """The messages of the last turn as if nothing had ever been cut or changed.

        Args:
            replies: by turn, in place of the trace's own.
        """
        told = replies or {}
        whole = list(self.turns[0].messages)
        for before, turn in zip(self.turns, self.turns[1:], strict=False):
            whole.append(told.get(before.number, before.reply))
            whole += turn.new
        return whole


def write(trace: Trace, file: Path) -> None:
    """Write a trace to a file.

    Raises:
        OSError: it cannot be written.
    """
    with file.open("wb") as out:
        for turn in trace.turns:
            out.write(to_json(_line(trace, turn)) + b"\n")


def read(file: Path) -> Trace:
    """Read a trace from a file. `new` is a list of messages, or how many of the last ones. Where a line does not say,
    it is what stands behind the last reply, and `reply` is found in the next turn's messages.

    Raises:
        ConfigError: the file cannot be read, or is no trace; names the line.
    """
    try:
        lines = [line for line in file.read_bytes().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"trace {file.name}", "", f"cannot be read ({error.strerror}); check its name") from error
    if not lines:
        raise ConfigError(f"trace {file.name}", "", "is empty; a trace has one JSON object a line, one line a turn")
    parsed = [_parsed(file, number, line) for number, line in enumerate(lines, start=1)]
    turns = tuple(_turn(number, parsed) for number in range(1, len(parsed) + 1))
    return Trace(file.stem, turns, _limits(file, parsed[0].get("limits")))


def _line(trace: Trace, turn: TraceTurn) -> dict[str, Any]:
    made: dict[str, Any] = {"turn": turn.number, "messages": turn.messages}
    if turn.tools is not None:
        made["tools"] = turn.tools
    is_end = turn.messages[len(turn.messages) - len(turn.new) :] == turn.new
    made |= {"new": len(turn.new) if is_end else turn.new, "reply": turn.reply}
    if turn.number == 1 and trace.limits:
        made["limits"] = trace.limits
    if turn.expect is not None:
        made["expect"] = asdict(turn.expect)
    return made


def _parsed(file: Path, number: int, line: bytes) -> dict[str, Any]:
    where = f"trace {file.name}"
    try:
        value: Any = from_json(line)
    except ValueError as error:
        raise ConfigError(where, f"line {number}", "is not JSON") from error
    messages = cast("dict[str, Any]", value).get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ConfigError(where, f"line {number}", "needs messages: a list of at least one")
    for at, message in enumerate(cast("list[Any]", messages)):
        role = cast("dict[str, Any]", message).get("role") if isinstance(message, dict) else None
        content = cast("dict[str, Any]", message).get("content") if isinstance(message, dict) else None
        if not isinstance(role, str) or not (content is None or isinstance(content, str | list)):
            raise ConfigError(
                where, f"line {number}", f"messages[{at}] needs a role, and as content a string, a list or null"
            )
    return cast("dict[str, Any]", value)


def _limits(file: Path, told: Any) -> dict[str, int]:
    given = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    known = {key: given[key] for key in _LIMITS if given.get(key)}
    for key, value in known.items():
        if type(value) is not int or value < 1:
            raise ConfigError(f"trace {file.name}", "line 1", f"limits.{key} takes a whole number from 1 up")
    return known


def _turn(number: int, lines: Sequence[dict[str, Any]]) -> TraceTurn:
    line = lines[number - 1]
    messages: list[Wire] = line["messages"]
    new: Any = line.get("new")
    if not isinstance(new, list):
        count = new if isinstance(new, int) else len(messages) if number == 1 else _behind_reply(messages)
        new = messages[len(messages) - min(max(count, 0), len(messages)) :]
    reply: Any = line.get("reply")
    if not isinstance(reply, dict):
        reply = _last_reply(lines[number]["messages"]) if number < len(lines) else None
    told: Any = line.get("expect")
    tools: Any = line.get("tools")
    return TraceTurn(
        number,
        tuple(messages),
        tuple(cast("list[Wire]", new)),
        cast("Wire", reply) if reply else {"role": "assistant", "content": "Done."},
        tuple(cast("list[Wire]", tools)) if isinstance(tools, list) else None,
        _expect(cast("dict[str, Any]", told)) if isinstance(told, dict) else None,
    )


def _expect(told: Mapping[str, Any]) -> Expect | None:
    try:
        return Expect(told["first_diff"], told["unique_images"], told["occurrences"], told["eviction"])
    except KeyError:
        return None


def _behind_reply(messages: Sequence[Wire]) -> int:
    behind = next((at for at, message in enumerate(reversed(messages)) if message["role"] == "assistant"), 0)
    return max(1, behind)


def _last_reply(messages: Iterable[Wire]) -> Wire | None:
    return next((message for message in reversed(list(messages)) if message["role"] == "assistant"), None)
