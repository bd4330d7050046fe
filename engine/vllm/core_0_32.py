"""Names of vLLM 0.32 that are used inside of the engine core and its workers, beside those of `v0_32.py`.

Importing this module imports vLLM's model code. Like there, what moved is said at start.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportUntypedBaseClass=false

from __future__ import annotations

import inspect
from typing import Any

import torch
from vllm.config import KVTransferConfig
from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from context.errors import ConfigError
from engine.vllm.image_kv.rotation import RopeTable, rotate

__all__ = ["MRotaryEmbedding", "RotaryEmbedding", "check", "get_rope", "rope_table"]

# What the reuse of images' KV hooks into, with the parameters that it passes or reads.
_NEEDED: dict[str, tuple[Any, dict[str, tuple[str, ...]]]] = {
    "Scheduler": (
        Scheduler,
        {
            "schedule": (),
            "_try_schedule_encoder_inputs": ("request", "num_computed_tokens", "num_new_tokens"),
            "_preempt_request": ("request",),
            "_free_request": ("request",),
            "reset_prefix_cache": (),
        },
    ),
    "SchedulerOutput": (SchedulerOutput, {"__init__": ("has_sync_kv_loads",)}),
    "Request": (Request, {"__init__": ("block_hasher", "cache_salt", "mm_features"), "update_block_hashes": ()}),
    "KVTransferConfig": (KVTransferConfig, {"kv_connector_module_path": (), "get_from_extra_config": ("key",)}),
    "KVConnectorBase_V1": (
        KVConnectorBase_V1,
        {
            "bind_kv_cache_manager": ("kv_cache_manager",),
            "on_new_request": ("request",),
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
            "start_load_caches": ("encoder_cache",),
            "save_caches": ("encoder_cache", "mm_hash"),
        },
    ),
}

_ONE_TABLE = (RotaryEmbedding, MRotaryEmbedding, YaRNScalingRotaryEmbedding, Llama3RotaryEmbedding)
_PARTS = ("cos_sin_cache", "rotary_dim", "head_size", "is_neox_style", "forward_native")
_PROBED_TOKENS = 8
# In steps of the dtype: the table, the key in the cache, the moved key and the one it is compared with are rounded.
_ROUNDINGS = 8.0


def check() -> None:
    """Say what of vLLM's core is not as the reuse of images' KV expects.

    Raises:
        ConfigError: a name or a parameter moved; names all of them.
    """
    if moved := [f"{name}.{part}" for name, (owner, parts) in _NEEDED.items() for part in moved_of(owner, parts)]:
        reason = f"vLLM is not as this release of Stillframe knows it: {', '.join(moved)}"
        raise ConfigError("environment", "", f"{reason}. Install the pinned requirements, or turn reuse off.")


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


def rope_table(module: Any) -> RopeTable:
    """The table of a model's rotary embedding, after a trial that keys turned by it are the embedding's own.

    Raises:
        ConfigError: the embedding is none whose keys can be turned, or vLLM's is not as it was; says which.
    """
    name = type(module).__name__
    missing = [part for part in _PARTS if not hasattr(module, part)]
    # A subclass may read another table, or more than one.
    if type(module) not in _ONE_TABLE or missing:
        reason = f"lacks {missing}" if missing else "is not one that this release knows"
        raise _refused(f"the model's rotary embedding {name} {reason}")
    sections = getattr(module, "mrope_section", None)
    table = RopeTable(
        module.cos_sin_cache,
        None if sections is None else (int(sections[0]), int(sections[1]), int(sections[2])),
        bool(getattr(module, "mrope_interleaved", False)),
        bool(module.is_neox_style),
    )
    if not _turns(module, table):
        raise _refused(f"the model's rotary embedding {name} gives other keys than its table")
    return table


def _turns(module: Any, table: RopeTable) -> bool:
    device, dtype = table.cos_sin.device, table.cos_sin.dtype
    size = int(module.head_size)
    keys = torch.linspace(-1, 1, _PROBED_TOKENS * size, device=device).to(dtype).view(_PROBED_TOKENS, size)
    places = torch.arange(_PROBED_TOKENS, device=device)
    positions = places if table.sections is None else torch.stack([places * 0, places // 3, places % 3])
    delta = len(table.cos_sin) - _PROBED_TOKENS
    here, there = (
        # Some embeddings write in place.
        module.forward_native(at, torch.zeros_like(keys), keys.clone())[1].view(_PROBED_TOKENS, 1, size)
        for at in (positions, positions + delta)
    )
    # A magnitude of the table is one of the keys too.
    allowed = _ROUNDINGS * torch.finfo(dtype).eps * max(1.0, float(there.abs().max()))
    return float((rotate(here, positions, delta, table) - there).abs().max()) <= allowed


def _refused(reason: str) -> ConfigError:
    return ConfigError("settings", "engine.vllm.model", f"{reason}; its images' KV cannot be moved, so turn reuse off")
