"""Tells the gateway what the pool did, over a local socket beside those of the engine's other events."""

from __future__ import annotations

from dataclasses import astuple

from engine.base import ImageReuse
from engine.vllm.event_socket import EventSocket, gateway_request_id
from engine.vllm.image_kv.stats import PoolStats


class Reporter:
    """Sends `request` and `pool`, with the values of `engine.base.ImageReuse` and `ImagePoolState` in their order.

    Args:
        endpoint: where the gateway listens; empty: nothing is sent.
    """

    def __init__(self, endpoint: str = "") -> None:
        self._events = EventSocket(endpoint)

    def request(self, reuse: ImageReuse) -> None:
        """A request that opted in is over; it has vLLM's name."""
        self._events.send("request", [gateway_request_id(reuse.request_id), *astuple(reuse)[1:]])

    def pool(self, requests: int, holds: int, capturing: int, stats: PoolStats) -> None:
        """The pool has changed."""
        self._events.send("pool", pool_values(requests, holds, capturing, stats))

    def close(self) -> None:
        """Let the socket go."""
        self._events.close()


def pool_values(requests: int, holds: int, capturing: int, stats: PoolStats) -> list[int]:
    """The values of `engine.base.ImagePoolState` in their order."""
    return [requests, holds, capturing, *astuple(stats)[:-1], *map(int, astuple(stats.files))]
