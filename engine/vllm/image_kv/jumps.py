"""Where a prefill ends a chunk and where it goes on, when parts of some images are loaded and not computed.

Pure arithmetic on token numbers: what is computed is [0, computed), a step computes the next tokens, a jump passes over
those that are loaded before that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Jump:
    """Tokens [start, end) of the prompt are loaded: the rows of one image from `start - image` on."""

    image: int
    start: int
    end: int


def jump_over(first: int, tokens: int, ratio: float, prompt_tokens: int) -> Jump | None:
    """What of an image is loaded when its first share `ratio` is computed; None when that is nothing.

    Args:
        first: the image's first token.
        tokens: how many it has.
        ratio: 0 to 1; rounded up to a whole token.
        prompt_tokens: of the prompt, whose last one is always computed, for its logits are what is asked for.
    """
    # 0.05 * 20 is a little more than 1; no token is computed for that.
    computed = min(tokens, ceil(round(ratio * tokens, 6)))
    start, end = first + computed, min(first + tokens, prompt_tokens - 1)
    return Jump(first, start, end) if start < end else None


def chunk(jumps: Sequence[Jump], computed: int, wanted: int) -> int:
    """How many tokens a step may compute of `wanted`, so that it ends where the next jump starts at the latest.

    Args:
        jumps: in the prompt's order, not overlapping. One that `computed` has reached does not count: see `landing`.
        computed: tokens that are there.
        wanted: tokens that the step would compute.
    """
    ahead = next((jump.start for jump in jumps if jump.start > computed), computed + wanted)
    return min(wanted, ahead - computed)


def landing(jumps: Sequence[Jump], computed: int) -> tuple[int, list[Jump]]:
    """Where a request goes on, and what has to be loaded for it.

    A prefix cache may have brought it into the middle of an image; the rest of it is loaded then. Images side by side
    of which nothing is computed are passed over together.
    """
    loads: list[Jump] = []
    for jump in jumps:
        if jump.start <= computed < jump.end:
            loads.append(Jump(jump.image, computed, jump.end))
            computed = jump.end
    return computed, loads
