"""The gateway that most API tests talk to."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.api.rig import Rig, running


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    async with running(tmp_path) as rig:
        yield rig
