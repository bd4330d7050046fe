"""Ledgers for the tests: one on a file and one in memory, and one as a new process opens it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from context.ledger import Ledger, LedgerLimits

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A ledger and how to open it once more: `again` empties the memory, where there is a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.clock = path, Clock()
        self.limits = LedgerLimits()
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    async def open(self) -> Rig:
        self._ledger = await Ledger.open(self.path, self.limits, clock=self.clock, retry_seconds=0)
        return self

    async def again(self) -> Ledger:
        if self.path is not None:
            await self.ledger.close()
            await self.open()
        return self.ledger


@pytest_asyncio.fixture(params=["file", "memory"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Rig]:
    made = await Rig(tmp_path / "new" / "ledger.db" if request.param == "file" else None).open()
    yield made
    assert made.ledger.stats().failures == 0
    await made.ledger.close()


async def opened(path: Path, **limits: int) -> Ledger:
    return await Ledger.open(path, LedgerLimits(**limits), busy_seconds=0.01, retry_seconds=0)


async def survives(path: Path, turns: int, conversation: str) -> bool:
    """Whether a new process would find a conversation of so many turns."""
    ledger = await opened(path)
    latest = await ledger.latest("t", conversation)
    await ledger.close()
    return latest is not None and latest.number == turns and latest.replied
