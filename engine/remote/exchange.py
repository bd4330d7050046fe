"""One request to a remote engine: the tries until an upstream answers, and what must be left to end it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol

from context.errors import EngineProtocolError, EngineUnavailable
from engine.base import EngineReply
from engine.remote.pool import Upstream
from engine.remote.settings import RemoteSettings
from engine.remote.transport import AttemptFailed

_REFUSED_UNDONE = frozenset((429, 503))

Open = Callable[[Upstream], AbstractAsyncContextManager[EngineReply]]


class Owner(Protocol):
    """What an exchange asks of the engine that it belongs to."""

    @property
    def settings(self) -> RemoteSettings: ...

    @property
    def stopped(self) -> bool: ...

    def failed(self, upstream: Upstream, failure: AttemptFailed) -> None:
        """A try failed."""
        ...

    def broke_off(self, upstream: Upstream) -> None:
        """An answer ended in its middle."""
        ...

    def unavailable(self) -> str:
        """Why no upstream can be asked."""
        ...


class Exchange(AbstractAsyncContextManager[EngineReply]):
    """Entering gives the first answer that can be used, leaving ends it.

    Written out: an exit stack for each try and each request was a tenth of the CPU of forwarding a small request.
    """

    __slots__ = ("_context", "_open", "_order", "_owner", "_upstream")

    def __init__(self, owner: Owner, order: Sequence[Upstream], open_: Open) -> None:
        self._owner, self._order, self._open = owner, order, open_
        self._upstream: Upstream | None = None
        self._context: AbstractAsyncContextManager[EngineReply] | None = None

    async def __aenter__(self) -> EngineReply:
        owner, order = self._owner, self._order
        if owner.stopped or not order:
            raise EngineUnavailable(owner.unavailable(), retry_after_seconds=1)
        tries, number = owner.settings.retries + 1, 0
        while True:
            upstream = order[number % len(order)]
            number += 1
            context = self._open(upstream)
            upstream.in_flight += 1
            try:
                reply = await context.__aenter__()
                if reply.status not in _REFUSED_UNDONE or number >= min(tries, len(order)):
                    self._upstream, self._context = upstream, context
                    return reply
                await context.__aexit__(None, None, None)
            except AttemptFailed as failure:
                owner.failed(upstream, failure)
                if failure.kind == "stale":
                    order, tries = [upstream], min(tries, number + 1)
                undone = failure.kind in ("unreachable", "stale") or (failure.kind == "busy" and number < len(order))
                if number >= tries or not undone or owner.stopped:
                    raise failure.error from failure.__cause__
            finally:
                if self._context is None:
                    upstream.in_flight -= 1
            await self._pause(number, len(order))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._upstream is not None
        assert self._context is not None
        self._upstream.in_flight -= 1
        if isinstance(error, EngineProtocolError) and not self._owner.stopped:
            # It may be gone with all its other requests: find out now, not with the next request.
            self._owner.broke_off(self._upstream)
        return await self._context.__aexit__(kind, error, trace)

    async def _pause(self, number: int, upstreams: int) -> None:
        """Wait before the same upstream is tried again; another one is tried at once."""
        rounds, rest = divmod(number, upstreams)
        if rest == 0:
            spread = random.uniform(0.5, 1.5)  # noqa: S311  keeps clients apart; no secret
            await asyncio.sleep(self._owner.settings.backoff_seconds * 2 ** (rounds - 1) * spread)
