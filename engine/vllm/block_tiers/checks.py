"""What the tiers for blocks cannot be used with, refused at the start with the reason."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from context.errors import ConfigError
from context.files import expanded
from engine.vllm.block_tiers.folder import claimed, folder_of
from engine.vllm.block_tiers.settings import SETTING, BlockTierSettings

# Where vLLM has memory that its processes share.
_SHARED = Path("/dev/shm")
_HASHES = ("sha256", "sha256_cbor")


def check(config: Any, settings: BlockTierSettings) -> None:
    """Refuse what cannot be.

    Args:
        config: vLLM's own, made.
        settings: of the tiers.

    Raises:
        ConfigError: says all that stands against it, and the remedy.
    """
    if reasons := list(_against(config, settings)):
        raise ConfigError(
            "settings", SETTING, f"{'; '.join(reasons)}. Remove {SETTING}, or change what stands against it."
        )
    parallel = config.parallel_config
    # With data parallelism each replica of this machine is an engine.
    replicas = range(parallel.data_parallel_rank, parallel.data_parallel_rank + parallel.data_parallel_size_local)
    if settings.folder:
        folder = expanded(settings.folder, f"{SETTING}.folder")
        for index in replicas:
            # The engine claims it for good; what it says when it cannot stands in its log alone.
            os.close(claimed(folder_of(folder, index, parallel.data_parallel_size)))
    _check_memory(settings, len(replicas))


def _check_memory(settings: BlockTierSettings, replicas: int) -> None:
    free = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
    if settings.memory_bytes * replicas > free:
        each = f"for each of {replicas} replicas of the model " if replicas > 1 else ""
        reason = (
            f"{each}is more than the {free / 1024**3:.2f} GiB of shared memory that are free; "
            "lower it, or give the machine more (of a container: --shm-size)"
        )
        raise ConfigError("settings", f"{SETTING}.memory_gib", reason)


def _against(config: Any, settings: BlockTierSettings) -> Iterator[str]:
    cache, parallel = config.cache_config, config.parallel_config
    if not cache.enable_prefix_caching:
        yield "enable-prefix-caching is off, so that blocks have no names"
    if cache.prefix_caching_hash_algo not in _HASHES:
        yield f"prefix-caching-hash-algo {cache.prefix_caching_hash_algo} may give two blocks one name"
    if parallel.nnodes > 1:
        yield "the engine runs on several machines, which share no memory"
    if settings.folder and config.lora_config is not None:
        yield "a folder cannot tell an adapter from another one of the same name; leave the folder out"
