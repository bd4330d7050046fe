"""Names of vLLM 0.32 that the tiers for blocks are built on, beside those of `core_0_32.py`.

They are apart from them because they load vLLM's offloading, which an engine without tiers does not need. Like there,
what moved is said at start: of classes by `check`, and of what only an object has by `check_made`, once it is made.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportUntypedBaseClass=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.platforms import current_platform
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingWorker,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from engine.vllm.core_0_32 import check_instance, moved_of, refuse_moved

__all__ = [
    "CPULoadStoreSpec",
    "CPUOffloadingWorker",
    "CPUPrimaryTierOffloadingManager",
    "CacheHitSource",
    "GPULoadStoreSpec",
    "JobResult",
    "KVConnectorRole",
    "LookupResult",
    "Medium",
    "OffloadingConnector",
    "OffloadingWorker",
    "Region",
    "ReqContext",
    "RequestOffloadingContext",
    "SecondaryTierManager",
    "TieringOffloadingManager",
    "TieringOffloadingSpec",
    "TransferJob",
    "TransferResult",
    "busy_blocks",
    "check",
    "check_made",
    "cpu_layout",
    "forget_name",
    "is_cpu",
    "open_requests",
]

# What the tiers override, call or stand in for, with the parameters that they pass or read.
_NEEDED: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "OffloadingConnector": (
        OffloadingConnector,
        {"__init__": ("vllm_config", "role", "kv_cache_config"), "on_new_request": ("request",), "reset_cache": ()},
    ),
    "TieringOffloadingSpec": (
        TieringOffloadingSpec,
        {"__init__": ("config",), "get_manager": (), "get_worker": ("kv_caches",), "create_worker": ("kv_caches",)},
    ),
    "SharedOffloadRegion": (
        SharedOffloadRegion,
        {
            "__init__": ("engine_id", "num_chunks", "rank", "kv_bytes_per_chunk", "cpu_page_size"),
            "create_next_worker_view": ("tensor_page_size",),
            "cleanup": (),
        },
    ),
    "CPUPrimaryTierOffloadingManager": (
        CPUPrimaryTierOffloadingManager,
        {
            "__init__": ("num_chunks", "mmap_region", "cache_policy", "enable_events"),
            "prepare_store": ("keys", "req_context"),
            "complete_store": ("keys", "req_context", "success"),
            "lookup": ("key", "req_context"),
            "complete_load": ("keys", "req_context"),
            "get_kv_memoryview": (),
            "reset_cache": (),
        },
    ),
    "TieringOffloadingManager": (
        TieringOffloadingManager,
        {
            "__init__": ("primary_tier", "secondary_tiers"),
            "prepare_load": ("keys", "req_context"),
            "prepare_store": ("keys", "req_context"),
            "complete_store": ("keys", "req_context", "success"),
            "complete_load": ("keys", "req_context"),
            "get_load_source": ("key", "req_context"),
            "on_request_finished": ("req_context", "exclude_tier_idx"),
            "on_schedule_end": ("context",),
            "reset_cache": (),
        },
    ),
    "SecondaryTierManager": (
        SecondaryTierManager,
        {
            "__init__": ("offloading_spec", "primary_kv_view", "tier_type"),
            "lookup": ("key", "req_context"),
            "submit_store": ("job_metadata",),
            "submit_load": ("job_metadata",),
            "get_finished_jobs": (),
            "on_new_request": ("req_context",),
            "drain_jobs": (),
            "shutdown": (),
        },
    ),
    "OffloadingWorker": (
        OffloadingWorker,
        {
            "submit_store": ("job_id", "src_spec", "dst_spec"),
            "submit_load": ("job_id", "src_spec", "dst_spec"),
            "get_finished": (),
            "wait": ("job_ids",),
            "shutdown": (),
        },
    ),
    "CPUOffloadingWorker": (
        CPUOffloadingWorker,
        {"__init__": ("kv_caches", "blocks_per_chunk", "num_cpu_chunks", "mmap_region")},
    ),
    "cpu_attn": (cpu_attn, {"_get_attn_isa": ("dtype", "block_size", "head_size", "kv_cache_dtype")}),
    "ReqContext": (ReqContext, {"get_offload_key_position": ("key",), "set_state": ("val",), "get_state": ("cls",)}),
    "JobResult": (JobResult, {"__init__": ("job_id", "success", "successful_keys", "transfer_time", "transfer_bytes")}),
    "TransferJob": (TransferJob, {"__init__": ("job_id", "keys", "chunk_ids", "req_context")}),
    "GPULoadStoreSpec": (GPULoadStoreSpec, {"__init__": ("block_ids", "group_sizes", "block_indices")}),
}

# What only an object has, and is read or set.
_NEEDED_OF_OBJECTS: dict[str, tuple[str, ...]] = {
    "SharedOffloadRegion": ("mmap_path", "_creator"),
    "CPUPrimaryTierOffloadingManager": ("_free_list", "_num_evictable_cache_chunks", "_num_allocated_chunks"),
    "TieringOffloadingManager": ("_req_state",),
    "SecondaryTierManager": ("block_size_bytes",),
    "TieringOffloadingSpec": (
        "blocks_per_chunk",
        "config.cache.tokens_per_hash",
        "config.engine_id",
        "config.groups",
        "config.kv_cache_layout",
        "config.model.dtype",
        "config.parallel.data_parallel_index",
        "config.parallel.data_parallel_size",
        "config.parallel.dcp_size",
        "config.parallel.pcp_size",
        "config.parallel.pp_size",
        "config.parallel.rank",
        "config.parallel.tp_size",
        "cpu_page_size_per_worker",
        "eviction_policy",
        "extra_config",
        "kv_bytes_per_chunk",
        "kv_events_config.enable_kv_cache_events",
        "num_chunks",
        "replicated_layout",
        "tokens_per_block",
    ),
}
_WAY_OUT = "remove block_tiers"


class Region(SharedOffloadRegion):
    """The memory tier in a process. Its name may be gone before it: see `forget_name`."""

    def __init__(self, **of_vllm: Any) -> None:
        super().__init__(**of_vllm)
        check_made(self, "SharedOffloadRegion")

    def cleanup(self) -> None:
        # vLLM would complain of a name that is not there any more.
        if self._creator:
            forget_name(self)
        super().cleanup()


def check() -> None:
    """Say what of vLLM's offloading is not as the tiers expect.

    Raises:
        ConfigError: a name or a parameter moved; names all of them.
    """
    refuse_moved(
        [f"{name}.{part}" for name, (owner, parts) in _NEEDED.items() for part in moved_of(owner, parts)], _WAY_OUT
    )


def check_made(owner: object, name: str) -> None:
    """Say what an object of vLLM's offloading lacks.

    Args:
        owner: the object.
        name: of its class in vLLM, one of those above.

    Raises:
        ConfigError: names all that are missing.
    """
    check_instance(owner, name, _NEEDED_OF_OBJECTS[name], _WAY_OUT)


def is_cpu() -> bool:
    """Whether vLLM runs its CPU build, which has no copies between devices of its own."""
    return bool(current_platform.is_cpu())


def cpu_layout(dtype: Any, block_tokens: int, head_size: int, kv_dtype: str) -> str:
    """How the CPU build lays rows out within a block; it depends on the processor."""
    isa = cpu_attn._get_attn_isa(  # pyright: ignore[reportPrivateUsage]
        dtype=dtype, block_size=block_tokens, head_size=head_size, kv_cache_dtype=kv_dtype
    )
    return f"{isa} {torch.backends.cpu.get_cpu_capability()}"


def busy_blocks(memory: CPUPrimaryTierOffloadingManager) -> int:
    """Blocks of the memory tier that are being read or written, and so may not leave it."""
    free, idle = memory._free_list, memory._num_evictable_cache_chunks  # pyright: ignore[reportPrivateUsage]
    return memory._num_allocated_chunks - len(free) - idle  # pyright: ignore[reportPrivateUsage]


def open_requests(manager: TieringOffloadingManager) -> int:
    """Requests that the tiers know of: those that run, and those whose blocks are on their way."""
    return len(manager._req_state)  # pyright: ignore[reportPrivateUsage]


def forget_name(region: SharedOffloadRegion) -> None:
    """Take a region's name away once everyone has it: the memory goes with the last process, however that ends."""
    Path(region.mmap_path).unlink(missing_ok=True)
    region._creator = False  # pyright: ignore[reportPrivateUsage]
