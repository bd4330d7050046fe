"""vLLM's encoder cache manager, telling what it does for every request and image.

It runs in the engine core's process. vLLM has no metric for the encoder cache, so this subclass changes nothing and
reports: `run` when space is allocated for features that are about to be computed, `hit` when features are reused,
`evict` when features are dropped to make room, `done` when a request is over, `reset`.

Source: vLLM 0.32, vllm/v1/core/encoder_cache_manager.py::EncoderCacheManager; the calls come from
vllm/v1/core/sched/scheduler.py::Scheduler._try_schedule_encoder_inputs.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import zmq

from engine.vllm.v0_32 import EncoderCacheManager

_INTERNAL_ID = re.compile(r"^(?:\d+_)?chatcmpl-(.+)-[0-9a-f]{8}$")
_QUEUE_EVENTS = 100_000


def gateway_request_id(internal: str) -> str:
    """The gateway's request id in vLLM's own, `[n_]chatcmpl-<id>-<8 hex>`; the whole when it has another form."""
    match = _INTERNAL_ID.match(internal)
    return match.group(1) if match else internal


class ReportingEncoderCacheManager(EncoderCacheManager):
    """`EncoderCacheManager` that sends [sequence, seconds, kind, request_id, uuid, embeddings] over a local socket.

    A reader that is not there or too slow loses events, which shows as a gap in the sequence; the engine never waits.
    """

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: Any) -> ReportingEncoderCacheManager:
        manager = cls(cache_size=cache_size)
        manager.connect(vllm_config.ec_manager_config.manager_config["endpoint"])
        return manager

    def __init__(self, cache_size: int) -> None:
        super().__init__(cache_size)
        self._socket: zmq.Socket[bytes] | None = None
        self._sequence = 0
        # One report a (request, input): a hit is asked for again on every scheduling step of a chunked prefill.
        self._reported: dict[str, set[int]] = {}

    def connect(self, endpoint: str) -> None:
        """Start to report to `endpoint`, which is already bound."""
        socket = zmq.Context.instance().socket(zmq.PUSH)
        socket.set(zmq.SNDHWM, _QUEUE_EVENTS)
        socket.set(zmq.LINGER, 0)
        socket.connect(endpoint)
        self._socket = socket

    def check_and_update_cache(self, request: Any, input_id: int) -> bool:
        hit = bool(super().check_and_update_cache(request, input_id))
        if hit:
            self._report_once("hit", request, input_id)
        return hit

    def allocate(self, request: Any, input_id: int) -> None:
        super().allocate(request, input_id)
        self._report_once("run", request, input_id)

    def can_allocate(
        self, request: Any, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        before = len(self.freed)
        answer = bool(super().can_allocate(request, input_id, encoder_compute_budget, num_embeds_to_schedule))
        for uuid in self.freed[before:]:
            self._send("evict", gateway_request_id(request.request_id), uuid, 0)
        return answer

    def free(self, request: Any) -> None:
        super().free(request)
        self._reported.pop(request.request_id, None)
        # A request that is preempted or not admitted lets go of its features too, and comes back.
        if request.is_finished():
            self._send("done", gateway_request_id(request.request_id), "", 0)

    def reset(self) -> None:
        super().reset()
        self._reported.clear()
        self._send("reset", "", "", 0)

    def _report_once(self, kind: str, request: Any, input_id: int) -> None:
        seen = self._reported.setdefault(request.request_id, set())
        if input_id in seen:
            return
        seen.add(input_id)
        embeddings = int(request.get_num_encoder_embeds(input_id))
        self._send(kind, gateway_request_id(request.request_id), request.mm_features[input_id].identifier, embeddings)

    def _send(self, kind: str, request_id: str, uuid: str, embeddings: int) -> None:
        if self._socket is None:
            return
        message = msgspec.msgpack.encode([self._sequence, time.time(), kind, request_id, uuid, embeddings])
        self._sequence += 1
        try:
            self._socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return
