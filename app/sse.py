"""The engine's event stream on its way to the client: usage is read, and taken out where it was not asked for, and only
what is an answer goes on.

Chunks go on as they come; they are looked into only at event boundaries, and parsed only when they speak of usage or
of an error, or do not look like a piece of an answer.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json, to_json

from app.public import is_private, public_error
from app.reply import is_answer
from context.errors import EngineError, EngineProtocolError
from metrics.usage import usage_of

DONE = b"data: [DONE]\n\n"
_DONE_MARK = b"[DONE]"
_MAX_EVENT_BYTES = 16 * 1024 * 1024
_DATA = (b"data: {", b"data:{")
_KEEP_ALIVE = b":\n\n"
_BOM = b"\xef\xbb\xbf"
# The fields that say something besides the data, each with a value that is a word or a number.
_FIELD = re.compile(rb"(?:event|id): ?([\w.:-]{0,128})|retry: ?[0-9]{1,9}")
_ERROR_FIELD = re.compile(rb"event: ?error[ \t]*", re.IGNORECASE)


def error_events(error: EngineError) -> bytes:
    """How a stream ends that cannot go on: the error as an event, and the end mark."""
    return b"data: " + to_json(error.body()) + b"\n\n" + DONE


class EventRelay:
    """Relays one stream. What is no answer goes on as an error in our own words, and nothing of the engine's behind it.
    A comment goes on without its text, so that it still keeps the connection alive; of other lines those that every
    client knows.

    `usage` holds the last usage that the engine reported; `failed` whether it said an error or broke off; `done`
    whether the end mark has come. All are set before the bytes that tell the client the same are given.
    """

    def __init__(
        self,
        *,
        include_usage: bool,
        collect: Callable[[bytes], None] = lambda _: None,
        max_event_bytes: int = _MAX_EVENT_BYTES,
        last_event: bytes = b"",
    ) -> None:
        """`collect` is given every whole event as the engine sent it, before it goes on. `last_event` goes on right
        before the end mark, unless the stream failed."""
        self._include_usage = include_usage
        self._collect = collect
        self._max_event_bytes = max_event_bytes
        self._last_event = last_event
        self._cut = _Events()
        self.usage: dict[str, Any] | None = None
        self.failed = False
        self.done = False

    async def relay(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The client's bytes for the engine's bytes. An engine that breaks off ends in an error event and the end
        mark, so that every stream ends well-formed."""
        try:
            async for chunk in chunks:
                if (whole := self._cut.feed(chunk)) and (out := self._look_into(whole)):
                    yield out
                if self._cut.waiting_bytes > self._max_event_bytes:
                    raise EngineProtocolError("The engine sent an event that is too long.")
            if (whole := self._cut.finish()) and _is_whole(whole) and (out := self._look_into(whole)):
                yield out
            if not self.done and not self.failed:
                raise EngineProtocolError("The engine broke off in the middle of its answer.")
        except EngineError as error:
            if self.done:
                # The answer is whole; what the engine does after its end mark is nothing to the client.
                return
            said, self.failed = self.failed, True
            yield DONE if said else error_events(error)
            return
        if not self.done:
            yield DONE

    def _look_into(self, events: bytes) -> bytes:
        if self.done:
            # What comes behind the end mark is nothing to the client.
            return b""
        self._collect(events)
        if not self.failed and events.find(b"\n") == len(events) - 2 and _is_plain(events):
            return events
        pieces = [piece for event in events.split(b"\n\n") if (piece := event.strip(b"\n"))]
        return b"".join([self._event(piece) for piece in pieces])

    def _event(self, raw: bytes) -> bytes:
        """One event as it goes on: with its closing blank line, changed, or empty when it is left out."""
        if self.done:
            return b""
        if not self.failed and b"\n" not in raw and _is_plain(raw):
            return raw + b"\n\n"
        event = _read(raw)
        if event.data == _DONE_MARK:
            self.done = True
            return (b"" if self.failed else self._last_event) + event.kept + b"\n\n"
        if not event.data and not event.is_error:
            # Nothing is told, but the connection lives.
            return b"" if self.failed else event.others + b"\n" if event.others else _KEEP_ALIVE
        body = _object(event.data)
        if (usage := usage_of(body)) is not None:
            self.usage = dict(usage)
        if self.failed:
            return b""
        if event.is_error or not _is_piece(body):
            self.failed = True
            return event.others + b"data: " + to_json(public_error(body, 500)[1]) + b"\n\n"
        if self._include_usage or "usage" not in body:
            return event.kept + b"\n\n"
        if not body.get("choices") and body["usage"] is not None:
            return b""
        kept = {key: value for key, value in body.items() if key != "usage"}
        return event.others + b"data: " + to_json(kept) + b"\n\n"


class _Events:
    """Cuts a stream into whole events, whatever the chunks are. Line ends become newlines."""

    def __init__(self) -> None:
        self._rest = bytearray()
        # A carriage return at a chunk's end may be half of a line end.
        self._half_line_end: bool = False

    @property
    def waiting_bytes(self) -> int:
        return len(self._rest)

    def feed(self, chunk: bytes) -> bytes:
        """All events that are whole now."""
        if self._half_line_end or b"\r" in chunk:
            chunk = b"\r" + chunk if self._half_line_end else chunk
            self._half_line_end = chunk.endswith(b"\r")
            chunk = chunk.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not self._rest:
            if chunk.endswith(b"\n\n"):
                return chunk
            self._rest += chunk
            start = 0
        else:
            # What was searched before is not searched again: a long event may come in many small chunks.
            start = len(self._rest) - 1
            self._rest += chunk
        at = self._rest.rfind(b"\n\n", start)
        if at < 0:
            return b""
        whole = bytes(self._rest[: at + 2])
        del self._rest[: at + 2]
        return whole

    def finish(self) -> bytes:
        """What is left when the stream has ended, as an event."""
        rest = bytes(self._rest) + (b"\n" if self._half_line_end else b"")
        self._rest.clear()
        return rest.rstrip(b"\n") + b"\n\n" if rest.strip() else b""


@dataclass(slots=True)
class _Event:
    """An event's lines. `kept` are those that may go on, `others` those of them that are not data, each with its
    newline; `data` is joined as a client would; `is_error` when it is called one."""

    kept: bytes
    others: bytes
    data: bytes
    is_error: bool


def _is_plain(event: bytes) -> bool:
    """Whether an event of one line is surely a piece of an answer without usage. A quote in a text has a backslash, so
    that these are keys."""
    has_choices = b'"choices":[{' in event or b'"choices": [{' in event
    return has_choices and event.startswith(_DATA) and b'"error"' not in event and b'"usage"' not in event


def _is_whole(rest: bytes) -> bool:
    """Whether the lines at a stream's end, which no blank line closes, are an event. Half an event is none."""
    data = _read(rest).data
    return data == _DONE_MARK or bool(_object(data))


def _is_piece(body: dict[str, Any]) -> bool:
    """Whether a parsed event is a piece of an answer: it has choices, or the usage alone."""
    if body.get("choices") is None and usage_of(body) is not None:
        body = {**body, "choices": []}
    return is_answer(body)


def _read(raw: bytes) -> _Event:
    kept, others, data = list[bytes](), list[bytes](), list[bytes]()
    is_error = False
    for line in raw.removeprefix(_BOM).split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            kept.append(line)
        elif _ERROR_FIELD.fullmatch(line):
            is_error = True
            others.append(b"event: error\n")
        elif (field := _FIELD.fullmatch(line)) and not is_private((field[1] or b"").decode("ascii")):
            kept.append(line)
            others.append(line + b"\n")
    return _Event(b"\n".join(kept), b"".join(others), b"\n".join(data).strip(), is_error)


def _object(data: bytes) -> dict[str, Any]:
    """The data as a JSON object; what is none is an empty one."""
    try:
        value: Any = from_json(data)
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
