"""Names of vLLM 0.32 that are used inside of the engine core and its workers, beside those of `v0_32.py`.

Importing this module imports vLLM's model code. Like there, what moved is said at start: of classes by `check` and
`check_pool`, and of what only an object has by `check_instance`, once it is made.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportUntypedBaseClass=false

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import vllm
from vllm.config import KVTransferConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata, ECConnectorRole
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.multimodal.utils import strip_covered_mm_data
from vllm.sampling_params import SamplingParams
from vllm.v1.core import kv_cache_coordinator
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, get_block_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import NewRequestData, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.request import Request

from context.errors import ConfigError

__all__ = [
    "ENGINE",
    "AsyncScheduler",
    "BlockPool",
    "ECConnectorBase",
    "ECConnectorMetadata",
    "ECConnectorRole",
    "FreeKVCacheBlockQueue",
    "KVConnectorBase_V1",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "KVConnectorWorkerMetadata",
    "Scheduler",
    "SupportsHMA",
    "check",
    "check_instance",
    "check_pool",
    "count_loaded",
    "get_block_hash",
    "get_kv_transfer_group",
    "is_full_attention",
    "kv_cache_coordinator",
    "model_folder",
    "own_config",
    "parts_of",
    "rank",
    "without_pixels",
]

ENGINE = f"vllm {vllm.__version__}"

# What the reuse of images' KV hooks into, with the parameters that it passes or reads.
_NEEDED: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "Scheduler": (
        Scheduler,
        {
            "schedule": ("throttle_prefills",),
            "_get_local_prefix_cache_hit": ("request",),
            "_try_schedule_encoder_inputs": (
                "request",
                "num_computed_tokens",
                "num_new_tokens",
                "encoder_compute_budget",
            ),
            "_preempt_request": ("request",),
            "_free_request": ("request",),
            "reset_prefix_cache": (),
        },
    ),
    "SchedulerOutput": (
        SchedulerOutput,
        {
            "__init__": (
                "has_sync_kv_loads",
                "scheduled_new_reqs",
                "num_scheduled_tokens",
                "total_num_scheduled_tokens",
                "finished_req_ids",
            )
        },
    ),
    "NewRequestData": (
        NewRequestData,
        {
            "__init__": (
                "req_id",
                "prompt_token_ids",
                "mm_features",
                "sampling_params",
                "pooling_params",
                "block_ids",
                "num_computed_tokens",
                "lora_request",
            )
        },
    ),
    "Request": (Request, {"__init__": ("block_hasher", "cache_salt", "mm_features"), "update_block_hashes": ()}),
    "KVTransferConfig": (KVTransferConfig, {"kv_connector_module_path": (), "get_from_extra_config": ("key",)}),
    "KVConnectorBase_V1": (
        KVConnectorBase_V1,
        {
            "bind_kv_cache_manager": ("kv_cache_manager",),
            "on_new_request": ("request",),
            "request_finished": ("request", "block_ids"),
            "requires_piecewise_for_cudagraph": ("extra_config",),
            "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
            "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
            "build_connector_meta": ("scheduler_output",),
            "update_connector_output": ("connector_output",),
            "register_kv_caches": ("kv_caches",),
            "bind_connector_metadata": ("connector_metadata",),
            "start_load_kv": ("forward_context",),
            "wait_for_save": (),
            "build_connector_worker_meta": (),
            "reset_cache": (),
        },
    ),
    "ECConnectorBase": (
        ECConnectorBase,
        {
            "has_cache_item": ("identifier",),
            "update_state_after_alloc": ("request", "index"),
            "build_connector_meta": ("scheduler_output",),
            "start_load_caches": ("encoder_cache",),
            "save_caches": ("encoder_cache", "mm_hash"),
        },
    ),
}

# What the pool of blocks by modality stands in for, and what it reads.
_POOL_NEEDED: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "BlockPool": (
        BlockPool,
        {
            "cache_full_blocks": (
                "request",
                "blocks",
                "num_cached_blocks",
                "num_full_blocks",
                "block_size",
                "block_mask",
            ),
            "touch": ("blocks",),
            "move_block_hashes": ("src_block", "dst_block"),
            "reset_prefix_cache": (),
            "_maybe_evict_cached_block": ("block",),
            "evict_blocks": ("block_ids",),
        },
    ),
    "FreeKVCacheBlockQueue": (
        FreeKVCacheBlockQueue,
        {"popleft_n": ("n",), "remove": ("block",), "append_n": ("blocks",), "prepend_n": ("blocks",)},
    ),
}

# What only a request has that is made.
_OF_A_REQUEST = ("_block_hasher", "block_hashes", "cache_salt", "mm_features", "prompt_token_ids", "prefill_stats")
_ENCODER_INPUTS = "tuple[list[int], int, int, list[int], list[int]]"


def check() -> None:
    """Say what of vLLM's core is not as the reuse of images' KV expects.

    Raises:
        ConfigError: a name or a parameter moved; names all of them.
    """
    moved = [f"{name}.{part}" for name, (owner, parts) in _NEEDED.items() for part in moved_of(owner, parts)]
    request = Request("check", [0], SamplingParams(max_tokens=1), None)
    moved += [f"Request.{part}" for part in missing_of(request, _OF_A_REQUEST)]
    # A function that the scheduler's mix-in stands in for, so that it gives the same.
    answer = inspect.signature(Scheduler._try_schedule_encoder_inputs)  # pyright: ignore[reportPrivateUsage]
    if str(answer.return_annotation) != _ENCODER_INPUTS:
        moved.append("Scheduler._try_schedule_encoder_inputs(return)")
    refuse_moved(moved, "turn reuse off")


def check_pool() -> None:
    """Say what of vLLM's pool of blocks is not as the one by modality expects.

    Raises:
        ConfigError: a name or a parameter moved, or what makes the pool has another place; names all of them.
    """
    moved = [f"{name}.{part}" for name, (owner, parts) in _POOL_NEEDED.items() for part in moved_of(owner, parts)]
    if getattr(kv_cache_coordinator, "BlockPool", None) is not BlockPool:
        moved.append("kv_cache_coordinator.BlockPool")
    refuse_moved(moved, "set eviction to lru")


def check_instance(owner: object, name: str, parts: Sequence[str], way_out: str = "") -> None:
    """Say what an object lacks that vLLM made: its class does not tell.

    Args:
        owner: the object.
        name: of its class in vLLM.
        parts: the attributes that are used; `a.b` is one of its `a`.
        way_out: what may be done instead of another installation.

    Raises:
        ConfigError: names all that are missing.
    """
    refuse_moved([f"{name}.{part}" for part in missing_of(owner, parts)], way_out)


def missing_of(owner: object, parts: Sequence[str]) -> list[str]:
    """Of an object, those attributes that are missing; `a.b` is one of its `a`."""
    missing: list[str] = []
    for part in parts:
        try:
            attrgetter(part)(owner)
        except AttributeError:
            missing.append(part)
    return missing


def refuse_moved(moved: Sequence[str], way_out: str = "") -> None:
    """Refuse to start where anything moved.

    Raises:
        ConfigError: names all of it, and what may be done.
    """
    if not moved:
        return
    remedy = "Install the pinned requirements" + (f", or {way_out}." if way_out else ".")
    reason = f"vLLM is not as this release of Stillframe knows it: {', '.join(moved)}"
    raise ConfigError("environment", "", f"{reason}. {remedy}")


def moved_of(owner: Any, needed: dict[str, tuple[str, ...]]) -> list[str]:
    """Of a class, the methods that are missing, and the parameters as `method(parameter)`."""
    moved: list[str] = []
    for method, parameters in needed.items():
        if not hasattr(owner, method):
            moved.append(method)
        elif parameters:
            known = inspect.signature(getattr(owner, method)).parameters
            moved += [f"{method}({parameter})" for parameter in parameters if parameter not in known]
    return moved


def own_config(config: Any, part: str) -> Mapping[str, Any]:
    """What the gateway says to its own classes inside of the engine about one of their parts; empty where it is off."""
    additional = cast("Mapping[str, Any]", config.additional_config or {})
    return additional.get("stillframe", {}).get(part, {})


class ReusePrefillStats(PrefillStats):
    """A prefill of which tokens were loaded from the image pool: neither read from the prefix cache nor written."""

    loaded_tokens = 0

    def finalize(self, num_cached_tokens: int) -> None:
        super().finalize(num_cached_tokens)
        self.num_cache_creation_tokens = max(0, self.num_cache_creation_tokens - self.loaded_tokens)


def count_loaded(request: Any, tokens: int) -> None:
    """Keep tokens that were loaded for a request out of what vLLM reports as cached or as written."""
    stats = request.prefill_stats
    if stats is None:
        return
    if not isinstance(stats, ReusePrefillStats):
        request.prefill_stats = ReusePrefillStats(
            **{field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
        )
    request.prefill_stats.loaded_tokens = tokens


def is_full_attention(spec: Any) -> bool:
    """Whether a group's layers attend to all tokens before each."""
    return type(spec) is FullAttentionSpec and not (spec.sliding_window or spec.attention_chunk_size or spec.non_causal)


def without_pixels(features: Sequence[Any], uses_mrope: bool) -> list[Any]:
    """Images as a worker takes them that never runs its vision encoder on them: where they stand, and their grids."""
    return strip_covered_mm_data(list(features), sys.maxsize, uses_mrope=uses_mrope)


def parts_of(request: Any, places: Mapping[str, tuple[int, int]], blocks: Sequence[int], uses_mrope: bool) -> list[Any]:
    """Stretches of a request's prompt as requests of their own, for a worker: it computes them beside each other.

    Each layer writes the keys and values of all rows of a step before it reads any, so that a stretch reads those of
    the stretches before it. They end before their prompt does, so that the worker gives no token for them.

    Args:
        request: vLLM's.
        places: each stretch's first token and one behind its last, by the name that it goes by.
        blocks: of the request.
        uses_mrope: whether the worker needs the images' grids for the positions.
    """
    features = without_pixels(request.mm_features, uses_mrope)
    # Shared, they cross to the worker once.
    tokens, block_ids, sampling = request.prompt_token_ids, (list(blocks),), SamplingParams(temperature=0, max_tokens=1)
    return [
        NewRequestData(
            req_id=name,
            prompt_token_ids=tokens,
            mm_features=features,
            sampling_params=sampling,
            pooling_params=None,
            block_ids=block_ids,
            num_computed_tokens=start,
            lora_request=None,
        )
        for name, (start, _) in places.items()
    ]


def model_folder(model: Any) -> Path:
    """Where a model's files are; of one from a hub, its snapshot."""
    if (folder := Path(model.model)).is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model.model, revision=model.revision, local_files_only=True))


def rank(parallel: Any) -> int:
    """This worker's among those that part the heads."""
    return int(get_tensor_model_parallel_rank()) if parallel.tensor_parallel_size > 1 else 0
