"""vLLM's connector of the tiers, that knows which model computes the blocks and what they hold."""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

import json
from typing import Any

import blake3

from engine.vllm import core_0_32 as core
from engine.vllm import tiers_0_32 as vllm_tiers
from engine.vllm.block_tiers.manager import BlockTiersManager
from engine.vllm.image_kv.keys import Computation, sampled_digest


class BlockTiersConnector(vllm_tiers.OffloadingConnector):
    """Blocks go to the tiers as they are computed, and come back where a prompt's prefix has them."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        vllm_tiers.check()
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        if role is vllm_tiers.KVConnectorRole.SCHEDULER and extra["stillframe"]["settings"].get("folder"):
            extra["stillframe"]["fingerprint"] = fingerprint_of(vllm_config)
        super().__init__(vllm_config, role, kv_cache_config)

    def on_new_request(self, request: Any) -> None:
        manager = self.scheduler.manager
        if request.mm_features and isinstance(manager, BlockTiersManager):
            manager.contents.watch(request.request_id, request.mm_features)
        super().on_new_request(request)

    def reset_cache(self) -> bool:
        """Empty both tiers; whether all files are gone."""
        super().reset_cache()
        manager = self.scheduler.manager
        return not isinstance(manager, BlockTiersManager) or manager.is_empty


def fingerprint_of(config: Any) -> str:
    """Tells what computes the numbers in a block from all else that could, as far as a configuration says; 64 hex
    digits. Block hashes say the rest: tokens, images, tenant, adapter.
    """
    model, cache = config.model_config, config.cache_config
    layout = ""
    if vllm_tiers.is_cpu():
        layout = vllm_tiers.cpu_layout(model.dtype, cache.block_size, model.get_head_size(), cache.cache_dtype)
    about = {
        "format": 2,
        "weights": sampled_digest(core.model_folder(model)),
        **Computation.of(model).values(),
        "kv_dtype": str(cache.cache_dtype),
        "hash": str(cache.prefix_caching_hash_algo),
        "engine": core.ENGINE,
        "layout": layout,
    }
    written = json.dumps(about, sort_keys=True, default=str)
    return blake3.blake3(written.encode()).hexdigest()
