"""The pools of blocks by modality in the place of vLLM's, on vLLM's own KV cache manager, without a model."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.block_loads import BLOCK, IMAGE_TOKEN, Turn, interleaved, make

pytestmark = [pytest.mark.vllm]

OPERATIONS = 10_000


@pytest.fixture
def rig() -> Any:
    """Imported late: with it comes vLLM."""
    from tests.contract import block_traffic

    return block_traffic


@pytest.fixture
def pools() -> Any:
    """Our pools."""
    from engine.vllm.blocks import pool

    return pool


def test_labels_alone_leave_every_eviction_as_vllm_makes_it(rig: Any, pools: Any) -> None:
    from engine.vllm.core_0_32 import BlockPool

    stock, ours = rig.Traffic(1, BlockPool), rig.Traffic(1, pools.LabelledBlockPool)
    for _ in range(OPERATIONS):
        assert ours.step() == stock.step()
    assert stock.pool.num_gpu_blocks == rig.BLOCKS
    assert ours.pool.evicted_blocks.total() > 5000


@pytest.mark.parametrize("seed", range(3))
def test_by_modality_what_is_read_is_what_was_written_and_no_block_is_lost(rig: Any, pools: Any, seed: int) -> None:
    traffic = rig.Traffic(seed, pools.ModalityBlockPool)
    for _ in range(OPERATIONS):
        traffic.step()
    assert traffic.read_tokens > 10_000
    traffic.end()
    pool = traffic.pool
    free = pool.free_block_queue.get_all_free_blocks()
    assert sorted(block.block_id for block in free) == list(range(1, rig.BLOCKS))
    assert pool.get_num_free_blocks() == rig.BLOCKS - 1
    assert pool.reset_prefix_cache()
    assert not pool.resident_blocks()
    assert len(pool.get_new_blocks(rig.BLOCKS - 1)) == rig.BLOCKS - 1


def test_no_block_is_left_that_cannot_be_reached(rig: Any, pools: Any) -> None:
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

    # Whoever evicts blocks by their ids strands what comes after them.
    traffic = rig.Traffic(11, pools.ModalityBlockPool, names_blocks=False)
    parents: dict[Any, Any] = {}
    for step in range(OPERATIONS):
        for event in traffic.step():
            if isinstance(event, BlockStored):
                parents.update(zip(event.block_hashes, [event.parent_block_hash, *event.block_hashes], strict=False))
        if step % 20 == 0:
            cached = traffic.pool.cached_block_hash_to_block._cache
            there = {maybe_convert_block_hash(get_block_hash(key)) for key in cached}
            assert not [one for one in there if parents[one] is not None and parents[one] not in there]
    assert traffic.pool.evicted_blocks.total() > 1000


def test_a_block_table_is_shown_by_modality(rig: Any, pools: Any) -> None:
    from engine.vllm.blocks.labels import TEXT, Label
    from tests.bench.block_replay import manager_of, request_of

    manager = manager_of(pools.ModalityBlockPool, 32)
    # Two blocks of text, an image that begins in the second one and ends in the fifth, a little image, text.
    prompt = [5] * 24 + [IMAGE_TOKEN] * 44 + [5] * 4 + [IMAGE_TOKEN] * 2 + [5] * 20
    request = request_of(1, Turn("c", True, tuple(prompt), (("one", 24, 44), ("two", 72, 2)), ()))
    assert manager.allocate_slots(request, len(prompt)) is not None
    view = manager.block_pool.view(manager.get_blocks("r1").blocks[0], len(prompt), BLOCK)
    assert view.labels == (
        TEXT,
        Label("mixed", "one", 0, 8),
        Label("image", "one", 8, 16),
        Label("image", "one", 24, 16),
        Label("mixed", "one", 40, 6),
    )
    assert view.blocks == {"text": 1, "mixed": 2, "image": 2}
    assert view.unused_slots == 2
    assert manager.block_pool.resident_image_tokens() == {"one": 46}


@pytest.mark.slow
def test_active_conversations_compute_a_third_less_again_among_idle_ones(pools: Any) -> None:
    from engine.vllm.core_0_32 import BlockPool
    from tests.bench.block_replay import replay

    changes: list[float] = []
    lru_tokens = tokens = 0
    for seed in (3, 5, 7, 10, 14):
        load = make(interleaved(seed), seed)
        lru, ours = replay(load, BlockPool), replay(load, pools.ModalityBlockPool)
        assert lru.prompt == ours.prompt
        assert lru.known == ours.known
        changes.append((ours.recomputed_active - lru.recomputed_active) / lru.prompt)
        lru_tokens, tokens = lru_tokens + lru.recomputed_active, tokens + ours.recomputed_active
    assert tokens <= 0.7 * lru_tokens
    assert max(changes) < 0.02
