"""One prompt on its way through the fake engine, with the hashes of its blocks.

Source: vLLM 0.32, v1/request.py::Request and v1/core/kv_cache_utils.py::get_request_block_hasher,
generate_block_hash_extra_keys, hash_block_tokens.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from engine.fake.blocks import Block

ExtraKeys = tuple[tuple[Any, ...], ...]
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image's placeholder tokens: `tokens` of them from `offset` on. As many embeddings fill them."""

    uuid: str
    offset: int
    tokens: int

    @property
    def end(self) -> int:
        return self.offset + self.tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat as the model sees it: token ids with every placeholder, and where the images stand in them."""

    tokens: list[int]
    images: tuple[PlacedImage, ...] = ()
    cache_salt: str | None = None

    @property
    def image_tokens(self) -> int:
        return sum(image.tokens for image in self.images)


@dataclass(slots=True, eq=False)
class FakeSequence:
    """A prompt, what was generated after it, and its share of the caches. The scheduler mutates it.

    `plan` are the tokens that it will generate, one a step; it ends with `plan_reason` when they are used up. Read and
    write tokens are known once the first token is out (v1/metrics/stats.py::PrefillStats). Events bring `session_id`
    back.
    """

    request_id: str
    prompt: Prompt
    plan: list[int]
    plan_reason: FinishReason
    block_tokens: int
    index: int = 0
    session_id: str = ""

    tokens: list[int] = field(init=False)
    hashes: list[bytes] = field(init=False, default_factory=list[bytes])
    extra_keys: list[ExtraKeys | None] = field(init=False, default_factory=list[ExtraKeys | None])
    blocks: list[Block] = field(init=False, default_factory=list["Block"])
    stored_blocks: int = 0
    computed_tokens: int = 0
    generated: int = 0
    preemptions: int = 0
    finished: FinishReason | None = None
    read_tokens: int = 0
    write_tokens: int = 0

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt.tokens)
        self.hash_new_blocks()

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.tokens)

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens.append(token)
        self.generated += 1
        if len(self.tokens) % self.block_tokens == 0:
            self.hash_new_blocks()

    def hash_new_blocks(self) -> None:
        """Hash the blocks that became full: over the block before, the tokens, and what they mean beyond their ids."""
        size = self.block_tokens
        first, full = len(self.hashes), len(self.tokens) // size
        ids = memoryview(array("Q", self.tokens[first * size : full * size])).cast("B")
        parent = self.hashes[-1] if self.hashes else b"\0" * 16
        image = 0
        for number in range(first, full):
            keys, image = self._extra_keys(number * size, image)
            at = (number - first) * size * 8
            hasher = blake2b(parent, digest_size=16)
            hasher.update(ids[at : at + size * 8])
            if keys is not None:
                hasher.update(repr(keys).encode())
            parent = hasher.digest()
            self.hashes.append(parent)
            self.extra_keys.append(keys)

    def _extra_keys(self, start: int, image: int) -> tuple[ExtraKeys | None, int]:
        """Keys of the block at `start`: images that reach into it with their offset from it, and the salt at the very
        first. `image` is the first image that may matter; the one for the next block is returned.
        """
        images, end, keys = self.prompt.images, start + self.block_tokens, list[tuple[Any, ...]]()
        while image < len(images) and images[image].end <= start:
            image += 1
        for placed in images[image:]:
            if placed.offset >= end:
                break
            keys.append(("mm", placed.uuid, placed.offset - start))
        if start == 0 and self.prompt.cache_salt:
            keys.append(("cache_salt", self.prompt.cache_salt))
        return (tuple(keys) if keys else None), image
