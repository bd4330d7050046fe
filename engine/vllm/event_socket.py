"""How what runs in the engine core's process tells the gateway of it: a local socket, which never makes it wait."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
import time

import msgspec
import zmq

_QUEUE_EVENTS = 100_000
_INTERNAL_ID = re.compile(r"^(?:\d+_)?chatcmpl-(.+)-[0-9a-f]{8}$")


class EventSocket:
    """Sends `[sequence, seconds, kind, *values]`, in MessagePack.

    A reader that is not there or too slow loses events, which shows as a gap in the sequence.

    Args:
        endpoint: where the gateway listens; empty: nothing is sent.
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

    def send(self, kind: str, *values: object) -> None:
        """Tell of something that happened now."""
        if self._socket is None:
            return
        message = msgspec.msgpack.encode([self._sequence, time.time(), kind, *values])
        self._sequence += 1
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        """Let the socket go; nothing is sent after it."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None


def gateway_request_id(internal: str) -> str:
    """The gateway's request id in vLLM's own, `[n_]chatcmpl-<id>-<8 hex>`; the whole when it has another form."""
    match = _INTERNAL_ID.match(internal)
    return match[1] if match is not None else internal
