"""Calling an ASGI app in this process, without a socket: streaming, with backpressure and cancellation.

A client library's ASGI transport buffers the whole answer and cannot leave early. Here each body message becomes a
chunk at once, the app waits when its reader is slow, and leaving the context is the client hanging up: the app
receives `http.disconnect`, has a moment to end, and is cancelled after it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

from context.errors import EngineProtocolError, EngineUnavailable
from engine.base import EngineReply

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
SendMessage = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[MutableMapping[str, Any], Receive, SendMessage], Awaitable[None]]

_BUFFERED_BYTES = 1024 * 1024
_BUFFERED_CHUNKS = 64


class _Exchange:
    """One request and its answer. The app's task lives as long as the exchange and no longer."""

    def __init__(self, body: Sequence[bytes]) -> None:
        self.task: asyncio.Task[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self._body = deque(segment for segment in body if segment)
        self._body_sent = False
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._left = asyncio.Event()
        self._news = asyncio.Event()  # an answer started or went on, or the task ended
        self._room = asyncio.Event()
        self._room.set()
        self.complete = False

    async def receive(self) -> Message:
        if not self._body_sent and not self._left.is_set():
            segment = self._body.popleft() if self._body else b""
            self._body_sent = not self._body
            return {"type": "http.request", "body": segment, "more_body": bool(self._body)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        # A server ignores what an app sends after its client hung up; so do we.
        if self._left.is_set() or self.complete:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = message.get("headers", ())
            self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in pairs}
        elif message["type"] == "http.response.body":
            if chunk := bytes(message.get("body", b"")):
                self._chunks.append(chunk)
                self._buffered_bytes += len(chunk)
            self.complete = not message.get("more_body", False)
        self._news.set()
        if self._buffered_bytes > _BUFFERED_BYTES or len(self._chunks) > _BUFFERED_CHUNKS:
            self._room.clear()
            await self._room.wait()

    def run(self, app: ASGIApp, scope: MutableMapping[str, Any]) -> None:
        async def answer() -> None:
            await app(scope, self.receive, self.send)

        self.task = asyncio.create_task(answer(), name=f"asgi {scope['path']}")
        self.task.add_done_callback(lambda _: self._news.set())

    async def started(self) -> None:
        """Wait for the answer's first message.

        Raises:
            EngineUnavailable: the app ended without one.
        """
        while not self.status:
            self._news.clear()
            if self._ended():
                raise EngineUnavailable("The engine failed before it answered.") from self._failure()
            await self._news.wait()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered_bytes -= len(chunk)
                self._room.set()
                yield chunk
            if self.complete:
                return
            self._news.clear()
            if self._chunks:
                continue
            if self._ended():
                raise EngineProtocolError("The engine broke off in the middle of its answer.") from self._failure()
            await self._news.wait()

    def _ended(self) -> bool:
        return self.task is None or self.task.done()

    def _failure(self) -> BaseException | None:
        return None if self.task is None or self.task.cancelled() else self.task.exception()

    async def close(self, grace_seconds: float) -> None:
        """Hang up; return when the app's task has ended."""
        self._left.set()
        self._room.set()
        task = self.task
        if task is None:
            return
        try:
            if not task.done():
                await asyncio.wait((task,), timeout=grace_seconds)
        finally:
            task.cancel()
        if not task.done():
            await asyncio.wait((task,), timeout=grace_seconds)
        if task.done():
            self._failure()  # marks the exception as seen: nobody is left to whom it could matter
            # An exception holds the frames that it came through, and these hold us with the request's body.
            self.task = None


@asynccontextmanager
async def call(
    app: ASGIApp,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Sequence[bytes] = (),
    state: Mapping[str, Any] | None = None,
    grace_seconds: float = 0.5,
) -> AsyncGenerator[EngineReply]:
    """Call an app and give its answer as soon as that starts.

    `path` may carry a query. `body` is sent segment by segment. `state` is what `lifespan` gave. Leaving the context
    hangs up, also before the answer started, and waits at most twice `grace_seconds` for the app's task to end.

    Raises:
        EngineUnavailable: the app failed before it answered.
        EngineProtocolError: (while iterating the chunks) it failed in the middle of its answer.
    """
    exchange = _Exchange(body)
    try:
        exchange.run(app, _scope(method, path, headers or {}, body, state))
        await exchange.started()
        yield EngineReply(exchange.status, exchange.headers, exchange.chunks())
    finally:
        await exchange.close(grace_seconds)


def _scope(
    method: str, path: str, headers: Mapping[str, str], body: Sequence[bytes], state: Mapping[str, Any] | None
) -> MutableMapping[str, Any]:
    path, _, query = path.partition("?")
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    names = {name for name, _ in pairs}
    if b"content-length" not in names:
        pairs.append((b"content-length", str(sum(map(len, body))).encode()))
    if b"host" not in names:
        pairs.append((b"host", b"engine"))
    return {
        "type": "http",
        # 2.3 as uvicorn says it: under 2.4 Starlette's streaming responses stop on http.disconnect; from 2.4 on they
        # wait for an error of send().
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method.upper(),
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii", "replace"),
        "query_string": query.encode("latin-1"),
        "root_path": "",
        "headers": pairs,
        "client": ("127.0.0.1", 0),
        "server": ("engine", 80),
        "state": dict(state or {}),
    }


@asynccontextmanager
async def lifespan(app: ASGIApp, *, timeout_seconds: float = 60.0) -> AsyncGenerator[Mapping[str, Any]]:
    """Run an app's startup on entering and its shutdown on leaving; gives the state that the startup made.

    An app that does not know lifespan is used without.

    Raises:
        EngineUnavailable: the app's startup failed or took longer than `timeout_seconds`.
    """
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    outgoing: asyncio.Queue[Message] = asyncio.Queue()
    state: dict[str, Any] = {}
    scope: MutableMapping[str, Any] = {
        "type": "lifespan",
        "asgi": {"version": "3.0", "spec_version": "2.0"},
        "state": state,
    }

    task = asyncio.create_task(_serve_lifespan(app, scope, incoming, outgoing), name="asgi lifespan")
    try:
        incoming.put_nowait({"type": "lifespan.startup"})
        async with asyncio.timeout(timeout_seconds):
            answer = await outgoing.get()
        if answer["type"] == "lifespan.startup.failed":
            raise EngineUnavailable("The engine could not start.")
        yield state
        if answer["type"] == "lifespan.startup.complete":
            incoming.put_nowait({"type": "lifespan.shutdown"})
            await asyncio.wait((task,), timeout=timeout_seconds)
    except TimeoutError as error:
        raise EngineUnavailable("The engine did not start in time.") from error
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _serve_lifespan(
    app: ASGIApp, scope: MutableMapping[str, Any], incoming: asyncio.Queue[Message], outgoing: asyncio.Queue[Message]
) -> None:
    supported = False

    async def send(message: Message) -> None:
        nonlocal supported
        supported = True
        outgoing.put_nowait(message)

    try:
        await app(scope, incoming.get, send)
    except Exception:
        # Apps say "I do not know lifespan" by raising before they answer; after it, it is a failure.
        if supported:
            raise
    finally:
        outgoing.put_nowait({"type": "ended"})
