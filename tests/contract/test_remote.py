"""The remote engine keeps the engine contract, with an upstream like vLLM and with a plain one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.base import Engine
from engine.fake import FakeConfig, Fault
from engine.fake.faults import FaultKind
from engine.remote import RemoteEngine, RemoteSettings
from tests.contract.cases import Break, EngineCase
from tests.contract.engine_suite import EngineSuite, cold, name
from tests.contract.lifecycle_suite import LifecycleSuite
from tests.contract.remote_fixtures import (
    ServedFake,
    served_fake,
)

__all__ = ["cold", "name"]

_FAULTS: dict[Break, FaultKind] = {"before": "fail", "middle": "break"}
_PLAIN = FakeConfig(accepts_uuid=False, refuses_cache_salt=True, reports_cache=False, decode_seconds_per_token=0.005)


def _case(fake: ServedFake, **flags: Any) -> EngineCase:
    async def running(_: Engine) -> int:
        return fake.running

    async def break_next(_: Engine, how: Break) -> None:
        if how == "crash":
            fake.die()
        else:
            fake.app.faults.append(Fault(_FAULTS[how]))

    return EngineCase(
        lambda: RemoteEngine(RemoteSettings((fake.url,))),
        "stillframe-fake",
        running,
        break_next=break_next,
        kv_events=False,
        encoder_events=False,
        **flags,
    )


@pytest.fixture
def case() -> Iterator[EngineCase]:
    # An answer has its pace: what is written at once may arrive as one piece.
    with served_fake(FakeConfig(decode_seconds_per_token=0.005)) as fake:
        yield _case(fake)


class TestRemoteEngine(EngineSuite):
    pass


class TestRemoteEngineLifecycle(LifecycleSuite):
    pass


class TestPlainUpstream(EngineSuite):
    """An upstream that knows OpenAI's protocol and nothing of ours."""

    @pytest.fixture
    def case(self) -> Iterator[EngineCase]:
        with served_fake(_PLAIN) as fake:
            yield _case(fake, accepts_uuid=False, reports_cache=False, resets_caches=False)
