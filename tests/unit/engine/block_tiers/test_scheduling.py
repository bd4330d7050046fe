"""A request whose images are read from a tier comes to the worker with their pixels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine import torchvision_ops

pytestmark = pytest.mark.vllm
WHOLE, BARE = ["pixels"], ["none"]


class Stock:
    """As much of vLLM's scheduler as is looked at: it leaves pixels out."""

    def __init__(self, vllm_config: Any) -> None:
        self.requests = {"request": SimpleNamespace(mm_features=WHOLE)}

    def schedule(self, throttle_prefills: bool = False) -> Any:
        new = SimpleNamespace(req_id="request", mm_features=BARE)
        return SimpleNamespace(scheduled_new_reqs=[new])


@pytest.mark.parametrize(("ours", "sent"), [({"block_tiers": {"memory_gib": 1.0}}, WHOLE), ({}, BARE)])
def test_pixels_go_along_where_there_are_tiers(ours: dict[str, Any], sent: list[str]) -> None:
    torchvision_ops.declare_missing()
    from engine.vllm.block_tiers.scheduling import BlockTierScheduling

    made: Any = type("Scheduler", (BlockTierScheduling, Stock), {})
    scheduler = made(SimpleNamespace(additional_config={"stillframe": ours}))
    (new,) = scheduler.schedule().scheduled_new_reqs
    assert new.mm_features == sent
