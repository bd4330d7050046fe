"""The blocks that the engine holds, and for a while those that it held."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from engine.base import BlockStored
from metrics.kv_mirror.base import BlockHash, Eviction, Modality, Owner, TokenModality, Users

_USERS = 8
_IMAGE_USERS = 64
_UNKNOWN = 0


@dataclass(slots=True, eq=False)
class Block:
    """One block of KV.

    Attributes:
        hash, parent: its own and that of the block before it.
        depth: its place in the prompt, from 1; 0 when what stands before it is not known.
        tokens: how many it holds.
        images: image tokens in it, by the image's uuid.
        sure: how many copies the engine holds for certain. It stores equal blocks twice, and removes them one by one.
        maybe: how many more it held before a gap.
        users: conversations that used it, the latest first.
        evicted: when it was last evicted.
    """

    hash: BlockHash
    parent: BlockHash | None
    depth: int
    tokens: int
    images: tuple[tuple[str, int], ...] = ()
    sure: int = 0
    maybe: int = 0
    users: tuple[Owner, ...] = ()
    evicted: Eviction | None = None

    @property
    def image_tokens(self) -> int:
        """How many of its tokens are images'."""
        return sum(tokens for _, tokens in self.images) if self.images else 0

    @property
    def modality(self) -> Modality:
        """What its tokens are."""
        of_images = self.image_tokens
        return "text" if not of_images else "image" if of_images >= self.tokens else "mixed"

    @property
    def image(self) -> str | None:
        """The image that has the most tokens in it."""
        return max(self.images, key=lambda one: one[1])[0] if self.images else None


@dataclass(slots=True)
class ImageUse:
    """Resident blocks and tokens of an image, and who used them, the latest last."""

    blocks: int = 0
    tokens: int = 0
    users: dict[Owner, None] = field(default_factory=dict[Owner, None])


class BlockTable:
    """All blocks by their hash. At most `max_blocks`: of those that are gone the longest gone are forgotten first, then
    the oldest of the others, which `forgotten` counts.
    """

    def __init__(self, max_blocks: int, max_evictions: int) -> None:
        self._max_blocks = max_blocks
        self._blocks: dict[BlockHash, Block] = {}
        self._gone: OrderedDict[BlockHash, None] = OrderedDict()
        self.images: dict[str, ImageUse] = {}
        self.evictions: deque[Eviction] = deque(maxlen=max_evictions)
        self.number = 0
        self.resident = self.uncertain = self.forgotten = 0
        self.resident_tokens: Counter[TokenModality] = Counter()
        self.resident_blocks: Counter[Modality] = Counter()
        self.evicted_tokens: Counter[tuple[TokenModality, Users]] = Counter()
        self.evicted_blocks: Counter[Modality] = Counter()

    def __iter__(self) -> Iterator[Block]:
        """The blocks that are resident for certain."""
        return (block for block in self._blocks.values() if block.sure)

    def get(self, digest: BlockHash | None) -> Block | None:
        """A block, whether or not it is resident."""
        return None if digest is None else self._blocks.get(digest)

    def stored(self, event: BlockStored) -> Block | None:
        """Blocks became resident; gives the last of them. Those before them are in use, so they are resident too."""
        before = self._in_use(event.parent_block_hash, event.block_size)
        size, block = event.block_size, None
        for at, digest in enumerate(event.block_hashes):
            block = self._blocks.get(digest)
            if block is None or block.depth == _UNKNOWN:
                keys = event.extra_keys[at] if at < len(event.extra_keys) else None
                images = _images(keys, event.token_ids[at * size : (at + 1) * size])
                depth = 1 if before is None else before.depth + 1 if before.depth != _UNKNOWN else _UNKNOWN
                block = self._known(digest, None if before is None else before.hash, depth, size, images)
            self._arrive(block)
            before = block
        self._bound()
        return block

    def removed(self, digest: BlockHash, seconds: float) -> None:
        """A copy of a block was evicted. One that is not known is ignored."""
        block = self._blocks.get(digest)
        if block is None or not (block.sure or block.maybe):
            return
        if block.sure:
            block.sure -= 1
            if block.sure:
                return
            self._leave(block)
            self.uncertain += block.maybe > 0
        else:
            block.maybe -= 1
            self.uncertain -= not block.maybe
        if block.maybe:
            return
        self.number += 1
        block.evicted = Eviction(
            self.number, seconds, digest, block.image, block.users, block.tokens, max(0, block.depth)
        )
        self.evictions.append(block.evicted)
        self._count_evicted(block)
        self._gone[digest] = None
        self._bound()

    def cleared(self, seconds: float) -> None:
        """The cache was emptied: one eviction for all."""
        held = [block for block in self._blocks.values() if block.sure or block.maybe]
        if not held:
            return
        self.number += 1
        eviction = Eviction(self.number, seconds, None, None, (), sum(block.tokens for block in held), 0)
        self.evictions.append(eviction)
        for block in held:
            block.sure = block.maybe = 0
            block.evicted = eviction
            self._count_evicted(block)
            self._gone[block.hash] = None
        self._nothing_is_sure()
        self.uncertain = 0

    def doubt(self) -> None:
        """Events were missed: nothing that is resident is certain any more."""
        # Counted anew: one that broke off in the middle may have left a sum behind.
        self.uncertain = 0
        for block in self._blocks.values():
            block.maybe, block.sure = block.maybe + block.sure, 0
            self.uncertain += block.maybe > 0
        self._nothing_is_sure()

    def restarted(self, seconds: float) -> None:
        """Another engine: no hash that was known means anything to it."""
        self.cleared(seconds)
        self._blocks.clear()
        self._gone.clear()

    def chain(self, digest: BlockHash | None) -> list[Block] | None:
        """All blocks from the start of a prompt to this one; None where one of them is not known."""
        found: list[Block] = []
        block = self.get(digest)
        while block is not None:
            found.append(block)
            if block.parent is None:
                found.reverse()
                return found if block.depth == 1 else None
            block = self._blocks.get(block.parent)
        return None

    def _known(
        self, digest: BlockHash, parent: BlockHash | None, depth: int, size: int, images: tuple[tuple[str, int], ...]
    ) -> Block:
        block = self._blocks.get(digest)
        if block is None:
            block = self._blocks[digest] = Block(digest, parent, depth, size, images)
        elif depth != _UNKNOWN:
            # Known so far only as a parent.
            held = block.sure > 0
            if held:
                self._leave(block)
            block.parent, block.depth, block.tokens, block.images = parent, depth, size, images
            if held:
                self._enter(block)
        return block

    def _in_use(self, digest: BlockHash | None, size: int) -> Block | None:
        """A block that a running request builds on, and so all before it."""
        if digest is None:
            return None
        first = block = self._blocks.get(digest)
        if first is None:
            first = self._known(digest, None, _UNKNOWN, size, ())
            self._arrive(first)
            return first
        while block is not None:
            if not block.sure:
                # One of the copies that may be there is.
                others = max(0, block.maybe - 1)
                self._arrive(block)
                block.maybe = others
            elif not self.uncertain:
                break
            block = self.get(block.parent)
        return first

    def _arrive(self, block: Block) -> None:
        if not block.sure:
            if block.maybe:
                self.uncertain -= 1
            else:
                # New, or evicted before: whoever used it then does not hold it now.
                block.users = ()
                self._gone.pop(block.hash, None)
            self._enter(block)
        block.sure += 1

    def _nothing_is_sure(self) -> None:
        self.resident = 0
        self.images.clear()
        self.resident_tokens.clear()
        self.resident_blocks.clear()

    def _count_evicted(self, block: Block) -> None:
        users: Users = "unknown" if not block.users else "one" if len(block.users) == 1 else "several"
        of_images = block.image_tokens
        self.evicted_blocks[block.modality] += 1
        self.evicted_tokens["image", users] += of_images
        self.evicted_tokens["text", users] += block.tokens - of_images

    def _count_resident(self, block: Block, sign: int) -> None:
        self.resident += sign
        self.resident_blocks[block.modality] += sign
        of_images = block.image_tokens
        self.resident_tokens["image"] += sign * of_images
        self.resident_tokens["text"] += sign * (block.tokens - of_images)

    def _enter(self, block: Block) -> None:
        self._count_resident(block, 1)
        for uuid, tokens in block.images:
            use = self.images.setdefault(uuid, ImageUse())
            use.blocks += 1
            use.tokens += tokens
            for owner in reversed(block.users):
                _add_user(use, owner)

    def _leave(self, block: Block) -> None:
        self._count_resident(block, -1)
        for uuid, tokens in block.images:
            use = self.images[uuid]
            use.blocks -= 1
            use.tokens -= tokens
            if not use.blocks:
                del self.images[uuid]

    def use(self, block: Block | None, owner: Owner, count: int | None = None) -> None:
        """Note who uses a block and those before it: `count` in all, or up to the start of the prompt."""
        made: dict[tuple[Owner, ...], tuple[Owner, ...]] = {}
        while block is not None and count != 0:
            if block.users[:1] != (owner,):
                users = made.get(block.users)
                if users is None:
                    # Blocks of one prompt share the tuple.
                    others = [one for one in block.users if one != owner]
                    users = made[block.users] = (owner, *others[: _USERS - 1])
                block.users = users
                if block.sure:
                    for uuid, _ in block.images:
                        _add_user(self.images[uuid], owner)
            count = None if count is None else count - 1
            block = self.get(block.parent)

    def _bound(self) -> None:
        while len(self._blocks) > self._max_blocks:
            if self._gone:
                digest, _ = self._gone.popitem(last=False)
                del self._blocks[digest]
                continue
            digest, block = next(iter(self._blocks.items()))
            del self._blocks[digest]
            self.uncertain -= not block.sure
            if block.sure:
                self._leave(block)
            self.forgotten += 1


def _add_user(use: ImageUse, owner: Owner) -> None:
    use.users.pop(owner, None)
    use.users[owner] = None
    if len(use.users) > _IMAGE_USERS:
        del use.users[next(iter(use.users))]


def _images(keys: Sequence[Any] | None, ids: Sequence[int]) -> tuple[tuple[str, int], ...]:
    """Image tokens of a block by the image's uuid, from its extra keys: (uuid, offset from the block's start) for each
    image that reaches into it, and plain values of other kinds.

    An image's tokens have the id of its first one in the block; where it ends is not said otherwise.
    """
    placed: list[tuple[str, int]] = []
    for key in keys or ():
        if isinstance(key, (list, tuple)):
            uuid, offset = cast("Sequence[Any]", key)[:2]
            placed.append((str(uuid), max(0, int(offset))))
    counted: dict[str, int] = {}
    for at, (uuid, start) in enumerate(placed):
        end = placed[at + 1][1] if at + 1 < len(placed) else len(ids)
        part = ids[start:end]
        counted[uuid] = counted.get(uuid, 0) + (part.count(part[0]) if part else 0)
    return tuple(counted.items())
