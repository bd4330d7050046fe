"""The fake engine keeps the engine contract, also where it is told to know less."""

from __future__ import annotations

from typing import cast

import pytest

from engine.base import Engine
from engine.fake import FakeConfig, FakeEngine, Fault
from engine.fake.faults import FaultKind
from tests.contract.cases import Break, EngineCase
from tests.contract.engine_suite import EngineSuite, cold, name
from tests.contract.lifecycle_suite import LifecycleSuite

__all__ = ["cold", "name"]

_KINDS: dict[Break, FaultKind] = {"before": "fail", "middle": "break", "crash": "crash"}


async def _running(engine: Engine) -> int:
    app = cast(FakeEngine, engine).app
    return app.open_requests + app.driver.running


async def _break_next(engine: Engine, how: Break) -> None:
    cast(FakeEngine, engine).inject(Fault(_KINDS[how]))


@pytest.fixture
def case() -> EngineCase:
    return EngineCase(lambda: FakeEngine(), "stillframe-fake", _running, break_next=_break_next)


class TestFakeEngine(EngineSuite):
    pass


class TestFakeEngineLifecycle(LifecycleSuite):
    pass


class TestPlainUpstream(EngineSuite):
    """As an upstream that knows OpenAI's protocol and nothing of ours."""

    @pytest.fixture
    def case(self) -> EngineCase:
        config = FakeConfig(accepts_uuid=False, refuses_cache_salt=True, reports_cache=False)
        return EngineCase(
            lambda: FakeEngine(config),
            "stillframe-fake",
            _running,
            accepts_uuid=False,
            reports_cache=False,
            resets_caches=False,
            kv_events=False,
            encoder_events=False,
        )
