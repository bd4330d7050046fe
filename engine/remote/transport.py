"""One HTTP request to an upstream and its answer, over a pool of kept-alive connections.

The client is our own, because a library's was half of the cost of a small request: docs/adr/0006-own-http-client.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from yarl import URL

from context.errors import EngineError, EngineProtocolError, EngineTimeout, EngineUnavailable
from engine.base import EngineReply
from engine.remote.answer import Answer
from engine.remote.dial import Place, default_trust, dial
from engine.remote.http1 import Broken, Connection
from engine.remote.request import request_head
from engine.remote.settings import RemoteSettings

# What of an upstream's response headers may go on to a client: nothing that names its machines or sets state.
_SAFE_HEADERS = frozenset((b"content-type", b"x-request-id", b"retry-after"))
_SAFE_PREFIXES = (b"x-ratelimit-", b"openai-")
_WITH_BODY = frozenset(("POST", "PUT", "PATCH"))


class AttemptFailed(Exception):
    """One try ended before the first byte of an answer. `error` is what the caller gets when there is no other try.

    `kind` says what another try would risk:
        unreachable   no connection, so nothing was sent
        busy          no connection was free in time, so nothing was sent
        stale         a kept-alive connection ended under the request; most likely it was closed before it was read
        unknown       the request may have been executed
    """

    def __init__(self, error: EngineError, kind: str) -> None:
        super().__init__(error.message)
        self.error, self.kind = error, kind


class Transport:
    """Connections to one upstream. Used in one event loop; `close` frees all of them."""

    def __init__(self, settings: RemoteSettings, base: URL) -> None:
        """`base` is any URL of the upstream: scheme, host and port are the same in all of them."""
        self._settings = settings
        self._place = Place(base.raw_host or "", base.port or 0, base.scheme == "https")
        self._host = base.host_port_subcomponent or ""
        self._trust: ssl.SSLContext | None = None
        self._slots = asyncio.Semaphore(settings.connections)
        # What has a socket or is about to. What rests is taken from the end: the longest at rest are let go.
        self._alive: set[Connection] = set()
        self._resting: dict[Connection, None] = {}
        self._dialing: set[asyncio.Timeout] = set()
        self._closed = False
        self._emptied = asyncio.Event()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def close(self) -> None:
        """Close every connection; whoever waits for one of them gets EngineUnavailable."""
        self._closed = True
        for limit in self._dialing:
            if not limit.expired():
                limit.reschedule(0)
        for connection in tuple(self._alive):
            connection.abort()
        if self._alive:
            await self._emptied.wait()

    def send(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str],
        body: Sequence[bytes] = (),
        read_timeout_seconds: float | None = None,
    ) -> AbstractAsyncContextManager[EngineReply]:
        """Send a request and give its answer as soon as the headers are there. Leaving early closes the connection.

        Of `url` path and query count. Names in `headers` are in lower case.

        Raises:
            RequestError: (on entering) the request cannot be written as HTTP; nothing was sent.
            AttemptFailed: (on entering) there was no answer, or none that can be passed on.
            EngineTimeout, EngineProtocolError, EngineUnavailable: (while iterating the chunks) it broke off.
        """
        wait = self._settings.read_timeout_seconds if read_timeout_seconds is None else read_timeout_seconds
        return _Exchange(self, method, url, headers, body, wait)

    def head(self, method: str, url: URL, headers: Mapping[str, str], body: Sequence[bytes]) -> bytes:
        """A request's head. Raises RequestError as `send` says."""
        length = sum(map(len, body)) if body or method in _WITH_BODY else None
        return request_head(method, url.raw_path_qs, self._host, headers, length)

    async def take_slot(self, wait_seconds: float) -> None:
        """Wait for one's turn to have a connection.

        Raises:
            AttemptFailed: it did not come in time.
        """
        if self._slots.locked():
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._slots.acquire()
            except TimeoutError as error:
                busy = EngineTimeout("All connections to the upstream engine are busy; try again later.")
                raise AttemptFailed(busy, "busy") from error
        else:
            await self._slots.acquire()

    def free_slot(self) -> None:
        """Let the next request have its turn."""
        self._slots.release()

    def rested(self) -> Connection | None:
        """A connection that is open already, if there is one."""
        while self._resting:
            connection, _ = self._resting.popitem()
            if connection.wake():
                return connection
        return None

    async def open(self) -> Connection:
        """A new connection.

        Raises:
            AttemptFailed: there is none to be had.
        """
        if self._closed:
            raise self._stopping()
        connection = Connection(self._gone)
        self._alive.add(connection)
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds) as limit:
                self._dialing.add(limit)
                try:
                    await self._dial(connection)
                finally:
                    self._dialing.discard(limit)
        except BaseException as error:
            connection.abort()
            # uvloop closes what it was about to give without a word to it.
            self._gone(connection)
            if isinstance(error, OSError):
                raise (self._stopping() if self._closed else _unreachable(error)) from error
            raise
        return connection

    async def _dial(self, connection: Connection) -> None:
        if self._place.secure and self._trust is None:
            # Reading the system's certificates would hold up the event loop.
            self._trust = await asyncio.to_thread(default_trust)
        await dial(self._place, lambda: connection, self._trust)

    def leave(self, connection: Connection) -> None:
        """A request on a connection is over, its answer read to the end or not."""
        if connection.rest(self._settings.keep_alive_seconds):
            self._resting[connection] = None

    def _gone(self, connection: Connection) -> None:
        self._resting.pop(connection, None)
        self._alive.discard(connection)
        if self._closed and not self._alive:
            self._emptied.set()

    def failure(self, broken: Broken, connection: Connection) -> AttemptFailed:
        """A connection that ended before its answer began, in words for the caller."""
        if self._closed:
            return self._stopping()
        if broken.fault == "silent":
            return AttemptFailed(EngineTimeout("The upstream engine did not answer in time."), "unknown")
        if broken.fault == "deaf":
            return AttemptFailed(EngineTimeout("The upstream engine did not take the request in time."), "unknown")
        if broken.fault == "garbled":
            return AttemptFailed(EngineProtocolError("The upstream engine's answer is not HTTP."), "unknown")
        words = "The upstream engine closed the connection before it answered."
        stale = connection.reused and not connection.answer.heard
        return AttemptFailed(EngineUnavailable(words), "stale" if stale else "unknown")

    def interruption(self, broken: Broken) -> EngineError:
        """A connection that ended in the middle of its answer, in words for the caller."""
        if self._closed:
            return EngineUnavailable("The gateway is stopping.")
        if broken.fault in ("silent", "deaf"):
            return EngineTimeout("The upstream engine stopped answering in the middle of its answer.")
        return EngineProtocolError("The upstream engine broke off in the middle of its answer.")

    def _stopping(self) -> AttemptFailed:
        return AttemptFailed(EngineUnavailable("The gateway is stopping."), "unknown")


class _Exchange(AbstractAsyncContextManager[EngineReply]):
    """One request and its answer, whose chunks it iterates. Generators for the two were a measurable part of both."""

    __slots__ = ("_body", "_connection", "_headers", "_method", "_transport", "_url", "_wait")

    def __init__(
        self,
        transport: Transport,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        wait: float,
    ) -> None:
        self._transport, self._method, self._url = transport, method, url
        self._headers, self._body, self._wait = headers, body, wait
        self._connection: Connection | None = None

    async def __aenter__(self) -> EngineReply:
        transport = self._transport
        head = transport.head(self._method, self._url, self._headers, self._body)
        await transport.take_slot(self._wait)
        try:
            connection = self._connection = transport.rested() or await transport.open()
            connection.send(head, self._body, self._wait, bodiless=self._method == "HEAD")
            try:
                await connection.answered()
            except Broken as broken:
                raise transport.failure(broken, connection) from broken
            answer = connection.answer
            return EngineReply(answer.status, _passed_on(answer), self)
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._leave()

    def __aiter__(self) -> _Exchange:
        return self

    async def __anext__(self) -> bytes:
        if self._connection is None:
            raise EngineProtocolError("The upstream engine's answer was left before its end.")
        try:
            chunk = await self._connection.piece()
        except Broken as broken:
            raise self._transport.interruption(broken) from broken
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._transport.leave(connection)
        self._transport.free_slot()


def _unreachable(error: OSError) -> AttemptFailed:
    """Why there is no connection, in our words."""
    if isinstance(error, TimeoutError):
        return AttemptFailed(EngineTimeout("The upstream engine did not take the connection in time."), "unreachable")
    if isinstance(error, ssl.SSLCertVerificationError):
        words = "The upstream engine's certificate is not trusted."
    elif isinstance(error, ssl.SSLError):
        words = "The upstream engine does not speak TLS; if its address is right, write it with http instead of https."
    else:
        words = "The upstream engine cannot be reached."
    return AttemptFailed(EngineUnavailable(words), "unreachable")


def _passed_on(answer: Answer) -> dict[str, str]:
    """The headers of an answer that go on to a client.

    Raises:
        AttemptFailed: the answer cannot be passed on.
    """
    if 300 <= answer.status < 400:
        words = "The upstream engine answered with a redirect; set its final address as the upstream."
        raise AttemptFailed(EngineProtocolError(words), "unknown")
    if answer.fields.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        words = "The upstream engine compressed its answer although it was asked not to."
        raise AttemptFailed(EngineProtocolError(words), "unknown")
    return {
        name.decode("latin-1"): value.decode("latin-1").strip()
        for name, value in answer.fields.items()
        if name in _SAFE_HEADERS or name.startswith(_SAFE_PREFIXES)
    }
