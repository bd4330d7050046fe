"""What a replay runs on: the simulation, or a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from metrics.replay.figures import EngineKind, TurnFigures
from metrics.replay.trace import Trace, TraceTurn, Wire


class Session(Protocol):
    """One client's conversation."""

    async def ask(self, turn: TraceTurn, messages: Sequence[Wire]) -> tuple[TurnFigures, Wire]:
        """Send a turn. Gives what it cost and the reply, as the client keeps it.

        Args:
            turn: which one.
            messages: what to send for it.

        Raises:
            EngineUnavailable: the gateway or its engine broke.
        """
        ...


class Target(Protocol):
    """Where sessions run."""

    @property
    def engine(self) -> EngineKind:
        """What answers."""
        ...

    def session(self, trace: Trace, policy: str) -> AbstractAsyncContextManager[Session]:
        """A conversation that nothing before has touched: its ledger and its caches are empty for it.

        Raises (on entering):
            ConfigError: there is no such policy here.
        """
        ...

    async def floor(self, trace: Trace, messages: Sequence[Wire]) -> int | None:
        """Tokens of these messages as one prompt, with the tools of the last turn; None where nobody can say."""
        ...
