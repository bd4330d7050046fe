"""The few HTTP pieces that every route uses: headers and paths, answering, and noticing that the client left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, cast
from urllib.parse import quote

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from context.errors import EngineError, EngineUnavailable, RequestError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
# What a client should wait before it tries again when the engine does not say it.
_RETRY_AFTER_SECONDS = 5
_LINGER_SECONDS = 2.0
_WATCH_AFTER_SECONDS = 0.005
_LAST_WORDS_SECONDS = 1.0
# Where in its scope a request says what is to be done when its client leaves. Ours is the server that does it, and has
# the name there from the beginning (app/protocol.py).
ON_LEAVING = "stillframe.on_leaving"
# Where a request's headers stand once one of them was asked for: each chat asks for ten.
_BY_NAME = "stillframe.headers"
_ERROR_HEADERS: Mapping[int, Headers] = {
    401: ((b"www-authenticate", b"Bearer"),),
    # The rest of the body may still be on its way; the connection cannot be used again.
    408: ((b"connection", b"close"),),
    413: ((b"connection", b"close"),),
}
_BUSY_SECONDS = 1


class ClientLeft(Exception):
    """The client closed its connection before the answer was complete."""


class MethodNotAllowed(RequestError):
    """This path takes other methods; they stand in the answer's `Allow`.

    Args:
        allowed: those that it takes; with GET goes HEAD.
        used: the request's.
    """

    def __init__(self, allowed: Sequence[str], used: str) -> None:
        super().__init__(f"Use {' or '.join(allowed)} here, not {used}.", code="method_not_allowed", status=405)
        self.allowed = ", ".join([*allowed, "HEAD"] if "GET" in allowed else allowed)


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header, or None. The first one, where it stands more than once."""
    values: dict[bytes, bytes] | None = scope.get(_BY_NAME)
    if values is None:
        values = scope[_BY_NAME] = dict(reversed(scope["headers"]))
    value = values.get(name)
    return None if value is None else value.decode("latin-1")


def one_header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header of ours, or None.

    Raises:
        RequestError: it stands there more than once, with values that differ.
    """
    value = header(scope, name)
    if value is None:
        return None
    others = {given.decode("latin-1").strip() for key, given in scope["headers"] if key == name}
    if len(others) > 1:
        shown = name.decode()
        raise RequestError(
            f"{shown} is given {len(others)} times with different values. Send it once.",
            code="repeated_header",
            param=shown,
        )
    return value


def list_header(scope: Scope, name: bytes) -> str | None:
    """The value of a request header that is a list, or None. All its lines, joined: a proxy may split one, and join it.

    Source: RFC 9110, 5.3.
    """
    if header(scope, name) is None:
        return None
    return ", ".join([given.decode("latin-1") for key, given in scope["headers"] if key == name])


def path(scope: Scope) -> str:
    """The request's path, decoded, below the prefix under which the gateway is mounted."""
    whole: str = scope["path"]
    prefix: str = scope.get("root_path") or ""
    return whole.removeprefix(prefix) if whole.startswith(f"{prefix}/") else whole


def raw_path(scope: Scope) -> str:
    """The request's path as it came, with its percent signs, below the same prefix."""
    whole: str = (scope.get("raw_path") or quote(scope["path"]).encode()).decode("latin-1")
    prefix = quote(scope.get("root_path") or "")
    return whole.removeprefix(prefix) if whole.startswith(f"{prefix}/") else whole


class cancelled_when_client_leaves:
    """Cancel what runs inside when the client closes its connection. The body must have been read.

    Our own server tells it at once. From others it is learned by a task that waits for it, which costs a tenth of a
    small request: what is over within `_WATCH_AFTER_SECONDS` goes without.

    Raises:
        ClientLeft: it did.
    """

    __slots__ = ("_cycle", "_left", "_receive", "_start", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = False
        self._watcher: asyncio.Task[None] | None = None
        self._start: asyncio.TimerHandle | None = None
        self._cycle = _telling(receive)

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        cycle = self._cycle
        if cycle is None:
            self._start = asyncio.get_running_loop().call_later(_WATCH_AFTER_SECONDS, self._begin)
            return
        if cycle.disconnected:
            raise ClientLeft
        cast("Scope", cycle.scope)[ON_LEAVING] = self._leave
        # Behind a large body nobody reads, and who does not read does not hear of it.
        cycle.flow.resume_reading()

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        # What holds itself is the collector's, with all of the request: the scope us, and the watcher's frame.
        if self._cycle is not None:
            cast("Scope", self._cycle.scope)[ON_LEAVING] = None
        if self._start is not None:
            self._start.cancel()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            # Once it is told to end it cannot cancel us any more, so there is no need to wait until it has.
            watcher.cancel()
        # Cancelled from elsewhere too: that goes first.
        if self._left and self._task.uncancel() == 0 and kind in (None, asyncio.CancelledError):
            raise ClientLeft from None

    def _begin(self) -> None:
        self._watcher = asyncio.create_task(self._watch(), name="stillframe-disconnect")

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self._left = True
        self._task.cancel()


def _telling(receive: Receive) -> RequestResponseCycle | None:
    """The server's side of a request, where it is our own server's, unwrapped."""
    owner = getattr(receive, "__self__", None)
    return owner if isinstance(owner, RequestResponseCycle) and ON_LEAVING in owner.scope else None


async def respond(send: Send, status: int, body: bytes, headers: Headers = (JSON,)) -> None:
    """Send one whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, value: Any, headers: Headers = ()) -> None:
    """Send one whole answer as JSON."""
    await respond(send, status, to_json(value), [JSON, *headers])


async def respond_error(
    send: Send, error: RequestError | EngineError, headers: Headers = (), receive: Receive | None = None
) -> None:
    """Send an error of ours as OpenAI's error body. With `receive`, a client that still sends gets to read it."""
    extra = [*headers, *_ERROR_HEADERS.get(error.status, ())]
    seconds = error.retry_after_seconds or {429: _BUSY_SECONDS, 503: _RETRY_AFTER_SECONDS}.get(error.status)
    if seconds is not None:
        extra.append((b"retry-after", str(seconds).encode()))
    if isinstance(error, MethodNotAllowed):
        extra.append((b"allow", error.allowed.encode()))
    if error.status != 413 or receive is None:
        await respond_json(send, error.status, error.body(), extra)
        return
    body = to_json(error.body())
    head = [JSON, *extra, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await _linger(receive)
    await send({"type": "http.response.body", "body": b""})


async def last_words(say: Callable[[EngineError], Awaitable[None]]) -> None:
    """Have a client told that its request is cut off since the gateway stops, and may be sent again.

    To be called where the server has cancelled the request's task, which goes on being cancelled afterwards. A client
    that does not read is waited for a second.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORDS_SECONDS):
            await say(EngineUnavailable("The gateway is stopping and has cut this request off; send it again."))


async def _linger(receive: Receive) -> None:
    """Throw away what a client still sends, for a moment.

    To close a connection with unread bytes makes the system reset it, and the client would lose the answer.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while (message := await receive())["type"] != "http.disconnect" and message.get("more_body", False):
                pass
