"""The engine's event stream on its way to the client: usage is read, and taken out where it was not asked for.

Chunks go on as they come; they are looked into only at event boundaries, and parsed only when they speak of usage or
of an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from pydantic_core import from_json, to_json

from app.public import public_error
from context.errors import EngineError, EngineProtocolError
from metrics.usage import usage_of

DONE = b"data: [DONE]\n\n"
_DONE_MARK = b"[DONE]"
_MAX_EVENT_BYTES = 16 * 1024 * 1024


def error_events(error: EngineError) -> bytes:
    """How a stream ends that cannot go on: the error as an event, and the end mark."""
    return b"data: " + to_json(error.body()) + b"\n\n" + DONE


class EventRelay:
    """Relays one stream.

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
            if (whole := self._cut.finish()) and (out := self._look_into(whole)):
                yield out
            if not self.done and not self.failed:
                raise EngineProtocolError("The engine broke off in the middle of its answer.")
        except EngineError as error:
            if self.done:
                # The answer is whole; what the engine does after its end mark is nothing to the client.
                return
            self.failed = True
            yield error_events(error)
            return
        if not self.done:
            yield DONE

    def _look_into(self, events: bytes) -> bytes:
        self._collect(events)
        if _DONE_MARK not in events and b'"usage"' not in events and b'"error"' not in events:
            return events
        return b"".join([self._event(event) for event in events.split(b"\n\n") if event])

    def _event(self, event: bytes) -> bytes:
        """One event as it goes on: with its closing blank line, changed, or empty when it is left out."""
        others, data = _fields(event)
        if data.strip() == _DONE_MARK:
            self.done = True
            return (b"" if self.failed else self._last_event) + event + b"\n\n"
        body = _object(data)
        if body is None:
            return event + b"\n\n"
        if body.get("error") is not None:
            self.failed = True
            return others + b"data: " + to_json(public_error(body, 500)[1]) + b"\n\n"
        if (usage := usage_of(body)) is not None:
            self.usage = dict(usage)
        if self._include_usage or "usage" not in body:
            return event + b"\n\n"
        if not body.get("choices") and body["usage"] is not None:
            return b""
        kept = {key: value for key, value in body.items() if key != "usage"}
        return others + b"data: " + to_json(kept) + b"\n\n"


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


def _fields(event: bytes) -> tuple[bytes, bytes]:
    """An event's lines: those that are not data, each with its newline, and the data, joined as a client would."""
    others, data = list[bytes](), list[bytes]()
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line:
            others.append(line + b"\n")
    return b"".join(others), b"\n".join(data)


def _object(data: bytes) -> dict[str, Any] | None:
    if b'"usage"' not in data and b'"error"' not in data:
        return None
    try:
        value: Any = from_json(data)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
