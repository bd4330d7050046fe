"""Free blocks in groups, and which of them is given out next.

A group is a run of blocks of one chain that came with one turn and hold the same image, or text. A request that reads
only the beginning of a group splits it. Groups form a tree, by what stands before what: a group goes only when nothing
that builds on it is there any more, and its own blocks go from its end, so that none is left that cannot be reached.

Which of the groups at the ends goes is said by what it is worth (`returns.py`), times the cost to compute one of its
tokens again. Of up to 64 groups all are looked at, of more an even sample; what was chosen gives out some blocks before
the next choice. So no operation depends on how much is cached.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.vllm.blocks.returns import Returns
from engine.vllm.core_0_32 import FreeKVCacheBlockQueue

_LOOKED_AT = 64
_BLOCKS_PER_CHOICE = 16


class Group:
    """Blocks that come and go together.

    Attributes:
        image: identifier; None for text.
        cost: of computing a token again, against one of text.
        uses, last: how often it was used, and when last, as `Returns` counts.
        spare: its blocks are copies of others that are found first.
        parent: what stands before it.
        children: how many groups build on it.
        blocks: how many are cached, in use or not.
        free: those that nobody uses, the last ones of the chain first.
    """

    __slots__ = ("at", "blocks", "children", "cost", "free", "image", "last", "parent", "spare", "uses")

    def __init__(
        self, image: str | None, cost: float, uses: int, last: int, parent: Group | None, *, spare: bool = False
    ) -> None:
        self.image, self.cost, self.uses, self.last, self.spare = image, cost, uses, last, spare
        self.parent = parent
        self.children = self.blocks = 0
        self.free = FreeKVCacheBlockQueue([])
        # Its place among the groups at the ends of chains that have free blocks; -1 where it is none of them.
        self.at = -1
        if parent is not None:
            parent.children += 1


class GroupedFreeQueue:
    """In place of vLLM's `FreeKVCacheBlockQueue`: first what holds nothing, in vLLM's order, then by groups.

    Args:
        plain: vLLM's queue of a pool that is new; all its blocks hold nothing.
        blocks: how many the pool has.
        returns: says what a group is worth.
    """

    def __init__(self, plain: Any, blocks: int, returns: Returns) -> None:
        self.num_free_blocks = int(plain.num_free_blocks)
        self._plain = plain
        self._returns = returns
        self._group_of: list[Group | None] = [None] * blocks
        self._ends: list[Group] = []
        # Free, with groups in use behind them. Hardly ever any: where a request uses its own copies of what is before.
        self._others: dict[Group, None] = {}
        self._victim: Group | None = None
        self._before: Group | None = None
        self._left = self._choices = 0

    # As vLLM calls it.

    def popleft(self) -> Any:
        """The next block."""
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        """The next blocks. Those of groups are no longer of them: the caller empties them."""
        self.num_free_blocks -= n
        found: list[Any] = self._plain.popleft_n(min(n, self._plain.num_free_blocks))
        while len(found) < n:
            group = self._next()
            taken = group.free.popleft_n(min(n - len(found), group.free.num_free_blocks))
            for block in taken:
                self._group_of[block.block_id] = None
            self._left -= len(taken)
            group.blocks -= len(taken)
            self._settle(group)
            found += taken
        return found

    def remove(self, block: Any) -> None:
        """A block is used again."""
        self.num_free_blocks -= 1
        group = self._group_of[block.block_id]
        if group is None:
            self._plain.remove(block)
            return
        group.free.remove(block)
        if not group.free.num_free_blocks:
            self._settle(group)

    def append(self, block: Any) -> None:
        """A block that holds something is used no more."""
        self.append_n([block])

    def append_n(self, blocks: list[Any]) -> None:
        """Blocks that hold something are used no more: those of one request, the last ones of its chain first."""
        self.num_free_blocks += len(blocks)
        for group, run in self._runs(blocks):
            if group is None:
                # What was cached on another way, such as part of a block.
                group = self.grow(None, None, 1.0, 1)
                for block in run:
                    self.put(block, group)
            group.free.append_n(run)
            if group.at < 0:
                self._settle(group)

    def prepend_n(self, blocks: list[Any]) -> None:
        """Blocks that hold nothing are used no more."""
        self.num_free_blocks += len(blocks)
        self._plain.prepend_n(blocks)

    def get_all_free_blocks(self) -> list[Any]:
        """All of them, those that hold nothing first."""
        groups = sorted([*self._ends, *self._others], key=self._worth)
        return [*self._plain.get_all_free_blocks(), *(b for group in groups for b in group.free.get_all_free_blocks())]

    def iter_blocks_after(self, cursor: Any | None) -> Iterator[Any]:
        """Those that come after one, as things stand."""
        all_of_them = self.get_all_free_blocks()
        yield from all_of_them[0 if cursor is None else all_of_them.index(cursor) + 1 :]

    # What the pool tells.

    def group_of(self, block: Any) -> Group | None:
        """The group of a cached block."""
        return self._group_of[block.block_id]

    def grow(self, parent: Group | None, image: str | None, cost: float, uses: int, *, spare: bool = False) -> Group:
        """A group without blocks yet, behind another one or at the start of a chain, as used now."""
        group = Group(image, cost, uses, self._returns.now, parent, spare=spare)
        if parent is not None:
            self._settle(parent)
        return group

    def put(self, block: Any, group: Group) -> None:
        """A block in use is cached, as the last one of a group. One that has a group keeps it."""
        if self._group_of[block.block_id] is None:
            self._group_of[block.block_id] = group
            group.blocks += 1

    def used(self, blocks: list[Any]) -> None:
        """A request reads blocks, in the order of its chain. They are in use."""
        # Its turn begins with the first block that it adds.
        now = self._returns.now + 1
        before: Group | None = None
        for group, run in self._runs(blocks):
            if group is None:
                before = None
                continue
            first = self._split(group, run) if len(run) < group.blocks else group
            first.uses += 1
            first.last = now
            if first.spare:
                # What was found before it has gone.
                first.spare, first.parent = False, before
                if before is not None:
                    before.children += 1
            before = first

    def dropped(self, block: Any) -> None:
        """A block holds nothing any more, and is none that was just given out."""
        group = self._group_of[block.block_id]
        if group is None:
            return
        self._group_of[block.block_id] = None
        group.blocks -= 1
        if not block.ref_cnt:
            group.free.remove(block)
            self._plain.append(block)
        self._settle(group)

    def clear(self) -> None:
        """No block holds anything any more, and none is used."""
        for group in [*self._ends, *self._others]:
            self._plain.append_n(group.free.get_all_free_blocks())
        self._ends.clear()
        self._others.clear()
        self._group_of = [None] * len(self._group_of)
        self._victim = self._before = None

    def _runs(self, blocks: list[Any]) -> Iterator[tuple[Group | None, list[Any]]]:
        of, start = self._group_of, 0
        while start < len(blocks):
            group, end = of[blocks[start].block_id], start + 1
            while end < len(blocks) and of[blocks[end].block_id] is group:
                end += 1
            yield group, blocks[start:end]
            start = end

    def _split(self, group: Group, front: list[Any]) -> Group:
        """The blocks at the beginning of a group become one of their own."""
        first = Group(group.image, group.cost, group.uses, group.last, None, spare=group.spare)
        first.parent, group.parent, first.children = group.parent, first, 1
        for block in front:
            self._group_of[block.block_id] = first
        first.blocks = len(front)
        group.blocks -= len(front)
        return first

    def _settle(self, group: Group) -> None:
        """A group's blocks or children changed: put it where it belongs, and where it has gone what was before it."""
        while True:
            free = group.free.num_free_blocks > 0
            self._place(group, is_end=free and not group.children, is_other=free and group.children > 0)
            if group.blocks or group.children:
                return
            parent, group.parent = group.parent, None
            if parent is None:
                return
            parent.children -= 1
            if parent.children:
                return
            group = parent

    def _place(self, group: Group, *, is_end: bool, is_other: bool) -> None:
        if is_end and group.at < 0:
            group.at = len(self._ends)
            self._ends.append(group)
        elif not is_end and group.at >= 0:
            last = self._ends.pop()
            if last is not group:
                self._ends[group.at], last.at = last, group.at
            group.at = -1
        if is_other:
            self._others[group] = None
        else:
            self._others.pop(group, None)

    def _next(self) -> Group:
        """The group that gives out blocks now."""
        victim, before = self._victim, self._before
        if victim is not None and not victim.blocks:
            # What stood before it in the same turns is worth no more.
            victim = before if before is not None and before.last == victim.last else None
        if victim is None or victim.at < 0 or self._left <= 0:
            victim = self._choose()
            self._left = _BLOCKS_PER_CHOICE
        self._victim, self._before = victim, victim.parent
        return victim

    def _choose(self) -> Group:
        if not self._ends:
            return min(self._others, key=self._worth)
        step = -(-len(self._ends) // _LOOKED_AT)
        self._choices += 1
        # Another part of them each time.
        return min(self._ends[self._choices % step :: step], key=self._worth)

    def _worth(self, group: Group) -> tuple[float, int]:
        worth = -1.0 if group.spare else self._returns.density(group.uses, group.last) * group.cost
        return worth, group.last
