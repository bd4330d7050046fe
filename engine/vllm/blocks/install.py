"""Puts the pool of blocks by modality in the place of vLLM's, for as long as a scheduler is made.

vLLM has no option for its pool. Its coordinator looks the class up in its own module, once, when it is made.

Source: vLLM 0.32, vllm/v1/core/kv_cache_coordinator.py::KVCacheCoordinator.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine.vllm import core_0_32 as core
from engine.vllm.blocks.pool import BlockView, LabelledBlockPool, ModalityBlockPool

if TYPE_CHECKING:
    _Base = core.Scheduler
else:
    _Base = object

# What a scheduler has once it is made, of which its class says nothing.
_USED = ("kv_cache_manager.block_pool", "kv_cache_manager.coordinator.single_type_managers", "requests")


@contextmanager
def pools_of(kind: type[Any]) -> Generator[None]:
    """KV cache managers that are made meanwhile have a pool of this class.

    Raises:
        ConfigError: vLLM is not as the pool expects.
    """
    core.check_pool()
    stock, core.kv_cache_coordinator.BlockPool = core.kv_cache_coordinator.BlockPool, kind
    try:
        yield
    finally:
        core.kv_cache_coordinator.BlockPool = stock


class BlockScheduling(_Base):
    """Evicts by modality where `additional_config["stillframe"]["blocks"]` says so, and shows block tables by it."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        if core.own_config(vllm_config, "blocks").get("eviction") != "modality":
            super().__init__(vllm_config, *args, **kwargs)
            return
        with pools_of(ModalityBlockPool):
            super().__init__(vllm_config, *args, **kwargs)
        core.check_instance(self, "Scheduler", _USED, "set eviction to lru")
        if not isinstance(self.kv_cache_manager.block_pool, ModalityBlockPool):
            raise RuntimeError("vLLM made its pool of blocks elsewhere than it did")

    def block_view(self, request_id: str) -> BlockView | None:
        """A running request's block table by modality; None where there is none, or blocks have no labels."""
        manager = self.kv_cache_manager
        request, pool = self.requests.get(request_id), manager.block_pool
        if request is None or not isinstance(pool, LabelledBlockPool):
            return None
        of_layers = manager.coordinator.single_type_managers[0]
        return pool.view(of_layers.req_to_blocks[request_id], request.num_computed_tokens, of_layers.block_size)
