"""What the scheduler's side knows of one request whose images the pool may keep or give."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.base import ImageReuse
from engine.vllm.image_kv.jumps import Jump, jump_over
from engine.vllm.image_kv.messages import ImageName
from engine.vllm.image_kv.prompt_images import MODE, PromptImage
from engine.vllm.image_kv.taint import salt_hashes, unsalt_hashes

NEVER = sys.maxsize


@dataclass(slots=True)
class Tracked:
    """One request.

    Attributes:
        request: vLLM's.
        images: those of its prompt, in order.
        ratio: the share of an image that is computed; None for a request that is exact.
        holds: the holds that were asked for, by image.
        held: those that every worker has confirmed.
        unanswered: those that no answer has come for.
        missed: images that could not be had.
        salted: the first block with a hash of the approximate kind; None while it lives among the exact ones.
        decided: whether it was said which of both.
        jumps: what is loaded and not computed.
        exact_until: tokens before it were computed exactly or read from exact blocks.
        pending: what has to be loaded in the step that is being scheduled, and where the request stood before.
    """

    request: Any
    images: tuple[PromptImage, ...]
    ratio: float | None
    holds: dict[ImageName, int] = field(default_factory=dict[ImageName, int])
    held: set[ImageName] = field(default_factory=set[ImageName])
    unanswered: set[int] = field(default_factory=set[int])
    asked_seconds: float = 0.0
    salted: int | None = None
    decided: bool = False
    jumps: tuple[Jump, ...] = ()
    exact_until: int = NEVER
    pending: list[Jump] = field(default_factory=list[Jump])
    before: int | None = None
    loaded_tokens: int = 0
    reread_tokens: int = 0
    missed: set[ImageName] = field(default_factory=set[ImageName])

    def reuse(self, request_id: str) -> ImageReuse:
        """What came of it, under this name."""
        images = {image.name for image in self.images}
        jumped = {jump.image for jump in self.jumps}
        computed = sum(jump.start - jump.image for jump in self.jumps) if self.loaded_tokens else 0
        hits = sum(image.first in jumped for image in self.images)
        return ImageReuse(
            request_id, len(images), hits, len(self.missed), self.loaded_tokens, computed, self.reread_tokens
        )

    def unknown(self, covered: int) -> list[PromptImage]:
        """Images behind the first `covered` tokens of which it is not known whether the pool has them."""
        known = self.holds.keys() | self.missed
        return [image for image in self.images if image.end > covered and image.name not in known]

    def image_at(self, first: int) -> PromptImage:
        """The image that begins with this token."""
        return next(image for image in self.images if image.first == first)


Lookup = Callable[[Any], int]


def look(request: Any, images: Sequence[PromptImage], ratio: float, block_tokens: int, lookup: Lookup) -> Chains:
    """What a request that opted in would read from the prefix cache: among exact blocks, and among approximate ones.

    The request is left with approximate hashes from the first image on that exact blocks do not cover; `Chains.leave`
    takes them away again. The pool is not asked, so that later turns are salted at the same block although an image has
    left it.

    Args:
        request: vLLM's.
        images: of its prompt.
        ratio: what it computes of each.
        block_tokens: tokens of a hashed block.
        lookup: says how many tokens the cache has for a request's hashes.
    """
    exact = lookup(request)
    uncovered = next((image for image in images if image.end > exact), None)
    if uncovered is None or request._block_hasher is None:
        return Chains(request, exact, exact, None)
    first = uncovered.first // block_tokens
    salt_hashes(request, first, f"{MODE} {ratio!r}")
    return Chains(request, exact, lookup(request), first)


@dataclass(frozen=True, slots=True)
class Chains:
    """Tokens that a request finds by exact hashes, and by those that are salted from block `first` on."""

    request: Any
    exact: int
    approximate: int
    first: int | None

    @property
    def best(self) -> int:
        """Tokens that one of both has."""
        return max(self.exact, self.approximate)

    def leave(self) -> None:
        """Give the request its exact hashes back."""
        if self.first is not None:
            unsalt_hashes(self.request, self.first)


def jumps_of(tracked: Tracked, prompt_tokens: int) -> tuple[Jump, ...]:
    """What a request passes over that computes its share of each image that is held."""
    if tracked.ratio is None:
        return ()
    found = (
        jump_over(image.first, image.tokens, tracked.ratio, prompt_tokens)
        for image in tracked.images
        if image.name in tracked.held
    )
    return tuple(jump for jump in found if jump is not None)
