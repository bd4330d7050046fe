"""Approximate blocks in vLLM's own prefix cache: exact requests never find them, later turns of the same kind do."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import pytest

from engine.vllm.image_kv.taint import salt_hashes, unsalt_hashes

pytestmark = pytest.mark.vllm

BLOCK_TOKENS, BLOCKS = 4, 200
SALT = "position_independent 0.05"
# The image's first token: in the middle of a block, at its start, in the first block, in the last, which is not full.
PLACES = (10, 12, 2, 42)
PROMPT = list(range(100, 143))
_requests = iter(range(1_000_000))


@pytest.fixture(scope="module", autouse=True)
def vllm() -> None:
    from engine import torchvision_ops

    torchvision_ops.declare_missing()


def request(tokens: list[int], tenant: str | None = "tenant") -> Any:
    """vLLM's own request, hashed by its own hasher."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

    if not hasattr(kv_cache_utils, "NONE_HASH"):
        kv_cache_utils.init_none_hash(sha256)
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK_TOKENS, sha256)
    params = SamplingParams(max_tokens=8)
    return Request(f"request-{next(_requests)}", list(tokens), params, None, cache_salt=tenant, block_hasher=hasher)


def salted(tokens: list[int], image: int, salt: str = SALT, tenant: str | None = "tenant") -> Any:
    made = request(tokens, tenant)
    salt_hashes(made, image // BLOCK_TOKENS, salt)
    return made


def manager() -> Any:
    """vLLM's own prefix cache, of one group of full attention."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(config, max_model_len=1024, scheduler_block_size=BLOCK_TOKENS, hash_block_size=BLOCK_TOKENS)


def serve(cache: Any, one: Any) -> int:
    """Give a request its blocks, let it compute its prompt and go; the tokens that it read."""
    blocks, read, *_ = cache.get_computed_blocks(one)
    assert cache.allocate_slots(one, one.num_tokens - read, read, blocks) is not None
    one.num_computed_tokens = one.num_tokens
    cache.free(one)
    return read


def common(one: Any, two: Any) -> int:
    """Blocks that two requests share from the start; behind them they share none."""
    pairs = list(zip(one.block_hashes, two.block_hashes, strict=False))
    count = next((at for at, (left, right) in enumerate(pairs) if left != right), len(pairs))
    assert not {*one.block_hashes[count:]} & {*two.block_hashes[count:]}
    return count


@pytest.mark.parametrize("image", PLACES)
def test_in_the_cache_exact_requests_read_up_to_the_image_and_later_turns_all(image: int) -> None:
    cache, before = manager(), image // BLOCK_TOKENS * BLOCK_TOKENS
    full = (len(PROMPT) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert serve(cache, salted(PROMPT, image)) == 0
    assert serve(cache, request(PROMPT)) == min(before, full)
    longer = [*PROMPT, *range(500, 520)]
    assert serve(cache, salted(longer, image)) == full
    # And the other way round: what an exact request left is not taken for the approximate.
    other = manager()
    assert serve(other, request(PROMPT)) == 0
    assert serve(other, salted(PROMPT, image)) == min(before, full)


@pytest.mark.parametrize("image", PLACES)
def test_hashes_part_at_the_image_also_of_tokens_to_come(image: int) -> None:
    exact, one, two = request(PROMPT), salted(PROMPT, image), salted(PROMPT, image)
    other_ratio = salted(PROMPT, image, "position_independent 0.1")
    other_tenant = salted(PROMPT, image, tenant="another")
    no_tenant = salted(PROMPT, image, tenant=None)
    for made in (exact, one, two, other_ratio, other_tenant, no_tenant):
        made.append_output_token_ids(list(range(900, 930)))
    count = (len(PROMPT) + 30) // BLOCK_TOKENS
    assert {len(made.block_hashes) for made in (exact, one, two, other_ratio)} == {count}
    assert common(exact, one) == common(one, other_ratio) == image // BLOCK_TOKENS
    assert one.block_hashes == two.block_hashes
    assert common(one, other_tenant) == common(one, no_tenant) == common(other_tenant, no_tenant) == 0
    assert (one.cache_salt, no_tenant.cache_salt) == ("tenant", None)


def test_a_request_that_vllm_cuts_back_is_salted_again_at_the_same_block() -> None:
    """A streaming session forgets the hashes behind what it computed, which may be before the image."""
    for length in range(12):
        cut, whole = salted(PROMPT, 26), salted(PROMPT, 26)
        del cut.block_hashes[length:]
        cut.update_block_hashes()
        assert cut.block_hashes == whole.block_hashes


@pytest.mark.parametrize("image", PLACES)
def test_a_request_that_is_not_salted_after_all_has_its_exact_hashes_also_of_tokens_to_come(image: int) -> None:
    exact, one = request(PROMPT), salted(PROMPT, image)
    unsalt_hashes(one, image // BLOCK_TOKENS)
    assert one.block_hashes == exact.block_hashes
    for made in (exact, one):
        made.append_output_token_ids(list(range(900, 930)))
    assert one.block_hashes == exact.block_hashes
