"""A load on vLLM's own KV cache manager, without a model: what would have to be computed again?"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

# As every process of the engine does, before vLLM is imported.
# ruff: noqa: E402
from engine import torchvision_ops

torchvision_ops.declare_missing()

import hashlib
import pickle
import time
from dataclasses import dataclass
from typing import Any

import torch
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from engine.vllm.blocks.install import pools_of
from tests.bench.block_loads import BLOCK, Load, Turn

_SAMPLING = SamplingParams(max_tokens=65_536)


def quick_hash(value: Any) -> bytes:
    """As good as vLLM's for this, in a third of the time."""
    return hashlib.blake2b(pickle.dumps(value), digest_size=16).digest()


init_none_hash(quick_hash)


@dataclass(slots=True)
class Replayed:
    """Tokens of a load.

    Attributes:
        prompt: of all prompts.
        known: of those, in blocks that had been computed before.
        recomputed: of those, what was not there any more.
        recomputed_active: the same, of active conversations.
        seconds: of CPU, in the manager.
    """

    prompt: int = 0
    known: int = 0
    recomputed: int = 0
    recomputed_active: int = 0
    seconds: float = 0.0


def manager_of(pool: type[Any], blocks: int, block: int = BLOCK, *, events: bool = False) -> Any:
    """vLLM's manager of a cache of one group of layers with full attention."""
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["a"], spec)])
    with pools_of(pool):
        return KVCacheManager(
            config,
            max_model_len=1 << 20,
            scheduler_block_size=block,
            hash_block_size=block,
            enable_kv_cache_events=events,
        )


_HASHER = get_request_block_hasher(BLOCK, quick_hash)


def request_of(number: int, turn: Turn) -> Any:
    """A turn as vLLM's request."""
    images = [
        MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset, length))
        for identifier, offset, length in turn.images
    ]
    return Request(f"r{number}", list(turn.prompt), _SAMPLING, None, mm_features=images, block_hasher=_HASHER)


def request_with(number: int, images: tuple[tuple[str, int], ...]) -> Any:
    """A request of which only its images matter: identifier and embeddings of each."""
    features = [MultiModalFeatureSpec(None, "image", name, PlaceholderRange(0, count)) for name, count in images]
    return Request(f"r{number}", [0], _SAMPLING, None, mm_features=features)


def replay(load: Load, pool: type[Any], at_once: int = 2) -> Replayed:
    """Serve a load, `at_once` requests at one time.

    Raises:
        AssertionError: blocks were lost.
    """
    manager, found = manager_of(pool, load.blocks), Replayed()
    seen, running = set[bytes](), list[Any]()
    for number, turn in enumerate(load.turns):
        request = request_of(number, turn)
        while len(running) >= at_once:
            manager.free(running.pop(0))
        began = time.process_time()
        read = _admit(manager, request, running)
        _answer(manager, request, list(turn.reply), running)
        found.seconds += time.process_time() - began
        _count(found, turn, request.block_hashes, seen, read)
        seen.update(request.block_hashes)
        running.append(request)
    for request in running:
        manager.free(request)
    assert manager.block_pool.get_num_free_blocks() == load.blocks - 1
    return found


def _admit(manager: Any, request: Any, running: list[Any]) -> int:
    while True:
        blocks, read, *_ = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, request.num_tokens - read, read, blocks) is not None:
            request.num_computed_tokens = request.num_tokens
            return int(read)
        manager.free(running.pop(0))


def _answer(manager: Any, request: Any, reply: list[int], running: list[Any]) -> None:
    request.append_output_token_ids(reply)
    while manager.allocate_slots(request, len(reply)) is None:
        manager.free(running.pop(0))
    request.num_computed_tokens += len(reply)


def _count(found: Replayed, turn: Turn, hashes: list[bytes], seen: set[bytes], read: int) -> None:
    # vLLM always computes the last token.
    most = (len(turn.prompt) - 1) // BLOCK
    known = next((at for at, digest in enumerate(hashes[:most]) if digest not in seen), most) * BLOCK
    found.prompt += len(turn.prompt)
    found.known += known
    found.recomputed += known - read
    found.recomputed_active += (known - read) * turn.is_active
