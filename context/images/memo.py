"""Bounded memory: what is kept between requests, and work that is done once for all who wait for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Lru(Generic[K, T]):
    """A map that forgets what was used longest ago, bounded by the sum of its entries' sizes.

    Args:
        bound: largest sum of sizes; in entries, or in what `size_of` returns.
        size_of: size of one value; 1 by default.
    """

    def __init__(self, bound: int, size_of: Callable[[T], int] | None = None) -> None:
        self._bound, self._size_of = bound, size_of
        self._entries: OrderedDict[K, T] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> T | None:
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def peek(self, key: K) -> T | None:
        """As `get`, without counting as a use. Any thread may ask."""
        return self._entries.get(key)

    def put(self, key: K, value: T) -> None:
        """Keep a value as the newest. One that is larger than the bound is not kept at all."""
        self.drop(key)
        self._entries[key] = value
        self.size += self._measure(value)
        while self.size > self._bound:
            self.size -= self._measure(self._entries.popitem(last=False)[1])

    def drop(self, key: K) -> None:
        value = self._entries.pop(key, None)
        if value is not None:
            self.size -= self._measure(value)

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0

    def _measure(self, value: T) -> int:
        return 1 if self._size_of is None else self._size_of(value)


class _Flight:
    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task, self.waiters = task, 0


class SingleFlight:
    """Runs one coroutine for a key at a time; whoever asks meanwhile waits for that one.

    A waiter that is cancelled leaves the others alone; when the last one leaves, the work is cancelled.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def run(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result, or the exception, of the coroutine that runs for `key`."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.create_task(start()))
            self._flights[key] = flight
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                # Whoever comes now must not join work that is being torn down.
                self._land(key, flight)
                flight.task.cancel()

    async def close(self) -> None:
        """Cancel all work and wait until it has ended."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _land(self, key: Hashable, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if flight.task.done() and not flight.task.cancelled():
            # Retrieved here, so that work whose waiters all left does not complain about it.
            flight.task.exception()
