"""What the tiers add to the scheduler. Loads nothing of vLLM's offloading, since every scheduler has it."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.vllm import core_0_32 as core

if TYPE_CHECKING:
    _Base = core.Scheduler
else:
    _Base = object


class BlockTierScheduling(_Base):
    """Gives workers the pixels of images whose blocks were read, where there are tiers.

    vLLM leaves them out. After a preemption their blocks may be in no tier any more, and the worker would have nothing
    to compute them from.
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        self._has_tiers = bool(core.own_config(vllm_config, "block_tiers"))
        super().__init__(vllm_config, *args, **kwargs)
        if self._has_tiers:
            core.check_instance(self, "Scheduler", ("requests",), "remove block_tiers")

    def schedule(self, throttle_prefills: bool = False) -> Any:
        output = super().schedule(throttle_prefills)
        if self._has_tiers:
            for new in output.scheduled_new_reqs:
                new.mm_features = self.requests[new.req_id].mm_features
        return output
