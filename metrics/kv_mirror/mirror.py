"""The engine's KV events, followed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.base import AllBlocksCleared, BlockRemoved, BlockStored, Engine, EventBatch
from metrics.kv_mirror.base import BlockHash, Eviction, ImageBlocks, MirrorCounts, MirrorView, Owner
from metrics.kv_mirror.blocks import Block, BlockTable

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


@dataclass(slots=True, eq=False)
class _Trace:
    """What is known of one request: its deepest block, and when it began, in evictions, engine starts and gaps.

    `blocks` is how many full ones its prompt has; `computed` are those that it had to compute again because they had
    been evicted, with that eviction, until its view was asked for.
    """

    owner: Owner
    began: int
    engine: int
    gaps: int
    leaf: BlockHash | None = None
    depth: int = 0
    blocks: int = 0
    computed: dict[BlockHash, Eviction] = field(default_factory=dict[BlockHash, Eviction])


class Ending:
    """A request that has ended, of which the engine may still tell something."""

    def __init__(self, view: Callable[[], MirrorView], settled: Callable[[], bool] | None = None) -> None:
        self._ask, self._settled = view, settled
        self._view: MirrorView | None = None

    @property
    def is_settled(self) -> bool:
        """The engine has told all that there is to wait for."""
        return self._settled is None or self._settled()

    def view(self) -> MirrorView:
        """What is known by now, and from the first time that it is asked for on."""
        if self._view is None:
            self._view = self._ask()
        return self._view


class KvMirror:
    """Which KV blocks the engine holds, of which images, and of which conversations. Fed from one event loop.

    Args:
        block_tokens: tokens in a block, as the engine says.
        max_blocks: blocks to know at most, those among them that are gone; about 350 bytes each.
        max_requests: of how many requests and turns the blocks are known.
        max_evictions: how many of the latest are kept.

    `gaps` counts jumps in the stream, `restarts` engines that began anew; `forgotten` blocks that were resident and
    did not fit: of those the answers are too low.
    """

    def __init__(
        self,
        block_tokens: int,
        max_blocks: int = 200_000,
        *,
        max_requests: int = 20_000,
        max_evictions: int = 10_000,
    ) -> None:
        self.block_tokens = block_tokens
        self.gaps = self.restarts = 0
        self._max_requests = max_requests
        self._table = BlockTable(max_blocks, max_evictions)
        self._awaited = 0
        self._has_followed = False
        self._dropped_turns = 0
        self._requests: OrderedDict[str, _Trace] = OrderedDict()
        self._turns: OrderedDict[int, _Trace] = OrderedDict()
        self._latest: OrderedDict[Owner, _Trace] = OrderedDict()

    async def follow(self, engine: Engine) -> None:
        """Read the engine's events until it stops. Begin before the first chat. Begun again, something may have been
        missed, or taken in by half: what was known is in doubt."""
        if self._has_followed:
            self.gaps += 1
            self._table.doubt()
        self._has_followed = True
        async with engine.events() as batches:
            async for batch in batches:
                self.take(batch)

    def take(self, batch: EventBatch) -> None:
        """Take in the next batch. Those of other streams are none of ours."""
        if batch.stream != "kv":
            return
        if batch.sequence < self._awaited:
            self.restarts += 1
            self._table.restarted(batch.seconds)
            self._awaited = 0
        if batch.sequence > self._awaited:
            self.gaps += 1
            self._table.doubt()
        self._awaited = batch.sequence + 1
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._stored(event)
            elif isinstance(event, BlockRemoved):
                for digest in event.block_hashes:
                    self._table.removed(digest, batch.seconds)
            elif isinstance(event, AllBlocksCleared):
                self._table.cleared(batch.seconds)

    # What belongs to a request.

    def begin(self, request_id: str, owner: Owner) -> None:
        """A request goes to the engine. Call it before, so that its first events find it."""
        _put(
            self._requests, request_id, _Trace(owner, self._table.number, self.restarts, self.gaps), self._max_requests
        )

    def end(
        self,
        request_id: str,
        turn: int | None,
        *,
        parent: int | None,
        prompt_tokens: int | None,
        read_tokens: int | None,
    ) -> Ending:
        """A request has ended. From the call on its blocks count as the turn's and as the conversation's latest.

        Args:
            request_id: as it began.
            turn, parent: the ledger's numbers of the turn and of the one that it goes on from; None where there is
                none.
            prompt_tokens, read_tokens: by its usage.

        Returns:
            What it had in common with the turn that it goes on from; certain once the blocks of its prompt were
            reported, where it did not read them all.
        """
        now = self._requests.get(request_id)
        if now is None:
            return Ending(MirrorView)
        then = None if parent is None else self._turns.get(parent)
        now.blocks = (prompt_tokens or 0) // self.block_tokens
        if turn is not None:
            self._count_as(turn, now, then, (read_tokens or 0) // self.block_tokens)
        if parent is None or prompt_tokens is None or read_tokens is None:
            now.computed.clear()
            return Ending(MirrorView)
        waits = read_tokens < (prompt_tokens - 1) // self.block_tokens * self.block_tokens
        return Ending(lambda: self._view(now, then), (lambda: now.depth >= now.blocks) if waits else None)

    # What is there.

    def counts(self) -> MirrorCounts:
        """Sums for metrics."""
        table = self._table
        return MirrorCounts(
            dict(table.resident_tokens),
            dict(table.resident_blocks),
            dict(table.evicted_tokens),
            self.gaps,
            dict(table.evicted_blocks),
        )

    @property
    def resident_blocks(self) -> int:
        """Blocks that the engine holds for certain; equal ones count once."""
        return self._table.resident

    @property
    def uncertain_blocks(self) -> int:
        """Blocks that it held before a gap, and of which nothing was heard since."""
        return self._table.uncertain

    @property
    def forgotten(self) -> int:
        """Resident blocks that did not fit into `max_blocks`."""
        return self._table.forgotten

    def resident(self) -> frozenset[BlockHash]:
        """The hashes of the resident blocks."""
        return frozenset(block.hash for block in self._table)

    def blocks(self, owner: Owner) -> tuple[Block, ...]:
        """All blocks of a conversation's last request, resident or not; empty where they are not known."""
        trace = self._latest.get(owner)
        if trace is None or trace.engine != self.restarts:
            return ()
        return tuple(self._table.chain(trace.leaf) or ())

    def resident_prefix(self, owner: Owner) -> int:
        """How many tokens from the start of a conversation's last request could be read now."""
        tokens = 0
        for block in self.blocks(owner):
            if not block.sure:
                break
            tokens += block.tokens
        return tokens

    def images(self) -> list[ImageBlocks]:
        """The images that have resident KV, those with the most tokens first."""
        found = [
            ImageBlocks(uuid, use.blocks, use.tokens, tuple(reversed(use.users)))
            for uuid, use in self._table.images.items()
        ]
        return sorted(found, key=lambda one: (-one.tokens, one.uuid))

    def image(self, uuid: str) -> ImageBlocks | None:
        """One image's resident KV; None where it has none."""
        use = self._table.images.get(uuid)
        return None if use is None else ImageBlocks(uuid, use.blocks, use.tokens, tuple(reversed(use.users)))

    @property
    def last_eviction(self) -> int:
        """The number of the latest eviction: how many there were."""
        return self._table.number

    def evictions(self, since: int = 0) -> list[Eviction]:
        """Those of the latest evictions whose number is above `since`, in their order."""
        found: list[Eviction] = []
        for one in reversed(self._table.evictions):
            if one.number <= since:
                break
            found.append(one)
        return found[::-1]

    def _count_as(self, turn: int, now: _Trace, then: _Trace | None, read_blocks: int) -> None:
        if now.leaf is None and then is not None and then.engine == now.engine:
            # It stored nothing: what it has is the beginning of what the turn before it had.
            old = (self._table.chain(then.leaf) or [])[:read_blocks]
            if old:
                self._deeper(now, old[-1])
                self._table.use(old[-1], now.owner)
        self._dropped_turns += _put(self._turns, turn, now, self._max_requests)
        _put(self._latest, now.owner, now, self._max_requests)

    def _view(self, now: _Trace, then: _Trace | None) -> MirrorView:
        if then is None:
            # Every turn of this engine is known, so that one was another's.
            view = MirrorView(restarted=not (self.gaps or self._dropped_turns))
        else:
            view = self._compared(now, then)
        now.computed.clear()
        return view

    def _compared(self, now: _Trace, then: _Trace) -> MirrorView:
        if then.engine != now.engine:
            return MirrorView(restarted=True)
        old, new = self._table.chain(then.leaf), self._table.chain(now.leaf)
        if old is None or new is None or len(old) < then.blocks or len(new) < now.blocks:
            return MirrorView()
        common = 0
        while common < min(len(old), len(new)) and old[common] is new[common]:
            common += 1
        if common == len(old) and then.gaps != self.gaps:
            # The end of its reply may have been missed.
            return MirrorView()
        # Evictions behind what it computed again are another turn's affair, also where they came before this call.
        paid = [now.computed[block.hash] for block in new[:common] if block.hash in now.computed]
        common_tokens = sum(block.tokens for block in new[:common])
        return MirrorView(common_tokens, tuple(one for one in paid if one.number > then.began))

    def _stored(self, event: BlockStored) -> None:
        trace = self._requests.get(event.request_id)
        if trace is not None:
            self._note_computed(trace, event)
        last = self._table.stored(event)
        if trace is None or last is None:
            return
        if trace.engine != self.restarts:
            # It was on its way when the engine began anew.
            trace.engine, trace.leaf, trace.depth = self.restarts, None, 0
        # With its first blocks come those that it read.
        self._table.use(last, trace.owner, None if trace.leaf is None else len(event.block_hashes))
        # One of several choices goes on deeper than the others; all have the prompt in common.
        if trace.leaf is None or last.depth > trace.depth:
            self._deeper(trace, last)

    def _note_computed(self, trace: _Trace, event: BlockStored) -> None:
        """Before the blocks count as stored."""
        for digest in event.block_hashes:
            block = self._table.get(digest)
            if block is not None and block.evicted is not None:
                trace.computed.setdefault(digest, block.evicted)

    def _deeper(self, trace: _Trace, block: Block) -> None:
        trace.leaf, trace.depth = block.hash, block.depth


def _put(kept: OrderedDict[_K, _V], key: _K, value: _V, at_most: int) -> bool:
    """Keep a value; whether an old one had to go."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) <= at_most:
        return False
    kept.popitem(last=False)
    return True
