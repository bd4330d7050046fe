"""The embedded vLLM keeps the engine contract."""

from __future__ import annotations

from typing import cast

import pytest

from engine.base import Engine
from tests.contract.cases import EngineCase
from tests.contract.engine_suite import EngineSuite, cold, name
from tests.contract.test_fake_matches_vllm import BLOCK_TOKENS

__all__ = ["cold", "name"]

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]


async def _running(engine: Engine) -> int:
    from engine.vllm.embedded import VllmEngine

    return cast(VllmEngine, engine).running()


def _another() -> Engine:
    raise AssertionError("the suite of a started engine makes none")


@pytest.fixture
def engine(vllm_engine: Engine) -> Engine:
    return vllm_engine


@pytest.fixture
def case() -> EngineCase:
    return EngineCase(_another, "demo", _running, block_tokens=BLOCK_TOKENS)


class TestVllmEngine(EngineSuite):
    pass
