"""Tells the gateway what the pool did, over a local socket beside those of the engine's other events."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from dataclasses import astuple
from typing import Any

import msgspec
import zmq

from engine.base import ImageReuse
from engine.vllm.image_kv.stats import PoolStats

_QUEUE_EVENTS = 100_000


class Reporter:
    """Sends `[sequence, seconds, kind, values]`: kind is `request` or `pool`, values are those of
    `engine.base.ImageReuse` or `ImagePoolState`, in their order.

    A reader that is not there or too slow loses messages, which shows as a gap in the sequence; the engine never waits.
    """

    def __init__(self, endpoint: str = "") -> None:
        self._sequence = 0
        self._socket: zmq.Socket[bytes] | None = None
        if endpoint:
            socket = zmq.Context.instance().socket(zmq.PUSH)
            socket.set(zmq.SNDHWM, _QUEUE_EVENTS)
            socket.set(zmq.LINGER, 0)
            socket.connect(endpoint)
            self._socket = socket

    def request(self, reuse: ImageReuse) -> None:
        """A request that opted in is over; it has vLLM's name."""
        if self._socket is None:
            return
        # It imports vLLM, which whoever reports has loaded.
        from engine.vllm.encoder_cache import gateway_request_id

        self._send("request", [gateway_request_id(reuse.request_id), *astuple(reuse)[1:]])

    def pool(self, requests: int, holds: int, capturing: int, stats: PoolStats) -> None:
        """The pool has changed."""
        files = astuple(stats.files)
        self._send("pool", [requests, holds, capturing, *astuple(stats)[:-1], *map(int, files)])

    def close(self) -> None:
        """Let the socket go."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def _send(self, kind: str, values: list[Any]) -> None:
        if self._socket is None:
            return
        message = msgspec.msgpack.encode([self._sequence, time.time(), kind, values])
        self._sequence += 1
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return
