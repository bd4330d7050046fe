"""The engine's event stream on its way to the client: usage is read, and taken out where it was not asked for.

Chunks go on as they come; they are looked into only at event boundaries, and parsed only when they speak of usage or
of an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

from pydantic_core import from_json, to_json

from app.public import public_error
from context.errors import EngineError

DONE = b"data: [DONE]\n\n"
_MAX_EVENT_BYTES = 16 * 1024 * 1024


class EventRelay:
    """Relays one stream. `usage` holds the last usage that the engine reported; `failed` whether it said an error."""

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self.usage: dict[str, Any] | None = None
        self.failed = False

    async def relay(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The client's bytes for the engine's bytes. An engine that breaks off ends in an error event."""
        rest = b""
        try:
            async for chunk in chunks:
                data = rest + chunk.replace(b"\r\n", b"\n") if rest or b"\r" in chunk else chunk
                end = data.rfind(b"\n\n") + 2
                if end < 2:
                    rest = data
                    if len(rest) > _MAX_EVENT_BYTES:
                        raise EngineError("The engine sent an event that is too long.")
                    continue
                whole, rest = data[:end], data[end:]
                out = whole if b'"usage"' not in whole and b'"error"' not in whole else self._look_into(whole)
                if out:
                    yield out
            if rest.strip():
                yield self._look_into(rest + b"\n\n")
        except EngineError as error:
            self.failed = True
            yield b"data: " + to_json(error.body()) + b"\n\n" + DONE

    def _look_into(self, events: bytes) -> bytes:
        return b"".join(self._event(event + b"\n\n") for event in events.split(b"\n\n") if event)

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data:") or (b'"usage"' not in event and b'"error"' not in event):
            return event
        try:
            data: Any = from_json(event[5:].strip())
        except ValueError:
            return event
        if not isinstance(data, dict):
            return event
        body = cast("dict[str, Any]", data)
        if body.get("error") is not None:
            self.failed = True
            return b"data: " + to_json(public_error(body, 500)[1]) + b"\n\n"
        if isinstance(usage := body.get("usage"), dict):
            self.usage = cast("dict[str, Any]", usage)
        if self._include_usage or "usage" not in body:
            return event
        if not body.get("choices") and body["usage"] is not None:
            return b""
        return b"data: " + to_json({key: value for key, value in body.items() if key != "usage"}) + b"\n\n"
