"""Request bodies: how long they may be, how slow, and how many bytes of them are in memory at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
import types
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeVar, cast

from app.asgi import ClientLeft, Message, Receive, Scope, header
from context.errors import RequestError

T = TypeVar("T")

_SLOW_START_SECONDS = 5.0
_NOTHING = nullcontext()


class BodyBudget:
    """Bounds the bytes of request bodies that are in memory at one time; who does not fit waits, first come first.

    A body counts from before its first byte is read until it has been turned into a transcript. Bodies of up to
    `small_bytes` do not count: a text must not wait behind a slow upload, and many of them are still little.
    """

    def __init__(self, total_bytes: int, small_bytes: int = 0) -> None:
        self._free = self._total = total_bytes
        self._small = small_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def free_bytes(self) -> int:
        """What nobody holds."""
        return self._free

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def hold(self, size_bytes: int, timeout_seconds: float | None = None) -> AbstractAsyncContextManager[None]:
        """Hold `size_bytes`, at most the whole budget.

        Raises:
            RequestError: (429) its turn did not come in time.
        """
        return _NOTHING if size_bytes <= self._small else self._hold(min(size_bytes, self._total), timeout_seconds)

    @asynccontextmanager
    async def _hold(self, size: int, timeout_seconds: float | None) -> AsyncGenerator[None]:
        if self._waiting or size > self._free:
            try:
                async with asyncio.timeout(timeout_seconds):
                    await self._wait(size)
            except TimeoutError:
                raise RequestError(
                    "Too many large requests are being received. Try again soon, or raise server.inflight_body_bytes.",
                    code="too_many_requests",
                    status=429,
                ) from None
        else:
            self._free -= size
        try:
            yield
        finally:
            self._release(size)

    async def _wait(self, size: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                # Still in the queue, unless `_admit` came by meanwhile and passed over it.
                with contextlib.suppress(ValueError):
                    self._waiting.remove((size, turn))
                self._admit()
            else:
                self._release(size)
            raise

    def _release(self, size: int) -> None:
        self._free += size
        self._admit()

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0][1].cancelled() or self._waiting[0][0] <= self._free):
            size, turn = self._waiting.popleft()
            # Who waited may have been cancelled in this very pass of the loop, before it could leave the queue.
            if not turn.cancelled():
                self._free -= size
                turn.set_result(None)


def declared_length(scope: Scope, limit_bytes: int) -> int:
    """The body's length as declared; the limit when the client does not say it.

    Raises:
        RequestError: (413) above the limit.
    """
    text = header(scope, b"content-length")
    if text is None or not (text.isascii() and text.isdigit()):
        return limit_bytes
    length = int(text)
    if length > limit_bytes:
        raise BodyTooLarge(limit_bytes, length)
    return length


class BodyTooLarge(RequestError):
    """The 413 of a body above `server.max_body_bytes`: size, limit and remedy."""

    def __init__(self, limit_bytes: int, length: int | None = None) -> None:
        size = f"{length:,} bytes" if length is not None else f"more than {limit_bytes:,} bytes"
        super().__init__(
            f"The request body has {size}; the limit is {limit_bytes:,}. Send smaller images, or raise "
            "server.max_body_bytes.",
            code="request_too_large",
            status=413,
        )


async def first_piece(receive: Receive, *, timeout_seconds: float) -> Message:
    """The first piece of a request body: until it is there, the request takes no memory.

    Raises:
        RequestError: (408) it did not come in time.
        ClientLeft: the client closed the connection.
    """
    coming = receive()
    if isinstance(coming, types.CoroutineType):
        # Mostly it is there already: to set up a timeout would take as long as parsing a small body.
        begun = cast("Coroutine[Any, Any, Message]", coming)
        try:
            waited_for = begun.send(None)
        except StopIteration as arrived:
            return _piece(arrived.value)
        coming = _continued(begun, waited_for)
    try:
        async with asyncio.timeout(timeout_seconds):
            return _piece(await coming)
    except TimeoutError as error:
        raise _too_slow(f"did not arrive within {timeout_seconds:g} seconds") from error


def _piece(message: Message) -> Message:
    if message["type"] == "http.disconnect":
        raise ClientLeft
    return message


@types.coroutine
def _continued(begun: Coroutine[Any, Any, T], waited_for: Any) -> Generator[Any, Any, T]:
    """What a coroutine comes to that was begun by hand, and now waits for this."""
    try:
        while True:
            try:
                sent = yield waited_for
            except BaseException as error:
                waited_for = begun.throw(error)
            else:
                waited_for = begun.send(sent)
    except StopIteration as ended:
        return ended.value
    finally:
        begun.close()


async def read_body(
    receive: Receive,
    *,
    limit_bytes: int,
    timeout_seconds: float,
    first: Message | None = None,
    min_bytes_per_second: float = 0,
) -> bytes | bytearray:
    """The whole request body.

    Args:
        receive: the request's.
        limit_bytes: bound in either framing.
        timeout_seconds: for all of it.
        first: what `first_piece` gave.
        min_bytes_per_second: a body that is slower on the whole, after some seconds, is given up: it holds a place
            that others wait for.

    Raises:
        RequestError: (413) above the limit in either framing, (408) too slow.
        ClientLeft: the client closed the connection.
    """
    if first is not None and first["type"] == "http.request" and not first.get("more_body", False):
        whole: bytes = first.get("body", b"")
        if len(whole) > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        return whole
    # It grows where it lies. To join megabytes at the end would hold up the event loop.
    body = bytearray()
    began = time.monotonic()
    message = first
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                message = message or await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                chunk: bytes = message.get("body", b"")
                if len(body) + len(chunk) > limit_bytes:
                    raise BodyTooLarge(limit_bytes)
                if not message.get("more_body", False):
                    if not body:
                        return chunk
                    body += chunk
                    return body
                body += chunk
                message = None
                seconds = time.monotonic() - began
                if seconds > _SLOW_START_SECONDS and len(body) < min_bytes_per_second * seconds:
                    raise _too_slow(f"came with less than {min_bytes_per_second:g} bytes a second")
    except TimeoutError as error:
        raise _too_slow(f"did not arrive within {timeout_seconds:g} seconds") from error


def _too_slow(what: str) -> RequestError:
    return RequestError(f"The request body {what}.", code="request_timeout", status=408)
