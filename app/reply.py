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
            delta = _object(choice.get("delta"))
            if isinstance(piece := delta.get("content"), str):
                text.append(piece)
            if isinstance(piece := delta.get("refusal"), str):
                refusal.append(piece)
            for call in _list(delta.get("tool_calls")):
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
            found += [_object(choice) for choice in _list(_object(data).get("choices"))]
        return found


def is_answer(data: Mapping[str, Any]) -> bool:
    """Whether an engine's answer, or a stream's event, is one: it has a list of choices and says no error, neither for
    all nor for one of them. An engine may say an error with the status 200."""
    choices = data.get("choices")
    if not isinstance(choices, list) or data.get("error") is not None or data.get("object") == "error":
        return False
    for choice in cast("list[Any]", choices):  # all() takes three times as long for one
        if not isinstance(choice, dict) or cast("dict[str, Any]", choice).get("error") is not None:
            return False
    return True


def reply_of(data: Any) -> Mapping[str, Any] | None:
    """The one reply of an answer that was not streamed; None where it holds an error, several, none that ended, or one
    that no client could send back."""
    answer = _object(data)
    choices = _list(answer.get("choices")) if is_answer(answer) else []
    choice = _object(choices[0]) if len(choices) == 1 else {}
    message = choice.get("message")
    if not isinstance(message, dict) or choice.get("finish_reason") is None:
        return None
    found = cast("dict[str, Any]", message)
    return found if _is_readable(found) else None


def _is_readable(message: Mapping[str, Any]) -> bool:
    """Whether content and calls are what they are in a request, too."""
    content, calls = message.get("content"), message.get("tool_calls")
    parts = [_object(part) for part in _list(content)]
    if isinstance(content, list) and not all(isinstance(part.get("text"), str) for part in parts):
        return False
    if not (content is None or isinstance(content, (str, list))) or not (calls is None or isinstance(calls, list)):
        return False
    return all(isinstance(call, dict) and isinstance(_object(call).get("id") or "", str) for call in _list(calls))


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; what an engine has put in its place is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _merge(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    """Add a piece of a tool call: its first piece names it, all have pieces of its arguments."""
    given = _object(piece)
    if not given:
        return
    index = given.get("index")
    call = calls.setdefault(index if isinstance(index, int) else 0, {"id": None, "type": "function", "function": {}})
    call["id"] = _text(given.get("id")) or call["id"]
    function = _object(given.get("function"))
    whole = cast("dict[str, Any]", call["function"])
    whole["name"] = _text(function.get("name")) or whole.get("name")
    whole["arguments"] = whole.get("arguments", "") + _text(function.get("arguments"))
