"""A light HTTP/1.1 client for measuring: prebuilt requests on kept-alive connections, a parser in C, nothing else.

What the client costs is in every figure, so it has to cost little: about a tenth of a client library's time a request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import httptools

from metrics.bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. Times are from before the request was written."""

    status: int
    body: bytes
    first_byte_seconds: float
    total_seconds: float


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._body: list[bytes] = []
        self._began = self._first_byte = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def send(self, request: bytes) -> Reply:
        """Send a request and give its whole answer.

        Raises:
            BenchError: the connection ended before the answer did.
        """
        assert self._transport is not None
        assert self._waiter is None, "one request at a time"
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._first_byte = [], 0.0
        self._waiter = asyncio.get_running_loop().create_future()
        self._began = time.perf_counter()
        if self.closed:
            raise BenchError("A server closed a connection that was at rest.")
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    @property
    def closed(self) -> bool:
        """Whether either side has closed it."""
        return self._transport is None or self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        if not self._first_byte:
            self._first_byte = time.perf_counter()
        if self._parser is not None:
            self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        now = time.perf_counter()
        if self._waiter is not None and not self._waiter.done():
            status: int = self._parser.get_status_code()
            seconds = (self._first_byte - self._began, now - self._began)
            self._waiter.set_result(Reply(status, b"".join(self._body), *seconds))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(BenchError("A server closed a connection in the middle of an answer."))

    def leave(self) -> None:
        """Close the connection at once, whatever is still on it."""
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int) -> Connection:
    """A new connection to a server on this machine."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Connection, "127.0.0.1", port)
    return connection


def http_request(method: str, path: str, body: bytes = b"") -> bytes:
    """A request as it stands on the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def fetch(port: int, path: str) -> Reply:
    """One GET on a connection of its own."""
    connection = await connect(port)
    try:
        return await connection.send(http_request("GET", path))
    finally:
        connection.leave()


async def one_after_another(connection: Connection, request: bytes, count: int) -> list[float]:
    """Seconds of each of `count` requests.

    Raises:
        BenchError: one was not answered with 200.
    """
    return [expect_ok(await connection.send(request)).total_seconds for _ in range(count)]


async def at_a_time(port: int, clients: int, count: int, make: Callable[[int], Awaitable[bytes]]) -> float:
    """Send `count` requests, `clients` at a time; gives the seconds that all of them took. `make` gives the nth one.

    Raises:
        BenchError: one was not answered with 200.
    """
    numbers = iter(range(count))

    async def client(connection: Connection) -> None:
        try:
            for number in numbers:
                request = await make(number)
                if connection.closed:
                    # A server may close a connection that rests while a request is being made.
                    connection = await connect(port)
                expect_ok(await connection.send(request))
        finally:
            connection.leave()

    connections = [await connect(port) for _ in range(clients)]
    began = time.perf_counter()
    await all_of([client(connection) for connection in connections])
    return time.perf_counter() - began


async def all_of(work: Sequence[Awaitable[None]]) -> None:
    """Run all; when one fails, end the others and raise its error."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def expect_ok(reply: Reply) -> Reply:
    """The reply, if it is a success.

    Raises:
        BenchError: it is not.
    """
    if reply.status != 200:
        words = reply.body[:300].decode("utf-8", "replace")
        raise BenchError(f"A request was answered with {reply.status} instead of 200: {words}")
    return reply


def quantile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of a sample that is not empty."""
    ranked = sorted(samples)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
