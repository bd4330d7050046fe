"""vLLM's encoder cache manager, which tells what it does for every request and image, and may choose what goes.

It runs in the engine core's process. vLLM has no metric for the encoder cache, so this subclass reports: `run` when
space is allocated for features that are about to be computed, `load` when they are to come from the pool of images' KV,
`hit` when features are reused, `evict` when features are dropped to make room, `done` when a request is over, `reset`.

Source: vLLM 0.32, vllm/v1/core/encoder_cache_manager.py::EncoderCacheManager; the calls come from
vllm/v1/core/sched/scheduler.py::Scheduler._try_schedule_encoder_inputs.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.vllm.blocks.returns import Returns, Watched
from engine.vllm.core_0_32 import check_instance
from engine.vllm.event_socket import EventSocket, gateway_request_id
from engine.vllm.v0_32 import EncoderCacheManager

# Attention within an image costs as much as all else in Qwen2-VL's encoder where it has so many embeddings.
_EVEN_EMBEDDINGS = 2048
_LOOKED_AT = 64
# What a manager has once it is made, of which its class says nothing.
_USED = ("freeable.move_to_end", "freed", "num_free_slots", "num_freeable_slots")


class ReportingEncoderCacheManager(EncoderCacheManager):
    """`EncoderCacheManager` that tells for each event the request's id, the image's uuid and its embeddings.

    Args:
        cache_size: embeddings.
        by_value: what makes room is what is worth least, by how soon such images come back and what they cost to
            compute, and first of all what `is_pooled`; otherwise what no request has needed for longest, as vLLM
            does. What a request needs stays either way.
        events: who is told; None: nobody.
    """

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: Any) -> ReportingEncoderCacheManager:
        blocks = (vllm_config.additional_config or {}).get("stillframe", {}).get("blocks", {})
        events = EventSocket(vllm_config.ec_manager_config.manager_config["endpoint"])
        return cls(cache_size=cache_size, by_value=blocks.get("eviction") == "modality", events=events)

    def __init__(self, cache_size: int, *, by_value: bool = False, events: EventSocket | None = None) -> None:
        super().__init__(cache_size)
        check_instance(self, "EncoderCacheManager", _USED)
        self._returns = Returns() if by_value else None
        self._uses: dict[str, Watched] = {}
        self._events = events or EventSocket()
        # One hit a (request, input), and none of what it had computed: it is asked for again on every step of a chunked
        # prefill, on every step in which the request waits for room, and after a preemption.
        self._reported: dict[str, set[int]] = {}
        self.is_pooled: Callable[[str], bool] = lambda _: False
        """Whether a request now holds an image's entry of the pool, by the image's identifier: its features come from
        there and are not computed. An image that the pool has and nobody holds is none of these."""

    def check_and_update_cache(self, request: Any, input_id: int) -> bool:
        hit = bool(super().check_and_update_cache(request, input_id))
        if hit and input_id not in self._reported.get(request.request_id, ()):
            self._report("hit", request, input_id)
        return hit

    def allocate(self, request: Any, input_id: int) -> None:
        super().allocate(request, input_id)
        kind = "load" if self.is_pooled(request.mm_features[input_id].identifier) else "run"
        # Each time: it is computed again when it left the cache while the request was preempted.
        self._report(kind, request, input_id)

    def can_allocate(
        self, request: Any, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        if self._returns is not None:
            self._choose(request.get_num_encoder_embeds(input_id) + num_embeds_to_schedule)
        before = len(self.freed)
        answer = bool(super().can_allocate(request, input_id, encoder_compute_budget, num_embeds_to_schedule))
        for uuid in self.freed[before:]:
            self._uses.pop(uuid, None)
            self._events.send("evict", gateway_request_id(request.request_id), uuid, 0)
        return answer

    def free(self, request: Any) -> None:
        super().free(request)
        # A request that is preempted or not admitted lets go of its features too, and comes back.
        if request.is_finished():
            self._reported.pop(request.request_id, None)
            self._events.send("done", gateway_request_id(request.request_id), "", 0)

    def reset(self) -> None:
        super().reset()
        self._reported.clear()
        self._uses.clear()
        self._events.send("reset", "", "", 0)

    def _report(self, kind: str, request: Any, input_id: int) -> None:
        self._reported.setdefault(request.request_id, set()).add(input_id)
        embeddings, uuid = int(request.get_num_encoder_embeds(input_id)), str(request.mm_features[input_id].identifier)
        if self._returns is not None:
            use = self._uses[uuid] = self._returns.use([uuid])
            self._returns.named(use, uuid)
        self._events.send(kind, gateway_request_id(request.request_id), uuid, embeddings)

    def _choose(self, needed: int) -> None:
        """Put first in vLLM's order what is worth least, as much of it as makes room for so many embeddings."""
        room = self.num_free_slots
        if room >= needed or needed > self.num_freeable_slots:
            return
        step = -(-len(self.freeable) // _LOOKED_AT)
        # Of many an even sample, the one that was needed longest ago among them.
        looked_at = list(self.freeable)[::step]
        chosen: list[str] = []
        for uuid in sorted(looked_at, key=self._worth):
            if room >= needed:
                break
            room += self.freeable[uuid]
            chosen.append(uuid)
        for uuid in reversed(chosen):
            self.freeable.move_to_end(uuid, last=False)

    def _worth(self, uuid: str) -> float:
        use = self._uses.get(uuid)
        if use is None or self._returns is None or self.is_pooled(uuid):
            # What a request holds of the pool of images' KV need not be computed while it does. What the pool has
            # beyond that is not known here.
            return 0.0
        return self._returns.density(use.uses, use.last) * (1 + self.freeable[uuid] / _EVEN_EMBEDDINGS)
