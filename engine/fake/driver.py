"""Runs a fake engine's steps on the event loop, and hands tokens and events to whoever waits for them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from typing import Literal

from engine.base import EngineEvent, EventBatch
from engine.events import EventHub
from engine.fake.core import FakeChat, FakeCore
from engine.fake.errors import Refused
from engine.fake.scheduler import Token

_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

TicketEnd = Literal["", "done", "aborted", "crashed"]


class Ticket:
    """One running chat, seen from the request that waits for it. Its tokens are given once, in their order."""

    def __init__(self, chat: FakeChat) -> None:
        self.chat = chat
        self.end: TicketEnd = ""
        self._tokens: deque[Token] = deque()
        self._news = asyncio.Event()
        self._over = asyncio.Event()

    def put(self, token: Token) -> None:
        self._tokens.append(token)
        self._news.set()
        if not self.chat.open_sequences:
            self.stop("done")

    def stop(self, end: TicketEnd) -> None:
        self.end = self.end or end
        self._news.set()
        self._over.set()

    async def take(self) -> list[Token]:
        """The tokens since the last call, at least one; empty when the chat has ended."""
        while not self._tokens and not self.end:
            self._news.clear()
            await self._news.wait()
        taken = list(self._tokens)
        self._tokens.clear()
        return taken

    async def ended(self) -> TicketEnd:
        """Wait for the end, without being woken by every token."""
        await self._over.wait()
        return self.end


class Driver:
    """Owns the task that steps a core while it has work. `crash` is final."""

    def __init__(self, core: FakeCore) -> None:
        self.core = core
        self.crashed = False
        self._tickets: dict[int, Ticket] = {}
        self._hub = EventHub()
        self._sequences: dict[Literal["kv", "encoder"], int] = {"kv": 0, "encoder": 0}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Sequences that wait or run."""
        return self.core.running

    def start(self) -> None:
        """Begin to step."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="fake engine")

    async def stop(self) -> None:
        """Abort everything and end the task and all subscriptions."""
        self._end_all("aborted")
        self._hub.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def crash(self) -> None:
        """The engine core dies: what runs fails, and so does all that comes."""
        self.crashed = True
        self._end_all("crashed")

    def submit(self, chat: FakeChat) -> Ticket:
        """Run a chat.

        Raises:
            Refused: the engine core is dead.
        """
        self.check_alive()
        ticket = Ticket(chat)
        for sequence in chat.sequences:
            self._tickets[id(sequence)] = ticket
        self.core.start(chat)
        self._wake.set()
        return ticket

    def check_alive(self) -> None:
        """See that the engine core lives.

        Raises:
            Refused: it crashed.
        """
        if self.crashed:
            raise Refused(_DEAD, status=500)

    def abort(self, ticket: Ticket, end: TicketEnd = "aborted") -> None:
        """End a chat at once; one that has ended is left alone."""
        self.core.abort(ticket.chat)
        for sequence in ticket.chat.sequences:
            self._tickets.pop(id(sequence), None)
        ticket.stop(end)
        self._publish()

    def publish(self) -> None:
        """Give subscribers what happened outside of a step, such as a reset."""
        self._publish()
        self._wake.set()

    def hand_on(self, batch: EventBatch) -> None:
        """Give subscribers what something beside the core reports."""
        self._hub.publish(batch)

    def events(self) -> AbstractAsyncContextManager[AsyncIterator[EventBatch]]:
        """Subscribe from now on."""
        return self._hub.listen()

    async def _run(self) -> None:
        while True:
            if not self.core.has_work:
                self._wake.clear()
                await self._wake.wait()
                continue
            step = self.core.schedule()
            # Also at no cost the loop gets its turn: requests arrive, leave and are written to between steps.
            await asyncio.sleep(self.core.seconds(step))
            for token in self.core.finish(step):
                self._deliver(token)
            self._publish()
            if not step.tokens and self.core.has_work:
                self._wake.clear()
                await self._wake.wait()

    def _deliver(self, token: Token) -> None:
        ticket = self._tickets.get(id(token.sequence))
        if token.last:
            self._tickets.pop(id(token.sequence), None)
        if ticket is not None:
            ticket.put(token)

    def _end_all(self, end: TicketEnd) -> None:
        for ticket in {id(ticket): ticket for ticket in self._tickets.values()}.values():
            self.abort(ticket, end)

    def _publish(self) -> None:
        kv, encoder = self.core.take_events()
        if kv:
            self._publish_on("kv", tuple(kv))
        if encoder:
            self._publish_on("encoder", tuple(encoder))

    def _publish_on(self, stream: Literal["kv", "encoder"], events: tuple[EngineEvent, ...]) -> None:
        batch = EventBatch(stream, self._sequences[stream], time.time(), events)
        self._sequences[stream] += 1
        self._hub.publish(batch)
