"""One HTTP/1.1 connection to an upstream: a request goes out, its answer comes back in pieces."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast

from engine.remote.answer import Answer, NotHTTP
from engine.remote.request import SMALL_BYTES, pieces

# Reading stops while this much waits for its reader; one read may bring as much again.
MAX_WAITING_BYTES = 256 * 1024

Fault = Literal["closed", "garbled", "silent", "deaf"]


class Broken(Exception):
    """A connection ended under its request.

    `fault` says how: the upstream `closed` it, sent what is not HTTP (`garbled`), sent nothing in time (`silent`) or
    took nothing in time (`deaf`).
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault: Fault = fault


class Connection(asyncio.Protocol):
    """Carries one request at a time. After `send` come `answered`, `piece` until the end, and then `rest` or `abort`.

    `reused` says that it carried another request before the present one.
    """

    def __init__(self, on_gone: Callable[[Connection], None]) -> None:
        """`on_gone` is called when the socket has been closed, by whomever."""
        self._loop = asyncio.get_running_loop()
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._answer = Answer()
        self._unsent: Iterator[bytes | memoryview] | None = None
        self._reading_paused = self._writing_paused = False
        self._carried = self._resting = self._aborted = False
        self._fault: Fault | None = None
        # One future and one timer for all waiting. The timer is moved only where it would fire too late: to make and
        # cancel one for every piece would cost more than reading it.
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._deadline = math.inf
        self._patience = 0.0
        self.reused = False

    @property
    def answer(self) -> Answer:
        """Its head counts once `answered` has returned."""
        return self._answer

    def send(self, head: bytes, body: Sequence[bytes], patience: float, *, bodiless: bool = False) -> None:
        """Begin a request. What the upstream does not take at once goes out while the answer is waited for.

        Args:
            head: the request's head.
            body: its body, in segments.
            patience: seconds that the upstream may let pass without taking or sending anything.
            bodiless: its answer has no body, whatever its head says.
        """
        assert self._transport is not None
        assert self._answer.done, "one request at a time"
        self.reused, self._carried = self._carried, True
        self._patience = patience
        self._answer.begin(bodiless=bodiless)
        if self._aborted:
            # A server may take a connection only to close it.
            self._fault = "closed"
        elif sum(map(len, body)) < SMALL_BYTES:
            self._transport.write(b"".join((head, *body)))
        else:
            self._unsent = pieces(head, body)
            self._pump()

    async def answered(self) -> None:
        """Return when the head of the answer is there.

        Raises:
            Broken: it does not come.
        """
        while not self._answer.headed:
            if self._fault is not None:
                raise Broken(self._fault)
            await self._news()

    async def piece(self) -> bytes:
        """All of the answer's body that has arrived and was not given yet, at least a byte; nothing at its end.

        Raises:
            Broken: it ends too early. What came before was given.
        """
        answer = self._answer
        while not answer.waiting:
            if answer.done:
                return b""
            if self._fault is not None:
                raise Broken(self._fault)
            await self._news()
        arrived = answer.take()
        self._read_on()
        return arrived

    def rest(self, seconds: float) -> bool:
        """Keep it open without a request, `seconds` long at most. Closes it instead where it cannot carry another."""
        if not (seconds > 0 and self._answer.done and self._usable() and self._all_sent()):
            self.abort()
            return False
        self._read_on()
        self._resting = True
        self._expect(seconds)
        return True

    def wake(self) -> bool:
        """End its rest for the next request. Closes it instead where it rested too long or was closed meanwhile."""
        # The timer is as late as the event loop is.
        if not self._usable() or self._loop.time() >= self._deadline:
            self.abort()
            return False
        self._resting = False
        return True

    def abort(self) -> None:
        """Close it at once, with whatever it has not sent yet. A request on it is broken."""
        self._fail("closed")

    def _usable(self) -> bool:
        transport = self._transport
        return self._answer.lasting and not self._aborted and transport is not None and not transport.is_closing()

    def _all_sent(self) -> bool:
        return self._unsent is None and self._transport is not None and not self._transport.get_write_buffer_size()

    def _fail(self, fault: Fault) -> None:
        if not self._answer.done and self._fault is None:
            self._fault = fault
        self._aborted, self._unsent = True, None
        if self._transport is not None:
            self._transport.abort()
        self._tell()

    def _read_on(self) -> None:
        if self._reading_paused and not self._aborted and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def _news(self) -> asyncio.Future[None]:
        """Done when something has changed."""
        waiter = self._waiter = self._loop.create_future()
        self._expect(self._patience)
        return waiter

    def _tell(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _expect(self, seconds: float) -> None:
        due = self._deadline = self._loop.time() + seconds
        if due < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = self._loop.call_at(due, self._tick), due

    def _tick(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if not self._resting and (self._waiter is None or self._waiter.done()):
            # Nobody waits; whoever does next sets it again.
            return
        if self._loop.time() < self._deadline:
            self._timer, self._timer_at = self._loop.call_at(self._deadline, self._tick), self._deadline
        else:
            self._fail("silent" if self._unsent is None and not self._writing_paused else "deaf")

    def _pump(self) -> None:
        """Write until the upstream has enough."""
        if self._unsent is None or self._transport is None:
            return
        for piece in self._unsent:
            self._transport.write(piece)
            if self._writing_paused or self._transport.is_closing():
                return
        self._unsent = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)
        if self._aborted:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        answer = self._answer
        if answer.done:
            # Nobody asked for it, and it would be taken for the answer to the next request.
            self.abort()
            return
        try:
            answer.feed(data)
        except NotHTTP:
            self._fail("garbled")
            return
        if answer.waiting_bytes > MAX_WAITING_BYTES and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        self._tell()

    def eof_received(self) -> None:
        """Called by the event loop."""
        self._answer.end()
        self._fail("closed")

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._fail("closed")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_gone(self)

    def pause_writing(self) -> None:
        """Called by the event loop."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._writing_paused = False
        self._deadline = self._loop.time() + self._patience
        self._pump()
