"""vLLM's tiers with counts: what memory holds, by modality, and what came, went and was read back.

Source: vLLM 0.32, vllm/v1/kv_offload/tiering/manager.py::TieringOffloadingManager.
"""

# vLLM leaves much of its types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import astuple
from typing import Any

from engine.base import BlockTierState
from engine.vllm import tiers_0_32 as vllm_tiers
from engine.vllm.block_tiers.file_tier import FileTier
from engine.vllm.block_tiers.stats import FileStats
from engine.vllm.blocks.labels import Modality, labels_of
from engine.vllm.event_socket import EventSocket


class Contents:
    """What requests' blocks hold.

    Args:
        block_tokens: tokens in a block.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._features: dict[str, Sequence[Any]] = {}

    def watch(self, request_id: str, features: Sequence[Any]) -> None:
        """A request with images begins."""
        self._features[request_id] = features

    def end(self, request_id: str) -> None:
        """It is over; one that is not known is none."""
        self._features.pop(request_id, None)

    def of(self, keys: Collection[Any], context: Any) -> list[Modality]:
        """What the blocks of these keys hold; those of a request that is not known are text."""
        features = self._features.get(context.req_id)
        ends = [context.get_offload_key_position(key) for key in keys]
        places = [end // self._block_tokens - 1 for end in ends if end is not None]
        if not features or len(places) < len(ends) or not places:
            return ["text"] * len(ends)
        first = min(places)
        labels = [label.modality for label in labels_of(features, first, max(places) + 1, self._block_tokens)]
        return [labels[place - first] for place in places]


class MemoryTier(vllm_tiers.CPUPrimaryTierOffloadingManager):
    """vLLM's blocks in memory, each with what it holds."""

    def __init__(self, contents: Contents, **of_vllm: Any) -> None:
        super().__init__(**of_vllm)
        vllm_tiers.check_made(self, "CPUPrimaryTierOffloadingManager")
        self._contents = contents
        self._modalities: dict[bytes, Modality] = {}
        self.held: Counter[Modality] = Counter()
        self.stored = self.evicted = 0

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        made = super().prepare_store(keys, req_context)
        if made is not None:
            for key in made.evicted_keys:
                self._forget(key)
            self.evicted += len(made.evicted_keys)
            for key, modality in zip(
                made.keys_to_store, self._contents.of(made.keys_to_store, req_context), strict=True
            ):
                self._modalities[key] = modality
                self.held[modality] += 1
        return made

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        super().complete_store(keys, req_context, success)
        self.stored += len(keys) if success else 0
        if not success:
            for key in keys:
                if self.lookup(key, req_context) is vllm_tiers.LookupResult.MISS:
                    self._forget(key)

    def reset_cache(self) -> None:
        super().reset_cache()
        self._modalities.clear()
        self.held.clear()

    def _forget(self, key: bytes) -> None:
        if (modality := self._modalities.pop(key, None)) is not None:
            self.held[modality] -= 1


class BlockTiersManager(vllm_tiers.TieringOffloadingManager):
    """Both tiers, counted. Tells of them whenever something has changed.

    Args:
        memory: the memory tier.
        files: the file tier, where there is one.
        contents: what requests' blocks hold.
        events: who is told, with the values of a `BlockTierState` in their order.
    """

    def __init__(self, memory: MemoryTier, files: FileTier | None, contents: Contents, events: EventSocket) -> None:
        super().__init__(primary_tier=memory, secondary_tiers=[] if files is None else [files])
        vllm_tiers.check_made(self, "TieringOffloadingManager")
        self._memory, self._files, self._events = memory, files, events
        self.contents = contents
        self._loaded = self._loaded_of_files = self._dropped = 0
        # For each request its blocks, each once, in the order of the prompt.
        self._offered: dict[str, dict[Any, None]] = {}
        self._homeless: dict[str, int] = {}
        self._told: BlockTierState | None = None
        self.is_empty = True
        """Whether all files went with the last reset."""
        self._block_bytes = memory.get_kv_memoryview().shape[1]  # pyright: ignore[reportOptionalSubscript]
        # What an engine that was started before this one had is gone.
        self._tell()

    def state(self) -> BlockTierState:
        """The tiers now."""
        files = FileStats() if self._files is None else self._files.files.stats()
        held = self._memory.held
        return BlockTierState(
            requests=vllm_tiers.open_requests(self),
            busy_blocks=vllm_tiers.busy_blocks(self._memory),
            block_bytes=self._block_bytes,
            text_blocks=held["text"],
            image_blocks=held["image"],
            mixed_blocks=held["mixed"],
            memory_stored=self._memory.stored,
            memory_loaded=self._loaded - self._loaded_of_files,
            memory_evicted=self._memory.evicted,
            memory_dropped=self._dropped,
            file_blocks=files.blocks,
            file_bytes=files.bytes,
            file_stored=files.stored,
            file_loaded=self._loaded_of_files,
            file_evicted=files.evicted,
            file_dropped=files.dropped,
            file_refused=files.refused,
            file_faults=files.faults,
            writing=int(files.writing),
        )

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> Any:
        self._loaded += len(keys)
        self._loaded_of_files += sum(
            self.get_load_source(key, req_context) is vllm_tiers.CacheHitSource.DISK for key in keys
        )
        return super().prepare_load(keys, req_context)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        # vLLM offers those that find no room again with each step, for as long as the request runs.
        if self._files is not None:
            self._offered.setdefault(req_context.req_id, {}).update(dict.fromkeys(keys))
        made = super().prepare_store(keys, req_context)
        self._homeless[req_context.req_id] = len(keys) if made is None else 0
        return made

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        super().complete_store(keys, req_context, success)
        self._tell()

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        super().complete_load(keys, req_context)
        self._tell()

    def on_request_finished(self, req_context: Any, *, exclude_tier_idx: int | None = None) -> None:
        super().on_request_finished(req_context, exclude_tier_idx=exclude_tier_idx)
        self.contents.end(req_context.req_id)
        self._dropped += self._homeless.pop(req_context.req_id, 0)
        if self._files is not None:
            # A prefix that stays in the engine's own cache is used here, too, or it would be gone when it is needed.
            self._files.files.touch(reversed(self._offered.pop(req_context.req_id, {})))
        self._tell()

    def on_schedule_end(self, context: Any) -> None:
        super().on_schedule_end(context)
        self._tell()

    def reset_cache(self) -> None:
        """vLLM keeps the files; whoever empties the engine's caches, or changes its weights, does not want them."""
        super().reset_cache()
        self._offered.clear()
        self._homeless.clear()
        self.is_empty = self._files is None or self._files.files.clear()
        self._tell()

    def shutdown(self) -> None:
        super().shutdown()
        self._events.close()

    def _tell(self) -> None:
        if (state := self.state()) != self._told:
            self._told = state
            self._events.send("tiers", astuple(state))
