"""The mirror against vLLM's own block manager, without a model: what it holds is looked up in it."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from engine import torchvision_ops
from metrics.kv_mirror import KvMirror, Owner

pytestmark = [pytest.mark.vllm]

EVENTS = 10_000
BLOCK = 16
BLOCKS = 97


class Pool:
    """vLLM's KV cache manager under traffic of its own: common beginnings, replies, requests side by side, aborts."""

    def __init__(self, seed: int) -> None:
        # As every process of the engine does, before vLLM is imported.
        torchvision_ops.declare_missing()
        import torch
        from vllm.distributed.kv_events import KVEventBatch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        from engine.vllm.telemetry import KVReader

        init_none_hash(sha256)
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
        config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], spec)])
        self.manager = KVCacheManager(
            config,
            max_model_len=BLOCKS * BLOCK,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_kv_cache_events=True,
        )
        self.random = Random(seed)  # noqa: S311
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.reader, self.batch = KVReader(), KVEventBatch
        self.running: list[Any] = []
        self.history: list[list[int]] = [[]]
        self.sequence = self.events = self.requests = 0

    def step(self) -> Any:
        """Begin, carry on or end a request; what the pool told of it, as it comes through the socket."""
        if len(self.running) < 3 and self.random.random() < 0.5:
            self._begin()
        elif self.running:
            request = self.random.choice(self.running)
            if request.num_output_tokens > self.random.randrange(40) or not self._decode(request):
                self.running.remove(request)
                self.manager.free(request)
        if self.random.random() < 0.0005 and not self.running:
            assert self.manager.reset_prefix_cache()
        events = self.manager.take_events()
        if not events:
            return None
        self.events += len(events)
        payload = msgspec.msgpack.encode(self.batch(ts=1.0, events=events))
        found = self.reader([b"", self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1
        return found

    def resident(self) -> set[Any]:
        """The hashes of the blocks that the pool holds, as its events name them."""
        from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

        cached = self.manager.block_pool.cached_block_hash_to_block._cache
        return {maybe_convert_block_hash(get_block_hash(key)) for key in cached}

    def _begin(self) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        begun = self.random.choice(self.history)
        begun = begun[: self.random.randrange(len(begun) + 1)] if self.random.random() < 0.3 else begun
        tokens = begun + [self.random.randrange(9) for _ in range(self.random.randrange(1, 6 * BLOCK))]
        if len(tokens) > 24 * BLOCK:
            tokens = tokens[:BLOCK]
        self.requests += 1
        request = Request(
            f"r{self.requests}", tokens, SamplingParams(max_tokens=64), None, block_hasher=self.hasher, session_id="s"
        )
        blocks, computed, *_ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - computed, computed, blocks) is None:
            return
        request.num_computed_tokens = len(tokens)
        self.history = [*self.history[-5:], tokens]
        self.running.append(request)

    def _decode(self, request: Any) -> bool:
        """One token of a reply; whether there was room."""
        request.append_output_token_ids(self.random.randrange(9))
        if self.manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True


@pytest.mark.parametrize("seed", range(2))
def test_it_equals_the_pool_after_ten_thousand_events(seed: int) -> None:
    pool, mirror = Pool(seed), KvMirror(BLOCK)
    mirror.begin("s", Owner("tenant", "c"))
    steps = 0
    while pool.events < EVENTS:
        if (batch := pool.step()) is not None:
            mirror.take(batch)
        steps += 1
        if not steps % 500:
            assert mirror.resident() == pool.resident()
    assert mirror.resident() == pool.resident()
    assert (mirror.gaps, mirror.uncertain_blocks, mirror.forgotten) == (0, 0, 0)
    assert mirror.last_eviction > 1000


@pytest.mark.parametrize("missed", [1, 25])
def test_after_a_gap_it_claims_only_what_is_there_and_finds_all_again(missed: int) -> None:
    pool, mirror = Pool(7), KvMirror(BLOCK)
    while pool.events < 1000:
        if (batch := pool.step()) is not None:
            mirror.take(batch)
    begun = pool.sequence
    while pool.sequence < begun + missed:
        pool.step()
    steps = 0
    while pool.events < 1000 + EVENTS:
        if (batch := pool.step()) is not None:
            mirror.take(batch)
        steps += 1
        # Before the next batch nobody can know of the gap.
        if mirror.gaps and (steps < 300 or not steps % 200):
            assert mirror.resident() <= pool.resident()
    assert mirror.gaps == 1
    assert mirror.resident() == pool.resident()
