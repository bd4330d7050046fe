"""What the dashboard keeps for as long as the gateway runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from app.dashboard.access import Access
from app.dashboard.source import Source
from app.dashboard.whatif import Comparisons
from app.settings import Settings
from context.tenancy import Tenancy
from metrics.records import queries


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
        self.comparisons = Comparisons(settings, ledger)
        # Tags of answers are of this process: another one knows other things of the engine.
        self.boot = secrets.token_hex(4)
        section = settings.dashboard
        self.access = Access(
            secret,
            section.read_token,
            settings.auth.keys,
            allow_loopback=section.allow_loopback,
            is_admin=is_admin,
            tenancy=tenancy,
            has_records=self._has_records,
        )

    async def close(self) -> None:
        """End it."""
        await self.comparisons.close()
        await self.source.close()

    async def _has_records(self, tenant: str) -> bool:
        return await self.source.ask(lambda records: tenant in queries.names(records, "tenant"))
