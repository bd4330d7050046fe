"""The engine that a contract suite shares. A module with an engine that is slow to start overrides this."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.base import Engine
from tests.contract.cases import EngineCase


@pytest.fixture
async def engine(case: EngineCase) -> AsyncIterator[Engine]:
    """A started engine; it is stopped when the test ends."""
    engine = case.make()
    await engine.start()
    yield engine
    await engine.stop()
