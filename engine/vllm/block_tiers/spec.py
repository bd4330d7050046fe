"""What vLLM's offloading connector makes the tiers of, in the scheduler and in each worker.

Source: vLLM 0.32, vllm/v1/kv_offload/tiering/spec.py::TieringOffloadingSpec.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import blake3

from context.errors import ConfigError
from engine.vllm import tiers_0_32 as vllm_tiers
from engine.vllm.block_tiers.copying import CopyingWorker
from engine.vllm.block_tiers.file_tier import FileTier
from engine.vllm.block_tiers.files import BlockFiles
from engine.vllm.block_tiers.folder import folder_of, unused
from engine.vllm.block_tiers.manager import BlockTiersManager, Contents, MemoryTier
from engine.vllm.block_tiers.settings import SETTING, BlockTierSettings
from engine.vllm.event_socket import EventSocket


class BlockTiersSpec(vllm_tiers.TieringOffloadingSpec):
    """Memory, and files where a folder is set. Copies are vLLM's own where it has a GPU, and ours on its CPU build."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        vllm_tiers.check_made(self, "TieringOffloadingSpec")
        own: Mapping[str, Any] = self.extra_config["stillframe"]
        self._settings = BlockTierSettings.of(own["settings"])
        self._fingerprint, self._endpoint = str(own["fingerprint"]), str(own["endpoint"])
        self._tiers: BlockTiersManager | None = None
        self._copies: CopyingWorker | None = None
        if not self.num_chunks:
            needed = self.kv_bytes_per_chunk / 1024**3
            reason = f"has no room for one block, which takes {needed:.4f} GiB; raise it"
            raise ConfigError("settings", f"{SETTING}.memory_gib", reason)

    def get_manager(self) -> Any:
        if self._tiers is None:
            region = self._region(None)
            # All workers have it: the scheduler is made when they are ready.
            vllm_tiers.forget_name(region)
            contents = Contents(self.tokens_per_block[0])
            memory = MemoryTier(
                contents,
                num_chunks=self.num_chunks,
                mmap_region=region,
                cache_policy=self.eviction_policy,
                enable_events=self.kv_events_config.enable_kv_cache_events,
            )
            self._tiers = BlockTiersManager(memory, self._files(memory), contents, EventSocket(self._endpoint))
        return self._tiers

    def get_worker(self, kv_caches: Any) -> Any:
        if not vllm_tiers.is_cpu():
            return super().get_worker(kv_caches)
        if self._copies is None:
            self._copies = CopyingWorker(kv_caches, self._region(self.config.parallel.rank))
        return self._copies

    def create_worker(self, kv_caches: Any) -> Any:
        """As vLLM's, with a region that knows of its name."""
        region = self._region(0 if self.replicated_layout else self.config.parallel.rank)
        try:
            return vllm_tiers.CPUOffloadingWorker(
                kv_caches=kv_caches,
                blocks_per_chunk=self.blocks_per_chunk,
                num_cpu_chunks=self.num_chunks,
                mmap_region=region,
            )
        except Exception:
            region.cleanup()
            raise

    def _region(self, rank: int | None) -> vllm_tiers.Region:
        return vllm_tiers.Region(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )

    def _files(self, memory: MemoryTier) -> FileTier | None:
        if not self._settings.folder:
            return None
        folder, parallel = Path(self._settings.folder).expanduser(), self.config.parallel
        index, replicas = parallel.data_parallel_index, parallel.data_parallel_size
        room = self._settings.folder_bytes // replicas
        files = BlockFiles(folder_of(folder, index, replicas), room, self._whose())
        empty_unused(folder, replicas)
        # Half of memory stays for what is read back while the disk is slow.
        return FileTier(self, memory.get_kv_memoryview(), files, self.num_chunks // 2)

    def _whose(self) -> str:
        """The model's fingerprint with how its blocks are laid out."""
        config, parallel = self.config, self.config.parallel
        layout = {
            "model": self._fingerprint,
            "groups": [[group.tokens_per_block, list(group.layer_names)] for group in config.groups],
            "hash_tokens": config.cache.tokens_per_hash,
            "bytes": [self.kv_bytes_per_chunk, self.cpu_page_size_per_worker],
            "dtype": config.model.dtype,
            "order": config.kv_cache_layout,
            "parts": [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        }
        return blake3.blake3(json.dumps(layout, sort_keys=True).encode()).hexdigest()


def empty_unused(folder: Path, replicas: int) -> None:
    """Remove blocks of a time with more or fewer replicas, which nobody would read, count or evict.

    A folder that an engine has, or that cannot be had, is left alone.
    """
    with suppress(OSError):
        for other in unused(folder, replicas):
            with suppress(ConfigError):
                # No room is none for any of them.
                BlockFiles(other, 0, "").close()
