"""Where turn records go beside the gateway's own file."""

from __future__ import annotations

from typing import Protocol

from metrics.records.record import TurnRecord


class TurnExporter(Protocol):
    """Takes turn records as they are made. Called from one event loop."""

    def put(self, record: TurnRecord, traceparent: str | None = None) -> None:
        """Hand a record on. Never raises and never waits: what cannot be handed on is dropped.

        Args:
            record: the turn.
            traceparent: the client's W3C header of that name, as it came.
        """
        ...

    async def close(self) -> None:
        """Send what was put, within some seconds, and end it. What is put afterwards is dropped."""
        ...


class NoExporter:
    """Takes records nowhere."""

    def put(self, record: TurnRecord, traceparent: str | None = None) -> None:
        """See `TurnExporter.put`."""

    async def close(self) -> None:
        """See `TurnExporter.close`."""
