"""A gateway over the fake engine, and the context over a ledger in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from context.conversations import Conversations
from context.ledger import Ledger
from tests.api.rig import Rig, running
from tests.unit.images.server import Site, running_site

PRIVATE = {"FETCH__ALLOW_PRIVATE": "[127.0.0.0/8]"}


@pytest.fixture
async def conversations() -> AsyncGenerator[Conversations]:
    ledger = await Ledger.open(None)
    yield Conversations(ledger)
    await ledger.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    """It may fetch from the site of the test."""
    async with running(tmp_path, environment=PRIVATE) as rig:
        yield rig


@pytest.fixture
async def site() -> AsyncGenerator[Site]:
    async with running_site() as site:
        yield site
