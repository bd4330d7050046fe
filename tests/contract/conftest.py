"""The engine that a contract suite shares. A module with an engine that is slow to start overrides this."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from engine.base import Engine
from tests.contract.cases import EngineCase

if TYPE_CHECKING:
    from tests.contract.image_kv_rig import Rig


@pytest.fixture
async def engine(case: EngineCase) -> AsyncIterator[Engine]:
    """A started engine; it is stopped when the test ends."""
    engine = case.make()
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine with a pool of images' KV keeps its files."""
    return tmp_path_factory.mktemp("pool") / "images"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def image_rig(demo_checkpoint: Path, image_folder: Path) -> AsyncGenerator[Rig]:
    """The real engine with a pool of images' KV, started once."""
    from tests.contract.image_kv_rig import started

    async with started(demo_checkpoint, {"memory_gib": 1, "folder": str(image_folder), "folder_gib": 1}) as rig:
        yield rig
