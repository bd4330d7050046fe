"""vLLM's pool of KV blocks, which knows what its blocks hold, and gives out again those that are worth the least.

`LabelledBlockPool` says of each cached block whether it is text, an image's, or mixed, and changes nothing.
`ModalityBlockPool` evicts by groups of them in place of least recent use; which blocks can be found, and what for, is
vLLM's as ever.

Source: vLLM 0.32, vllm/v1/core/block_pool.py::BlockPool.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from engine.vllm.blocks.groups import Group, GroupedFreeQueue
from engine.vllm.blocks.labels import Label, Modality, labels_of
from engine.vllm.blocks.returns import Returns, Watched
from engine.vllm.core_0_32 import BlockPool, get_block_hash

# A token of an image is computed by the decoder as one of text is, and has been through the vision encoder before:
# four patches of it in Qwen's, whose encoder has a tenth of the decoder's parameters at 7B.
IMAGE_COST = 1.35


@dataclass(frozen=True, slots=True)
class BlockView:
    """The blocks of one request by what they hold.

    Attributes:
        labels: of its full blocks, in their order; None for one that is not cached.
        blocks: how many of each kind.
        unused_slots: tokens for which its last block still has room.
    """

    labels: tuple[Label | None, ...]
    blocks: Mapping[Modality, int]
    unused_slots: int


@dataclass(slots=True)
class _Turn:
    """A running request: of which conversation, and to which group its blocks were added last, for each of vLLM's
    groups of layers.
    """

    conversation: Watched
    groups: dict[int, Group] = field(default_factory=dict[int, Group])


class LabelledBlockPool(BlockPool):
    """`BlockPool`, in the same order as ever, with a label for each cached block. `evicted_blocks` counts what went."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._labels: list[Label | None] = [None] * self.num_gpu_blocks
        self.evicted_blocks: Counter[Modality] = Counter()

    def label(self, block_id: int) -> Label | None:
        """What a block holds; None where it is not cached."""
        return self._labels[block_id]

    def resident_blocks(self) -> Counter[Modality]:
        """How many cached blocks there are of each kind. Looks at all of them."""
        return Counter(label.modality for label in self._labels if label is not None)

    def resident_image_tokens(self) -> Counter[str]:
        """Cached tokens of each image, by its identifier: of blocks in which it has the most. Looks at all of them."""
        found: Counter[str] = Counter()
        for label in self._labels:
            if label is not None and label.image is not None:
                found[label.image] += label.image_tokens
        return found

    def view(self, blocks: Sequence[Any], tokens: int, block_tokens: int) -> BlockView:
        """A request's block table by modality.

        Args:
            blocks: the request's, in their order.
            tokens: how many are in them.
            block_tokens: tokens in a block.
        """
        full = blocks[: tokens // block_tokens]
        labels = tuple(None if block.is_null else self._labels[block.block_id] for block in full)
        held = Counter(label.modality for label in labels if label is not None)
        return BlockView(labels, held, -tokens % block_tokens)

    def cache_full_blocks(
        self,
        request: Any,
        blocks: list[Any],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        super().cache_full_blocks(
            request, blocks, num_cached_blocks, num_full_blocks, block_size, kv_cache_group_id, block_mask
        )
        if num_cached_blocks >= num_full_blocks:
            return
        labels = labels_of(request.mm_features, num_cached_blocks, num_full_blocks, block_size)
        # Null blocks, and those that can never be read, are not cached.
        new = [
            (block, label)
            for block, label in zip(blocks[num_cached_blocks:num_full_blocks], labels, strict=True)
            if block.block_hash is not None
        ]
        for block, label in new:
            self._labels[block.block_id] = label
        before = blocks[num_cached_blocks - 1] if num_cached_blocks else None
        self._cached(request, before, new, kv_cache_group_id, block_size)

    def move_block_hashes(self, src_block: Any, dst_block: Any) -> None:
        super().move_block_hashes(src_block, dst_block)
        self._labels[dst_block.block_id] = self._labels[src_block.block_id]

    def reset_prefix_cache(self) -> bool:
        if not super().reset_prefix_cache():
            return False
        self._labels = [None] * self.num_gpu_blocks
        return True

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        evicted = bool(super()._maybe_evict_cached_block(block))
        if evicted and (label := self._labels[block.block_id]) is not None:
            self.evicted_blocks[label.modality] += 1
            self._labels[block.block_id] = None
        return evicted

    def _cached(self, request: Any, before: Any | None, new: list[tuple[Any, Label]], kv_group: int, size: int) -> None:
        """Blocks of `size` tokens of a request were cached, which stand behind the block `before`."""


class ModalityBlockPool(LabelledBlockPool):
    """`BlockPool` that evicts by groups: an image, or text, of a conversation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._returns = Returns()
        self._queue = GroupedFreeQueue(self.free_block_queue, self.num_gpu_blocks, self._returns)
        self.free_block_queue = self._queue
        self._turns: WeakKeyDictionary[Any, _Turn] = WeakKeyDictionary()

    def touch(self, blocks: Sequence[Any]) -> None:
        super().touch(blocks)
        self._queue.used(list(blocks))

    def move_block_hashes(self, src_block: Any, dst_block: Any) -> None:
        super().move_block_hashes(src_block, dst_block)
        self._queue.dropped(src_block)

    def reset_prefix_cache(self) -> bool:
        if not super().reset_prefix_cache():
            return False
        self._queue.clear()
        return True

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        evicted = super()._maybe_evict_cached_block(block)
        # One that was just given out is of no group any more.
        if self._queue.group_of(block) is not None:
            self._queue.dropped(block)
        return evicted

    def _cached(self, request: Any, before: Any | None, new: list[tuple[Any, Label]], kv_group: int, size: int) -> None:
        turn = self._turns.get(request)
        if turn is None:
            turn = self._turns[request] = _Turn(self._returns.use(request.block_hashes))
        group = turn.groups.get(kv_group)
        if group is not None and (before is None or self._queue.group_of(before) is not group or group.children):
            group = None
        for block, label in new:
            image = label.image if 2 * label.image_tokens >= size else None
            # Where it is computed twice, only one of the copies is ever found.
            spare = self.cached_block_hash_to_block.get_one_block(block.block_hash) is not block
            if group is None or group.image != image or group.spare != spare:
                parent = None if before is None or spare else self._found_first(before)
                cost = 1.0 if image is None else IMAGE_COST
                group = self._queue.grow(parent, image, cost, turn.conversation.uses, spare=spare)
            self._queue.put(block, group)
            before = block
        if group is not None:
            turn.groups[kv_group] = group
        if new:
            self._returns.named(turn.conversation, get_block_hash(new[-1][0].block_hash))

    def _found_first(self, block: Any) -> Group | None:
        """The group that a reader of a block would find it in."""
        first = None if block.block_hash is None else self.cached_block_hash_to_block.get_one_block(block.block_hash)
        return None if first is None else self._queue.group_of(first)
