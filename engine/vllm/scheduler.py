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

import itertools
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.vllm import core_0_32 as core
from engine.vllm.block_tiers.scheduling import BlockTierScheduling
from engine.vllm.blocks.install import BlockScheduling
from engine.vllm.encoder_cache import ReportingEncoderCacheManager
from engine.vllm.image_kv.connector import ImageKvConnector
from engine.vllm.image_kv.encoder import PooledEncoderConnector
from engine.vllm.image_kv.encoder_inputs import EncoderInputs
from engine.vllm.image_kv.jumps import Stretch
from engine.vllm.image_kv.planner import Planner

if TYPE_CHECKING:
    _Base = core.Scheduler
else:
    _Base = object


# How many of those that wait may be admitted in a step, as a guess.
_SOON = 4
# What a scheduler has once it is made, of which its class says nothing.
_USED = (
    "block_size",
    "encoder_cache_manager",
    "finished_req_ids",
    "kv_cache_manager.block_pool.get_num_free_blocks",
    "kv_cache_manager.get_block_ids",
    "max_num_active_reqs",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "model_uses_mrope",
    "requests",
    "running",
    "waiting",
)


class ImageKvScheduling(_Base):
    """Images' KV from the pool: chunks that end where a jump begins, and jumps. The connector does the rest.

    A step computes several stretches of a prompt, with jumps between them, as far as it has room: to vLLM the request
    is at the last of them, and the others go to the worker as requests of their own, beside it, with its blocks.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Requests may be looked up while vLLM's own parts are made.
        self._planner: Planner | None = None
        super().__init__(*args, **kwargs)
        core.check_instance(self, "Scheduler", ("connector", "ec_connector"))
        if isinstance(self.connector, ImageKvConnector):
            core.check_instance(self, "Scheduler", _USED, "turn reuse off")
            self._planner = self.connector.planner
        if isinstance(self.ec_connector, PooledEncoderConnector):
            self.ec_connector.planner = self._planner
            if isinstance(self.encoder_cache_manager, ReportingEncoderCacheManager):
                self.encoder_cache_manager.is_pooled = self.ec_connector.has_cache_item

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if self._planner is None:
            return super().schedule(throttle_prefills)
        with self._room(self._planner):
            moved = self._planner.jump(self.running)
            output = super().schedule(throttle_prefills)
            self._planner.settle(moved)
        for new in output.scheduled_new_reqs:
            # vLLM leaves out the pixels of images that are read or loaded whole. After a preemption they may have to
            # be computed, and the worker would have nothing to compute them from; what is held it has from the pool.
            held = self._planner.held_images(new.req_id)
            whole = self.requests[new.req_id].mm_features
            bare = core.without_pixels(whole, self.model_uses_mrope)
            new.mm_features = [one if one.identifier in held else full for one, full in zip(bare, whole, strict=True)]
        for request, stretches in self._planner.passed:
            self._add_parts(output, request, stretches)
        return output

    @contextmanager
    def _room(self, planner: Planner) -> Generator[None]:
        """Have vLLM leave room in the step for stretches of requests that it does not know of."""
        tokens, active, slots = self.max_num_scheduled_tokens, self.max_num_active_reqs, self.max_num_running_reqs
        soon = itertools.islice(self.waiting, _SOON)
        free_tokens = self.kv_cache_manager.block_pool.get_num_free_blocks() * self.block_size
        # One that will not be admitted would take room from those that run.
        fitting = (one for one in soon if one.num_prompt_tokens <= free_tokens and len(self.running) < active)
        # Half of a step at most: others have to get on as well.
        room = planner.make_room([*self.running, *fitting], tokens // 2, (slots - len(self.running)) // 2)
        self.max_num_scheduled_tokens = tokens - room.tokens
        self.max_num_active_reqs = min(active, slots - room.stretches)
        try:
            yield
        finally:
            self.max_num_scheduled_tokens, self.max_num_active_reqs = tokens, active

    def _add_parts(self, output: Any, request: Any, stretches: Sequence[Stretch]) -> None:
        """Add a request's stretches to a step, as requests of their own that end with it."""
        parts = {f"{request.request_id}-part-{at.start}": (at.start, at.end) for at in stretches}
        blocks = self.kv_cache_manager.get_block_ids(request.request_id)[0]
        output.scheduled_new_reqs += core.parts_of(request, parts, blocks, self.model_uses_mrope)
        output.num_scheduled_tokens.update({name: end - start for name, (start, end) in parts.items()})
        output.total_num_scheduled_tokens += sum(stretch.tokens for stretch in stretches)
        # The worker hears of it with the next step.
        self.finished_req_ids.update(parts)

    def _get_local_prefix_cache_hit(self, request: Any) -> Any:
        if self._planner is not None and isinstance(self.connector, ImageKvConnector):
            self._planner.admit(request, self.connector.lookup)
        return super()._get_local_prefix_cache_hit(request)

    def _try_schedule_encoder_inputs(
        self,
        request: Any,
        num_computed_tokens: int,
        num_new_tokens: int,
        encoder_compute_budget: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        decide = super()._try_schedule_encoder_inputs
        if self._planner is None:
            return decide(request, num_computed_tokens, num_new_tokens, encoder_compute_budget, *args, **kwargs)
        num_new_tokens = self._planner.cut(request, num_computed_tokens, num_new_tokens)
        passed = self._planner.passing(request)
        if not passed:
            return decide(request, num_computed_tokens, num_new_tokens, encoder_compute_budget, *args, **kwargs)
        needed = EncoderInputs(request, self.encoder_cache_manager, encoder_compute_budget)
        for stretch in (*passed, Stretch(num_computed_tokens, num_computed_tokens + num_new_tokens)):
            needed.add(stretch.tokens, *decide(request, stretch.start, stretch.tokens, needed.budget, *args, **kwargs))
        if not needed.fit():
            self._planner.keep_apart(request)
            return [], 0, encoder_compute_budget, [], []
        return needed.run, num_new_tokens, needed.budget, needed.load, needed.again

    def _preempt_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if self._planner is not None:
            self._planner.preempted(request)
        super()._preempt_request(request, *args, **kwargs)


class StillframeScheduler(ImageKvScheduling, BlockTierScheduling, BlockScheduling, core.Scheduler):
    """For engines that schedule a step when the one before is over, as the CPU build."""


class AsyncStillframeScheduler(ImageKvScheduling, BlockTierScheduling, BlockScheduling, core.AsyncScheduler):
    """For engines that schedule ahead."""
