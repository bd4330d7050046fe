"""One HTTP request to an upstream and its answer, over a pool of kept-alive connections.

aiohttp was chosen by measuring: docs/adr/0003-http-client.md. Nothing of it shows outside of this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import cast
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from aiohttp.http_writer import StreamWriter
from aiohttp.tracing import Trace
from yarl import URL

from context.errors import EngineError, EngineProtocolError, EngineTimeout, EngineUnavailable
from engine.base import EngineReply
from engine.remote.settings import RemoteSettings

# What of an upstream's response headers may go on to a client: nothing that names its machines or sets state.
_SAFE_HEADERS = frozenset(("content-type", "x-request-id", "retry-after"))
_SAFE_PREFIXES = ("x-ratelimit-", "openai-")
_READ_BYTES = 256 * 1024
# A smaller piece of a body is written without waiting for room; what is large waits for all before it.
_SMALL_BYTES = 32 * 1024


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


class _Carrier:
    """The connection that a request went out on. aiohttp does not tell when the request fails."""

    __slots__ = ("protocol",)

    def __init__(self) -> None:
        self.protocol: object = None


_CARRIER: ContextVar[_Carrier] = ContextVar("stillframe_carrier")


class _SegmentBody(aiohttp.Payload):
    """A body sent piece by piece with a known length, so that megabytes of image are never joined or chunked."""

    # There is nothing to close, and it may be written again.
    _autoclose = True

    def __init__(self, segments: Sequence[bytes], write_timeout_seconds: float) -> None:
        super().__init__(segments, content_type="application/json")
        self._segments = segments
        self._size = sum(map(len, segments))
        self._write_timeout_seconds = write_timeout_seconds
        self._transport: asyncio.Transport | None = None

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._segments).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        stream = cast("StreamWriter", writer)
        # Kept because aiohttp forgets it when it closes the connection, which is when `abort` is needed.
        self._transport = stream.transport
        for segment in self._segments:
            if len(segment) < _SMALL_BYTES:
                await stream.write(segment, drain=False)
                continue
            # aiohttp's read timeout starts behind the body: an upstream that stops reading would hold us forever.
            async with asyncio.timeout(self._write_timeout_seconds):
                await stream.write(segment)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        await self.write(writer)

    def abort(self) -> None:
        """Drop the connection with whatever of the body it has not sent yet."""
        if self._transport is not None:
            self._transport.abort()


class _Connector(aiohttp.TCPConnector):
    """Knows how many requests a connection has carried."""

    def __init__(self, keep_alive_seconds: float) -> None:
        # The number of connections is bounded by `Transport`: aiohttp cannot tell a full pool from a dead peer.
        super().__init__(limit=0, keepalive_timeout=keep_alive_seconds)  # pyright: ignore[reportUnknownMemberType]
        self._uses: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        self._uses[protocol] = self._uses.get(protocol, 0) + 1
        _CARRIER.get().protocol = protocol
        return connection

    def reused(self, protocol: object) -> bool:
        """Whether a connection carried a request before the latest one."""
        return protocol is not None and self._uses.get(protocol, 0) > 1


class _Chunks:
    """The pieces of an answer as they arrive. Not a generator: one that is left half read would need a task to end."""

    def __init__(self, transport: Transport, response: aiohttp.ClientResponse) -> None:
        self._transport, self._response = transport, response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._response.content.readany()
        except TimeoutError as error:
            raise EngineTimeout("The upstream engine stopped answering in the middle of its answer.") from error
        except (aiohttp.ClientError, OSError) as error:
            if self._transport.closed:
                raise EngineUnavailable("The gateway is stopping.") from error
            raise EngineProtocolError("The upstream engine broke off in the middle of its answer.") from error
        if not chunk:
            raise StopAsyncIteration
        return chunk


class Transport:
    """Connections to one upstream. Made inside the event loop that uses it; `close` frees all of them."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.connections)
        self._sending: set[_SegmentBody] = set()
        self._connector = _Connector(settings.keep_alive_seconds)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=_READ_BYTES,
            skip_auto_headers=("content-type", "accept"),
            headers={"user-agent": "stillframe", "accept-encoding": "identity"},
        )
        self._timeout = self._timeouts(settings.read_timeout_seconds)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._session.closed

    async def close(self) -> None:
        """Close every connection; whoever waits for one of them gets EngineUnavailable."""
        # A peer that stopped reading would keep a half-sent body, and so its connection, open.
        for payload in tuple(self._sending):
            payload.abort()
        await self._session.close()

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

        Raises:
            AttemptFailed: (on entering) there was no answer, or none that can be passed on.
            EngineTimeout, EngineProtocolError, EngineUnavailable: (while iterating the chunks) it broke off.
        """
        wait = self._settings.read_timeout_seconds if read_timeout_seconds is None else read_timeout_seconds
        return _Exchange(self, method, url, headers, body, wait)

    async def take_slot(self, wait_seconds: float) -> None:
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

    async def respond(
        self, method: str, url: URL, headers: Mapping[str, str], payload: _SegmentBody | bytes | None, wait: float
    ) -> aiohttp.ClientResponse:
        """The answer to one request, its body unread.

        Raises:
            AttemptFailed: there was none.
        """
        carrier = _Carrier()
        _CARRIER.set(carrier)
        large = payload if isinstance(payload, _SegmentBody) else None
        if large is not None:
            self._sending.add(large)
        timeout = self._timeout if wait == self._settings.read_timeout_seconds else self._timeouts(wait)
        try:
            response = await self._session.request(
                method, url, data=payload, headers=headers, allow_redirects=False, timeout=timeout
            )
        except BaseException as error:
            if large is not None:
                self._sending.discard(large)
                large.abort()
            if self.closed and not _wanted(error):
                raise AttemptFailed(EngineUnavailable("The gateway is stopping."), "unknown") from error
            if isinstance(error, (aiohttp.ClientError, OSError)):
                raise _failure(error, payload is not None and self._connector.reused(carrier.protocol)) from error
            raise
        return response

    def sent(self, payload: _SegmentBody) -> None:
        """A body is no longer on its way."""
        self._sending.discard(payload)

    def _timeouts(self, read_seconds: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(
            total=None, sock_connect=self._settings.connect_timeout_seconds, sock_read=read_seconds
        )


class _Exchange(AbstractAsyncContextManager[EngineReply]):
    """One request and its answer. Written out: a generator for each was a measurable part of a small request."""

    __slots__ = ("_body", "_headers", "_method", "_payload", "_response", "_transport", "_url", "_wait")

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
        self._payload: _SegmentBody | bytes | None = None
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> EngineReply:
        await self._transport.take_slot(self._wait)
        try:
            if self._body or self._method in ("POST", "PUT", "PATCH"):
                small = sum(map(len, self._body)) < _SMALL_BYTES
                # What is small goes out with the headers; aiohttp does most for plain bytes.
                self._payload = b"".join(self._body) if small else _SegmentBody(self._body, self._wait)
            self._response = response = await self._transport.respond(
                self._method, self._url, self._headers, self._payload, self._wait
            )
            _check(response)
            return EngineReply(response.status, _safe(response), _Chunks(self._transport, response))
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._leave()

    def _leave(self) -> None:
        large = self._payload if isinstance(self._payload, _SegmentBody) else None
        if large is not None:
            self._transport.sent(large)
        if self._response is not None:
            # A connection goes back to the pool by itself once its answer was read to the end.
            unfinished = self._response.connection is not None
            self._response.close()
            if unfinished and large is not None:
                large.abort()
        self._transport.free_slot()


def _wanted(error: BaseException) -> bool:
    """Whether the caller itself ended the wait. aiohttp, too, cancels what still resolves a name when it is closed."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _failure(error: Exception, reused: bool) -> AttemptFailed:
    """A library's exception before the first byte, in our words."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return AttemptFailed(EngineTimeout("The upstream engine did not take the connection in time."), "unreachable")
    if isinstance(error, TimeoutError):
        return AttemptFailed(EngineTimeout("The upstream engine did not answer in time."), "unknown")
    if isinstance(error, (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)):
        words = "The upstream engine's certificate is not trusted."
        return AttemptFailed(EngineUnavailable(words), "unreachable")
    if isinstance(error, aiohttp.ClientConnectorError):
        return AttemptFailed(EngineUnavailable("The upstream engine cannot be reached."), "unreachable")
    if isinstance(error, (aiohttp.ClientResponseError, aiohttp.ClientPayloadError, aiohttp.InvalidURL)):
        return AttemptFailed(EngineProtocolError("The upstream engine's answer is not HTTP."), "unknown")
    words = "The upstream engine closed the connection before it answered."
    return AttemptFailed(EngineUnavailable(words), "stale" if reused else "unknown")


def _check(response: aiohttp.ClientResponse) -> None:
    if 300 <= response.status < 400:
        words = "The upstream engine answered with a redirect; set its final address as the upstream."
        raise AttemptFailed(EngineProtocolError(words), "unknown")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        words = "The upstream engine compressed its answer although it was asked not to."
        raise AttemptFailed(EngineProtocolError(words), "unknown")


def _safe(response: aiohttp.ClientResponse) -> dict[str, str]:
    pairs = ((name.lower(), value) for name, value in response.headers.items())
    return {name: value for name, value in pairs if name in _SAFE_HEADERS or name.startswith(_SAFE_PREFIXES)}
