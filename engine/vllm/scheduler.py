"""The scheduler that the embedded engine runs: vLLM's own, with what is switched on hung into it.

Each part is a mix-in that does nothing where `additional_config["stillframe"]` does not name it, and calls on to what
comes after it. `embedded.py` names one of the two classes at the end by vLLM's `scheduler_cls`.

Source: vLLM 0.32, vllm/v1/core/sched/scheduler.py::Scheduler, async_scheduler.py::AsyncScheduler.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.vllm import core_0_32 as core
from engine.vllm.blocks.install import BlockScheduling
from engine.vllm.encoder_cache import ReportingEncoderCacheManager
from engine.vllm.image_kv.connector import ImageKvConnector
from engine.vllm.image_kv.encoder import PooledEncoderConnector
from engine.vllm.image_kv.planner import Planner

if TYPE_CHECKING:
    _Base = core.Scheduler
else:
    _Base = object


class ImageKvScheduling(_Base):
    """Images' KV from the pool: chunks that end where a jump begins, and jumps. The connector does the rest."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Requests may be looked up while vLLM's own parts are made.
        self._planner: Planner | None = None
        super().__init__(*args, **kwargs)
        if isinstance(self.connector, ImageKvConnector):
            self._planner = self.connector.planner
        if isinstance(self.ec_connector, PooledEncoderConnector):
            self.ec_connector.planner = self._planner
            if isinstance(self.encoder_cache_manager, ReportingEncoderCacheManager):
                self.encoder_cache_manager.is_pooled = self.ec_connector.has_cache_item

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if self._planner is None:
            return super().schedule(throttle_prefills)
        moved = self._planner.jump(self.running)
        output = super().schedule(throttle_prefills)
        self._planner.settle(moved)
        for new in output.scheduled_new_reqs:
            # vLLM leaves out the pixels of images that are read or loaded whole. After a preemption they may have to
            # be computed, and the worker would have nothing to compute them from; what is held it has from the pool.
            held = self._planner.held_images(new.req_id)
            whole = self.requests[new.req_id].mm_features
            new.mm_features = [
                given if given.identifier in held else one for given, one in zip(new.mm_features, whole, strict=True)
            ]
        return output

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        if self._planner is not None and isinstance(self.connector, ImageKvConnector):
            self._planner.admit(request, self.connector.lookup)
        return super()._get_local_prefix_cache_hit(request)

    def _try_schedule_encoder_inputs(
        self, request: Any, num_computed_tokens: int, num_new_tokens: int, *args: Any, **kwargs: Any
    ) -> Any:
        if self._planner is not None:
            num_new_tokens = self._planner.cut(request, num_computed_tokens, num_new_tokens)
        return super()._try_schedule_encoder_inputs(request, num_computed_tokens, num_new_tokens, *args, **kwargs)

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._planner is not None:
            self._planner.preempted(request)
        super()._preempt_request(request, *args, **kwargs)


class StillframeScheduler(ImageKvScheduling, BlockScheduling, core.Scheduler):
    """For engines that schedule a step when the one before is over, as the CPU build."""


class AsyncStillframeScheduler(ImageKvScheduling, BlockScheduling, core.AsyncScheduler):
    """For engines that schedule ahead."""
