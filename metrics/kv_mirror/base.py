"""What the mirror answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

BlockHash = bytes | int
# What a block's tokens are, and what one token is.
Modality = Literal["text", "image", "mixed"]
TokenModality = Literal["text", "image"]
# Whose a block was: of one conversation, of several, or not known.
Users = Literal["one", "several", "unknown"]


class Owner(NamedTuple):
    """A conversation of a tenant: what may use a block."""

    tenant: str
    conversation: str


@dataclass(frozen=True, slots=True)
class Eviction:
    """A block that left the cache.

    Attributes:
        number: counts evictions up; later ones have greater numbers.
        seconds: when, in seconds since 1970, by the engine's clock.
        hash: which block; None when the whole cache was emptied, then `tokens` are those of all blocks.
        image: uuid of the image that most of the block's image tokens belong to; None where it held text alone.
        owners: the conversations that used the block, the latest first.
        tokens: in the block.
        depth: the block's place in its prompt, from 1; 0 where that is not known.
    """

    number: int
    seconds: float
    hash: BlockHash | None
    image: str | None
    owners: tuple[Owner, ...]
    tokens: int
    depth: int


@dataclass(frozen=True, slots=True)
class MirrorCounts:
    """What is resident for certain, and what has left the cache since the mirror began."""

    resident_tokens: Mapping[TokenModality, int]
    resident_blocks: Mapping[Modality, int]
    evicted_tokens: Mapping[tuple[TokenModality, Users], int]
    gaps: int
    evicted_blocks: Mapping[Modality, int] = field(default_factory=dict[Modality, int])


@dataclass(frozen=True, slots=True)
class ImageBlocks:
    """An image that has resident KV: in how many blocks, how many of its tokens, and used by whom."""

    uuid: str
    blocks: int
    tokens: int
    owners: tuple[Owner, ...]


@dataclass(frozen=True, slots=True)
class MirrorView:
    """What the mirror knows of a request in view of the turn that it goes on from.

    Attributes:
        common_tokens: in full blocks that both have at their start, by their hashes: exact. None where it is not known.
        evicted: blocks of the common part that were evicted since the turn before began, in the order of the prompt.
        restarted: the engine was started anew since then, and everything that it held is gone.
    """

    common_tokens: int | None = None
    evicted: tuple[Eviction, ...] = ()
    restarted: bool = False
