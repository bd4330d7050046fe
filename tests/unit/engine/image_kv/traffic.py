"""Made-up traffic on the planner and vLLM's own requests and prefix cache: it tells what nobody may ever see.

Every place of the paged cache has a mark: whether it holds what a full computation gives. What is loaded does not, nor
what is computed behind it.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from engine.base import ImageReuse
from engine.vllm.image_kv.jumps import Stretch
from engine.vllm.image_kv.messages import Load, Plan, Report, Span
from engine.vllm.image_kv.planner import Planner
from engine.vllm.image_kv.reporting import Reporter
from metrics.usage import read_usage, with_loaded
from tests.unit.engine.image_kv.planned import BLOCK_TOKENS, Feature
from tests.unit.engine.image_kv.test_layers import FALLING

IMAGES = {"A": 9, "B": 14, "C": 5}
REPLY_TOKENS = 3
Place = tuple[int, int]


class Heard(Reporter):
    """Keeps what it is told of requests."""

    def __init__(self) -> None:
        super().__init__()
        self.reuses: dict[str, ImageReuse] = {}

    def request(self, reuse: ImageReuse) -> None:
        self.reuses[reuse.request_id] = reuse


class Traffic:
    """Requests of all kinds in a cache that is too small for them, from one seed.

    Attributes:
        seen: how often each thing happened.
        wrong: how often each thing happened that must not.
    """

    def __init__(self, seed: int) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        self.seen, self.wrong = Counter[str](), Counter[str]()
        self._rng = random.Random(seed)  # noqa: S311
        if not hasattr(kv_cache_utils, "NONE_HASH"):
            kv_cache_utils.init_none_hash(sha256)
        self._hasher = kv_cache_utils.get_request_block_hasher(BLOCK_TOKENS, sha256)
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(self._rng.choice((24, 24, 28, 40)), [], [KVCacheGroupSpec(["layer"], spec)])
        sizes = {"scheduler_block_size": BLOCK_TOKENS, "hash_block_size": BLOCK_TOKENS}
        self._cache: Any = KVCacheManager(config, max_model_len=1024, **sizes)
        self._heard = Heard()
        self._planner = Planner(BLOCK_TOKENS, None, 1, self._heard, lambda: 0.0, FALLING)
        self._exact: dict[Place, bool] = {}
        self._waiting: list[Any] = []
        self._running: list[Any] = []
        # Holds that were asked for, and those that the worker has.
        self._asked: set[int] = set()
        self._held: set[int] = set()
        self._prompts = [self._prompt() for _ in range(3)]
        self._numbers = itertools.count()

    def run(self, steps: int) -> None:
        """Serve for so many steps, and have all go that are left."""
        for _ in range(steps):
            if len(self._alive) < 6 and self._rng.random() < 0.5:
                self._come()
            for request in self._alive:
                if self._rng.random() < 0.02:
                    self._go(request)
            self._step()
        for request in self._alive:
            self._go(request)
        self._carry_out(self._planner.plan({}, self._blocks_of), {})
        if self._asked or self._held or self._planner._tracked or self._planner._asked or self._planner._answers:
            self.wrong["something is left"] += 1

    @property
    def _alive(self) -> list[Any]:
        return [*self._running, *self._waiting]

    def _prompt(self) -> tuple[list[int], list[Feature]]:
        tokens, images = list[int](), list[Feature]()
        for _ in range(self._rng.choice((1, 2, 3, 3))):
            text = self._rng.choice((100, 200))
            tokens += range(text, text + self._rng.choice((0, 3, 8)))
            name = self._rng.choice("ABC")
            images.append(Feature(name, len(tokens), IMAGES[name]))
            tokens += [7] * IMAGES[name]
        tokens += range(300, 300 + self._rng.choice((0, 1, 5)))
        return tokens, images

    def _come(self) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        tokens, images = self._rng.choice(self._prompts)
        request: Any = Request(
            f"request-{next(self._numbers)}",
            [*tokens, *range(500, 500 + self._rng.choice((0, 0, 6)))],
            SamplingParams(max_tokens=8),
            None,
            cache_salt="tenant",
            mm_features=[*images],
            block_hasher=self._hasher,
        )
        ratio = self._rng.choice((None, 0, 0.3, 0.3))
        asked = {"mode": "position_independent", "ratio": ratio, "profile": self._rng.random() < 0.3}
        request.kv_transfer_params = None if ratio is None else {"stillframe": asked}
        self._waiting.append(request)
        self._planner.arrive(request, self._lookup)

    def _go(self, request: Any) -> None:
        (self._running if request in self._running else self._waiting).remove(request)
        self._planner.finished(request)
        self._cache.free(request)

    def _lookup(self, request: Any) -> int:
        return int(self._cache.get_computed_blocks(request)[1])

    def _blocks_of(self, request_id: str) -> list[int]:
        return self._cache.get_block_ids(request_id)[0]

    def _step(self) -> None:
        """As vLLM's scheduler: those that run, then those that wait, unless somebody lost its blocks."""
        room = self._rng.choice((0, 4, 30)), self._rng.choice((0, 1, 4))
        self._planner.make_room([*self._running, *self._waiting[:4]], *room)
        moved = self._planner.jump(self._running)
        scheduled, read = dict[str, int](), list[tuple[Any, int]]()
        if self._schedule_running(scheduled):
            read = self._admit(scheduled)
        plan = self._planner.plan(scheduled, self._blocks_of)
        self._count_loaded()
        self._carry_out(plan, scheduled)
        # Behind the step: it may have computed for one what another reads.
        for request, tokens in read:
            self._check_read(request, tokens)
        for request in self._running:
            request.num_computed_tokens += scheduled.get(request.request_id, 0)
        self._planner.settle(moved)
        self._answer()
        self._reply()

    def _schedule_running(self, scheduled: dict[str, int]) -> bool:
        """Whether all kept their blocks."""
        before = self.seen["preempted"]
        for request in list(self._running):
            if request not in self._running or self._rng.random() < 0.15:
                continue
            wanted = min(self._rng.choice((1, 3, 10, 40)), request.num_tokens - request.num_computed_tokens)
            count = self._planner.cut(request, request.num_computed_tokens, wanted)
            if count <= 0:
                continue
            while self._cache.allocate_slots(request, count) is None:
                victim = self._running.pop()
                self._preempt(victim)
                if victim is request:
                    return False
            scheduled[request.request_id] = count
        return self.seen["preempted"] == before

    def _preempt(self, request: Any) -> None:
        self._planner.preempted(request)
        self._cache.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._waiting.insert(0, request)
        self.seen["preempted"] += 1

    def _admit(self, scheduled: dict[str, int]) -> list[tuple[Any, int]]:
        """Who was admitted, with the tokens that it read."""
        admitted: list[tuple[Any, int]] = []
        for request in list(self._waiting):
            if self._rng.random() < 0.2:
                break
            self._planner.admit(request, self._lookup)
            blocks, read, *_ = self._cache.get_computed_blocks(request)
            loaded = self._planner.reach(request, read)
            if loaded is None:
                self.seen["waited for an answer"] += 1
                continue
            computed = read + loaded
            wanted = min(self._rng.choice((1, 5, 40)), request.num_tokens - computed)
            count = self._planner.cut(request, computed, wanted)
            allocate = self._cache.allocate_slots
            if count <= 0 or allocate(request, count, read, blocks, num_external_computed_tokens=loaded) is None:
                break
            if not loaded:
                self._planner.forget_reach(request)
            if request.prefill_stats is not None and not request.num_preemptions:
                request.prefill_stats.set(request.num_prompt_tokens, read, 0)
            request.num_computed_tokens = computed
            self._waiting.remove(request)
            self._running.append(request)
            scheduled[request.request_id] = count
            admitted.append((request, read))
        return admitted

    def _check_read(self, request: Any, read: int) -> None:
        tracked = self._planner._tracked.get(request.request_id)
        salted = None if tracked is None else tracked.salted
        until = read if salted is None else min(read, salted)
        if not all(self._exact[place] for place in self._places(request, 0, until)):
            kind = "an exact request" if salted is None else "a salted one, before its salt,"
            self.wrong[f"{kind} read what is approximate"] += 1
        self.seen["exact tokens read"] += until

    def _places(self, request: Any, start: int, end: int) -> list[Place]:
        blocks = self._blocks_of(request.request_id)
        return [(blocks[at // BLOCK_TOKENS], at % BLOCK_TOKENS) for at in range(start, end)]

    def _carry_out(self, plan: Plan, scheduled: Mapping[str, int]) -> None:
        self._asked |= {ask.hold for ask in plan.asks}
        self._check_loads(plan.loads)
        by_layer = {place for load in plan.loads if load.rows for place in _places_of(load.span)}
        passed = {request.request_id: stretches for request, stretches in self._planner.passed}
        for request in self._running:
            start, name = request.num_computed_tokens, request.request_id
            # One that was moved and got no turn has no blocks for it yet.
            last = [Stretch(start, start + scheduled[name])] if name in scheduled else []
            for stretch in (*passed.get(name, ()), *last):
                behind_exact = all(self._exact[place] for place in self._places(request, 0, stretch.start))
                for place in self._places(request, stretch.start, stretch.end):
                    behind_exact = self._exact[place] = behind_exact and place not in by_layer
        for capture in plan.captures:
            if not all(self._exact[place] for place in _places_of(capture.span)):
                self.wrong["something approximate was captured"] += 1
        self.seen["captured"] += len(plan.captures)
        self._asked -= set(plan.releases)
        self._held -= set(plan.releases)

    def _check_loads(self, loads: Iterable[Load]) -> None:
        for load in loads:
            for place in _places_of(load.span):
                self._exact[place] = False
            if load.hold not in self._held:
                self.wrong["something was loaded that is not held"] += 1
            self.seen["loaded"] += 1

    def _answer(self) -> None:
        """The worker answers some of what it was asked."""
        report = Report()
        for hold in sorted(self._asked):
            if self._rng.random() < 0.6:
                has_it = self._rng.random() < 0.8
                report.answers[hold] = (1, 0) if has_it else (0, 1)
                self._asked.discard(hold)
                self._held |= {hold} if has_it else set()
        self._planner.told(report)

    def _count_loaded(self) -> None:
        from engine.vllm import core_0_32 as core

        for request, tokens in self._planner.loading:
            core.count_loaded(request, tokens)

    def _reply(self) -> None:
        """Requests whose prompt is computed get a token, or have all of theirs and go."""
        for request in list(self._running):
            if request.num_computed_tokens < request.num_tokens:
                continue
            if (stats := request.take_prefill_stats()) is not None:
                stats.finalize(request.num_computed_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
                request.told = stats
            if request.num_tokens - request.num_prompt_tokens < REPLY_TOKENS:
                request.append_output_token_ids([900 + request.num_tokens])
            else:
                self._go(request)
                self._check_figures(request)

    def _check_figures(self, request: Any) -> None:
        reuse = self._heard.reuses.pop(request.request_id, None)
        if reuse is None:
            return
        if reuse.loaded_tokens != getattr(request.told, "loaded_tokens", 0):
            self.wrong["more or less was loaded than the usage says"] += 1
        details = {
            "cached_tokens": request.told.num_cached_tokens,
            "created_cache_tokens": request.told.num_cache_creation_tokens,
        }
        said = {"prompt_tokens": request.num_prompt_tokens, "prompt_tokens_details": details}
        usage = with_loaded(read_usage(said), reuse.loaded_tokens)
        parts = (usage.read_tokens, usage.write_tokens, usage.loaded_tokens, usage.uncached_tokens)
        if sum(part or 0 for part in parts) != request.num_prompt_tokens or usage.write_derived:
            self.wrong["the parts are not the prompt"] += 1
        if not request.num_preemptions and usage.loaded_tokens != reuse.loaded_tokens:
            self.wrong["loaded tokens found no place in the usage"] += 1
        self.seen["told after a preemption"] += request.num_preemptions > 0


def _places_of(span: Span) -> list[Place]:
    places = range(span.first, span.first + span.count)
    return [(span.blocks[at // BLOCK_TOKENS], at % BLOCK_TOKENS) for at in places]
