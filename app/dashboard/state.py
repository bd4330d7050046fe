"""What the dashboard keeps for as long as the gateway runs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from pathlib import Path

from app.dashboard.access import Access
from app.dashboard.source import Source
from app.dashboard.whatif import Comparisons
from app.settings import Settings
from context.tenancy import Tenancy
from metrics.prometheus import WORKERS_FOLDER
from metrics.records import queries

_NAMES_SECONDS = 1.0


class KnownTenants:
    """The tenants that there are records of, asked for now and then: a wrong token costs no question of its own.

    Args:
        names: asks for them.
        clock: seconds that never go back.
    """

    def __init__(
        self, names: Callable[[], Awaitable[Iterable[str]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._clock = names, clock
        self._names: frozenset[str] = frozenset()
        self._ask_again: float | None = None

    async def has(self, tenant: str) -> bool:
        """Whether there are records of a tenant; one that is new is known some seconds later."""
        now = self._clock()
        if tenant not in self._names and (self._ask_again is None or now >= self._ask_again):
            self._ask_again = now + _NAMES_SECONDS
            self._names = frozenset(await self._ask())
        return tenant in self._names


class Dashboard:
    """The parts of one gateway's dashboard.

    Args:
        settings: the gateway's.
        ledger: its file.
        secret: of the installation and its administrator's token.
        tenancy: finds tenants.
        is_admin: whether a bearer token is the administrator's.
    """

    def __init__(
        self, settings: Settings, ledger: Path, secret: bytes, tenancy: Tenancy, is_admin: Callable[[bytes], bool]
    ) -> None:
        self.source = Source(ledger)
        shared = os.environ.get(WORKERS_FOLDER)
        self.comparisons = Comparisons(settings, ledger, Path(shared) if shared else None)
        # Tags of answers are of this process: another one knows other things of the engine. The page is told of the
        # start, which is one for all workers.
        self.boot = secrets.token_hex(4)
        self.started = sha256(shared.encode()).hexdigest()[:8] if shared else self.boot
        section = settings.dashboard
        self.access = Access(
            secret,
            section.read_token,
            settings.auth.keys,
            allow_loopback=section.allow_loopback,
            is_admin=is_admin,
            tenancy=tenancy,
            has_records=KnownTenants(self._names).has,
        )

    async def close(self) -> None:
        """End it."""
        await self.comparisons.close()
        await self.source.close()

    async def _names(self) -> list[str]:
        return await self.source.ask(lambda records: queries.names(records, "tenant"))
