"""A planner and as much of vLLM's requests as it asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engine.vllm.image_kv.messages import Plan, Report
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.reporting import Reporter

BLOCK_TOKENS, FIRST, TOKENS, PROMPT = 4, 10, 20, 50
BLOCKS = list(range(100, 120))


@dataclass
class Feature:
    identifier: str
    offset: int
    length: int = TOKENS
    modality: str = "image"
    data: Any = None

    @property
    def mm_position(self) -> Any:
        return SimpleNamespace(offset=self.offset, length=self.length, get_num_embeds=lambda: self.length)


def hashes(request: Any) -> list[bytes]:
    """Those of full blocks that the request has no hash of yet: each chains from the one before."""
    made = list(request.block_hashes)
    while len(made) < PROMPT // BLOCK_TOKENS:
        before = made[-1] if made else (request.cache_salt or "").encode()
        made.append(before[-8:] + str(len(made)).encode())
    return made[len(request.block_hashes) :]


@dataclass
class Request:
    """As much of vLLM's as is asked of one."""

    request_id: str
    ratio: float | None = 0.25
    images: tuple[tuple[str, int], ...] = (("image", FIRST),)
    num_computed_tokens: int = 0
    cache_salt: str | None = "tenant"
    block_hashes: list[bytes] = field(default_factory=list[bytes])
    _block_hasher: Callable[[Any], list[bytes]] = hashes
    num_prompt_tokens: int = PROMPT
    prompt_embeds: Any = None
    lora_request: Any = None
    pooling_params: Any = None
    prompt_logprobs: int | None = None
    resumable: bool = False
    prefill_stats: Any = field(default_factory=SimpleNamespace)

    def __post_init__(self) -> None:
        self.update_block_hashes()

    def update_block_hashes(self) -> None:
        self.block_hashes.extend(self._block_hasher(self))

    @property
    def mm_features(self) -> list[Feature]:
        return [Feature(name, first) for name, first in self.images]

    @property
    def sampling_params(self) -> Any:
        return SimpleNamespace(prompt_logprobs=self.prompt_logprobs)

    @property
    def kv_transfer_params(self) -> Any:
        asked = {"mode": "position_independent", "ratio": self.ratio}
        return None if self.ratio is None else {"stillframe": asked}


def nothing_cached(_: Any) -> int:
    return 0


def step(planner: Planner, **computed: int) -> Plan:
    return planner.plan(computed, lambda _: BLOCKS)


def made(workers: int = 1, clock: Callable[[], float] = lambda: 0.0) -> Planner:
    return Planner(BLOCK_TOKENS, None, workers, Reporter(), clock)


def reach(
    planner: Planner, request: Request, computed: int = 0, lookup: Callable[[Any], int] = nothing_cached
) -> int | None:
    """As the scheduler asks when it would admit a request."""
    planner.admit(request, lookup)
    return planner.reach(request, computed)


def held(planner: Planner, request: Request) -> None:
    """The request arrives, and all that it asks for is there."""
    planner.arrive(request, nothing_cached)
    planner.told(Report({ask.hold: (1, 0) for ask in step(planner).asks}))
    assert reach(planner, request) is not None
