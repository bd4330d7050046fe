"""Tells the gateway what the tiers hold and did, over the local socket of the pool of images' KV."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import time
from dataclasses import astuple

import msgspec
import zmq

from engine.base import BlockTierState

_QUEUE_EVENTS = 10_000


class Reporter:
    """Sends `[sequence, seconds, "tiers", values]`, the values of a `BlockTierState` in their order.

    A reader that is not there or too slow loses messages; the next one says all again. The engine never waits.
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

    def tell(self, state: BlockTierState) -> None:
        """Send the tiers as they are."""
        if self._socket is None:
            return
        message = msgspec.msgpack.encode([self._sequence, time.time(), "tiers", astuple(state)])
        self._sequence += 1
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Let the socket go."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
