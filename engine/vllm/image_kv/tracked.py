"""What the scheduler's side knows of one request whose images the pool may keep or give."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.base import ImageReuse
from engine.vllm.image_kv.jumps import Jump, Stretch, Walk, jump_over, walk
from engine.vllm.image_kv.layers import LayerShares
from engine.vllm.image_kv.messages import ImageName
from engine.vllm.image_kv.prompt_images import MODE, PromptImage
from engine.vllm.image_kv.taint import salt_hashes, unsalt_hashes

NEVER = sys.maxsize


@dataclass(slots=True)
class Room:
    """What a step may compute beside the tokens that vLLM knows of: so many, in so many stretches."""

    tokens: int = 0
    stretches: int = 0

    def take(self, taken: Walk) -> None:
        """Have less of it."""
        self.tokens -= sum(stretch.tokens for stretch in taken.passed)
        self.stretches -= len(taken.passed)


@dataclass(slots=True)
class Tracked:
    """One request.

    Attributes:
        request: vLLM's.
        images: those of its prompt, in order.
        ratio: the share of an image that is computed; None for a request that is exact.
        by_layer: what of it each layer computes, where that is not the same.
        holds: the holds that were asked for, by image.
        held: those that every worker has confirmed.
        unanswered: those that no answer has come for.
        missed: images that could not be had.
        salted: the first token of the blocks whose hashes are of the approximate kind; None while it has none. What
            stands before it is found by exact requests, and is never loaded.
        decided: whether it was said which of both.
        jumps: what is loaded and not computed.
        exact_until: tokens before it were computed exactly or read from exact blocks.
        pending: what has to be loaded in the step that is being scheduled.
        passed: what it computes before the tokens that vLLM knows of.
        before: where the request stood before it; None when it is not yet admitted.
        apart: its stretches found no room in one step, so that each has a step of its own.
    """

    request: Any
    images: tuple[PromptImage, ...]
    ratio: float | None
    by_layer: LayerShares | None = None
    holds: dict[ImageName, int] = field(default_factory=dict[ImageName, int])
    held: set[ImageName] = field(default_factory=set[ImageName])
    unanswered: set[int] = field(default_factory=set[int])
    asked_seconds: float = 0.0
    salted: int | None = None
    decided: bool = False
    jumps: tuple[Jump, ...] = ()
    exact_until: int = NEVER
    pending: Sequence[Jump] = ()
    passed: Sequence[Stretch] = ()
    before: int | None = None
    apart: bool = False
    loaded_tokens: int = 0
    loaded_rows: int = 0
    """Rows that some layers loaded and others computed, over all layers."""
    loaded_at: set[int] = field(default_factory=set[int])
    """First tokens of the images of which something was loaded."""
    computed_at: dict[int, int] = field(default_factory=dict[int, int])
    """Tokens that steps computed of images, by their first one."""
    reread_tokens: int = 0
    missed: set[ImageName] = field(default_factory=set[ImageName])

    def reuse(self, request_id: str) -> ImageReuse:
        """What came of it, under this name."""
        images, hits, loaded = {image.name for image in self.images}, len(self.loaded_at), self.loaded
        computed = sum(self.computed_at.get(first, 0) for first in self.loaded_at) - (loaded - self.loaded_tokens)
        return ImageReuse(request_id, len(images), hits, len(self.missed), loaded, computed, self.reread_tokens)

    @property
    def is_told(self) -> bool:
        """Whether the engine has told of its prompt what was read and written. Of what came of it nothing changes then,
        also where its prompt is computed once more, or the parts would not sum up to the prompt."""
        return self.request.prefill_stats is None

    def compute(self, stretch: Stretch) -> None:
        """A step computes these tokens."""
        for image in () if self.is_told else self.images:
            if tokens := max(0, min(stretch.end, image.end) - max(stretch.start, image.first)):
                self.computed_at[image.first] = self.computed_at.get(image.first, 0) + tokens

    def load(self, image: int, tokens: int, rows: int = 0) -> None:
        """A step loads tokens of the image that begins with token `image`, or rows of it for some layers."""
        if self.is_told:
            return
        self.loaded_tokens += tokens
        self.loaded_rows += rows
        self.loaded_at.add(image)

    def reread(self, tokens: int) -> None:
        """So many tokens of approximate blocks were read."""
        if not self.is_told:
            self.reread_tokens = tokens

    def start_again(self) -> None:
        """What was loaded and computed has gone with the request's blocks."""
        if self.is_told:
            return
        self.loaded_tokens = self.loaded_rows = 0
        self.loaded_at.clear()
        self.computed_at.clear()

    @property
    def loaded(self) -> int:
        """Tokens that were loaded; those that some layers computed count as a mean over the layers."""
        return self.loaded_tokens + (self.loaded_rows // len(self.by_layer.shares) if self.by_layer else 0)

    @property
    def salt(self) -> str:
        """What makes its approximate blocks interchangeable with others."""
        return f"{MODE} {self.ratio!r}{f' {self.by_layer.profile}' if self.by_layer else ''}"

    def go(self, computed: int, room: Room, before: int | None = None) -> int:
        """Have it pass over what is loaded for it, from `computed` tokens on, as far as there is room in the step.

        Returns:
            Where it goes on.
        """
        found = walk(self.jumps, computed, 0 if self.apart else room.tokens, room.stretches)
        self.pending, self.passed, self.before = found.loads, found.passed, before
        room.take(found)
        return found.target

    def wish(self, tokens: int, stretches: int) -> Sequence[Stretch]:
        """What of it a step could compute with so much room, before the stretch that it goes on with."""
        if self.ratio is None or self.apart:
            return ()
        jumps = self.jumps if self.decided else jumps_of(self, self.request.num_prompt_tokens, self.salted)
        return walk(jumps, self.request.num_computed_tokens, tokens, stretches).passed

    def stay(self) -> None:
        """Nothing is loaded for it in this step, and none of its tokens are computed that vLLM does not know of."""
        self.pending, self.passed, self.before = (), (), None

    def unknown(self, covered: int) -> list[PromptImage]:
        """Images behind the first `covered` tokens that may be loaded, of which it is not known whether the pool has
        them."""
        known, salted = self.holds.keys() | self.missed, self.salted or 0
        behind = (image for image in self.images if image.end > covered and image.first >= salted)
        return [image for image in behind if image.name not in known]

    def image_at(self, first: int) -> PromptImage:
        """The image that begins with this token."""
        return next(image for image in self.images if image.first == first)


Lookup = Callable[[Any], int]


def look(tracked: Tracked, block_tokens: int, lookup: Lookup) -> Chains:
    """What a request that opted in would read from the prefix cache: among exact blocks, and among approximate ones.

    The request is left with approximate hashes from the first image on that exact blocks do not cover; `Chains.leave`
    takes them away again. The pool is not asked, so that later turns are salted at the same block although an image has
    left it.

    Args:
        tracked: the request.
        block_tokens: tokens of a hashed block.
        lookup: says how many tokens the cache has for a request's hashes.
    """
    request = tracked.request
    exact = lookup(request)
    uncovered = next((image for image in tracked.images if image.end > exact), None)
    if uncovered is None or request._block_hasher is None:
        return Chains(request, exact, exact, None, block_tokens)
    first = uncovered.first // block_tokens
    salt_hashes(request, first, tracked.salt)
    return Chains(request, exact, lookup(request), first, block_tokens)


@dataclass(frozen=True, slots=True)
class Chains:
    """Tokens that a request finds by exact hashes, and by those that are salted from block `first` on."""

    request: Any
    exact: int
    approximate: int
    first: int | None
    block_tokens: int

    @property
    def salted(self) -> int | None:
        """The first token of the salted blocks; None where nothing was salted."""
        return None if self.first is None else self.first * self.block_tokens

    @property
    def best(self) -> int:
        """Tokens that one of both has."""
        return max(self.exact, self.approximate)

    def leave(self) -> None:
        """Give the request its exact hashes back."""
        if self.first is not None:
            unsalt_hashes(self.request, self.first)


def jumps_of(tracked: Tracked, prompt_tokens: int, salted: int | None) -> tuple[Jump, ...]:
    """What a request passes over that computes its share of each image that is held.

    Nothing that begins before token `salted`, where its approximate hashes begin: exact requests find those blocks, and
    would read what was loaded into them.
    """
    if tracked.ratio is None:
        return ()
    ratio, by_layer = tracked.ratio, tracked.by_layer
    found = (
        by_layer.jump_over(image.first, image.tokens, prompt_tokens)
        if by_layer
        else jump_over(image.first, image.tokens, ratio, prompt_tokens)
        for image in tracked.images
        if image.name in tracked.held and image.first >= (salted or 0)
    )
    return tuple(jump for jump in found if jump is not None)
