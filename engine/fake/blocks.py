"""The prefix cache: blocks of KV, found by a hash over everything that stands before them.

Source: vLLM 0.32, v1/core/block_pool.py::BlockPool, v1/core/kv_cache_utils.py::FreeKVCacheBlockQueue and
v1/core/single_type_kv_cache_manager.py::FullAttentionManager.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.base import AllBlocksCleared, BlockRemoved, BlockStored, EngineEvent
from engine.fake.sequence import ExtraKeys, FakeSequence

# A simulation that never takes its events must not grow without end.
UNTAKEN_EVENTS = 100_000


@dataclass(slots=True, eq=False)
class Block:
    """One block of KV. `hash` is set while the block can be found; `references` counts sequences that use it."""

    index: int
    references: int = 0
    hash: bytes | None = None


class BlockPool:
    """All blocks, the queue of free ones in eviction order, and the map from hash to blocks.

    A free block keeps its content until it is handed out again: freed last, evicted last; of one sequence the tail goes
    first. Equal blocks are not merged, so a hash may be held by several (BlockHashToBlockMap, note 1).
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        # vLLM takes block 0 out as its null block.
        self._free: OrderedDict[int, Block] = OrderedDict((index, Block(index)) for index in range(1, num_blocks))
        self._cached: dict[bytes, dict[int, Block]] = {}
        self._events: deque[EngineEvent] = deque(maxlen=UNTAKEN_EVENTS)

    @property
    def num_free(self) -> int:
        """Blocks that no sequence uses; they may still hold something that can be found."""
        return len(self._free)

    def find(self, hashes: Sequence[bytes], max_blocks: int) -> list[Block]:
        """The longest run of cached blocks from the start, at most `max_blocks` long."""
        found: list[Block] = []
        for digest in hashes[:max_blocks]:
            holders = self._cached.get(digest)
            if not holders:
                break
            found.append(next(iter(holders.values())))
        return found

    def missing_free(self, found: Iterable[Block]) -> int:
        """How many of the blocks are free: using them takes them out of the free queue."""
        return sum(not block.references for block in found)

    def touch(self, blocks: Iterable[Block]) -> None:
        """Use cached blocks once more."""
        for block in blocks:
            if not block.references:
                del self._free[block.index]
            block.references += 1

    def take(self, count: int) -> list[Block]:
        """Hand out the first free blocks; what they held can no longer be found."""
        taken: list[Block] = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            self._evict(block)
            block.references = 1
            taken.append(block)
        return taken

    def release(self, ordered: Iterable[Block]) -> None:
        """Use blocks once less; those that fall free are evicted in the given order.

        Blocks that hold nothing findable go to the front of the queue, the others to its end
        (BlockPool.free_blocks).
        """
        front: list[Block] = []
        for block in ordered:
            block.references -= 1
            if block.references:
                continue
            if block.hash is None:
                front.append(block)
            else:
                self._free[block.index] = block
        for block in reversed(front):
            self._free[block.index] = block
            self._free.move_to_end(block.index, last=False)

    def store(self, sequence: FakeSequence, num_tokens: int) -> None:
        """Make the sequence's full blocks findable, up to `num_tokens` of it."""
        start, end = sequence.stored_blocks, num_tokens // self.block_tokens
        if start >= end:
            return
        for block, digest in zip(sequence.blocks[start:end], sequence.hashes[start:end], strict=True):
            block.hash = digest
            self._cached.setdefault(digest, {})[block.index] = block
        sequence.stored_blocks = end
        tokens = sequence.tokens[start * self.block_tokens : end * self.block_tokens]
        self._events.append(
            BlockStored(
                block_hashes=tuple(sequence.hashes[start:end]),
                parent_block_hash=sequence.hashes[start - 1] if start else None,
                token_ids=tuple(tokens),
                block_size=self.block_tokens,
                extra_keys=tuple(map(_event_keys, sequence.extra_keys[start:end])),
                request_id=sequence.session_id,
            )
        )

    def reset(self) -> bool:
        """Forget everything. Refused (False) while a sequence uses a block."""
        if self.num_free != self.num_blocks - 1:
            return False
        for block in self._free.values():
            block.hash = None
        self._cached.clear()
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> list[EngineEvent]:
        """What happened since the last call; of very many events the oldest are lost."""
        events = list(self._events)
        self._events.clear()
        return events

    def _evict(self, block: Block) -> None:
        if block.hash is None:
            return
        holders = self._cached[block.hash]
        del holders[block.index]
        if not holders:
            del self._cached[block.hash]
        # vLLM says removed for each holder, also while another block still has the hash.
        self._events.append(BlockRemoved((block.hash,)))
        block.hash = None


def _event_keys(keys: ExtraKeys | None) -> tuple[object, ...] | None:
    # Events carry the keys without the tags that tell their sources apart (kv_cache_utils.py::to_event_extra_keys).
    return None if keys is None else tuple(key[1:] if key[0] == "mm" else key[1] for key in keys)
