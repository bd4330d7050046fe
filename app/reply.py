"""The engine's reply as a message of the history: what the client will send back.

A stream is kept as it comes and read once, at its end: to read each event as it passes would cost every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json

_MAX_BYTES = 8 * 1024 * 1024


class ReplyCollector:
    """Collects the events of one stream. A stream of more than `max_bytes` is not read: the turn has no reply then."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._events: list[bytes] = []
        self._room = max_bytes

    def add(self, events: bytes) -> None:
        """Take whole events as the engine sent them."""
        self._room -= len(events)
        if self._room >= 0:
            self._events.append(events)
        else:
            self._events.clear()

    def message(self) -> Mapping[str, Any] | None:
        """The one reply that the stream held, whole; None where it held several, or none that ended."""
        text: list[str] = []
        refusal: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        ended = False
        for choice in self._choices():
            if choice.get("index"):
                return None
            delta: Any = choice.get("delta") or {}
            if isinstance(piece := delta.get("content"), str):
                text.append(piece)
            if isinstance(piece := delta.get("refusal"), str):
                refusal.append(piece)
            for call in delta.get("tool_calls") or ():
                _merge(calls, call)
            ended = ended or choice.get("finish_reason") is not None
        if not ended:
            return None
        made: dict[str, Any] = {"content": "".join(text) if text else None}
        if refusal:
            made["refusal"] = "".join(refusal)
        if calls:
            made["tool_calls"] = [calls[index] for index in sorted(calls)]
        return made

    def _choices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for event in b"".join(self._events).split(b"\n\n"):
            if not event.startswith(b"data:") or b'"choices"' not in event:
                continue
            try:
                data: Any = from_json(event.removeprefix(b"data:"))
            except ValueError:
                continue
            if isinstance(data, dict):
                found += cast("dict[str, Any]", data).get("choices") or ()
        return found


def reply_of(data: Any) -> Mapping[str, Any] | None:
    """The one reply of an answer that was not streamed; None where it holds several or none that ended."""
    choices: Any = cast("dict[str, Any]", data).get("choices") if isinstance(data, dict) else None
    found = cast("list[Any]", choices) if isinstance(choices, list) else []
    if len(found) != 1:
        return None
    only = found[0]
    choice = cast("dict[str, Any]", only) if isinstance(only, dict) else {}
    message = choice.get("message")
    if not isinstance(message, dict) or choice.get("finish_reason") is None:
        return None
    return cast("dict[str, Any]", message)


def _merge(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    """Add a piece of a tool call: its first piece names it, all have pieces of its arguments."""
    if not isinstance(piece, dict):
        return
    given = cast("dict[str, Any]", piece)
    call = calls.setdefault(given.get("index") or 0, {"id": None, "type": "function", "function": {}})
    call["id"] = given.get("id") or call["id"]
    function: dict[str, Any] = given.get("function") or {}
    whole = cast("dict[str, Any]", call["function"])
    whole["name"] = function.get("name") or whole.get("name")
    whole["arguments"] = whole.get("arguments", "") + (function.get("arguments") or "")
