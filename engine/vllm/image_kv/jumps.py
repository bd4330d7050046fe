"""Where a prefill ends a chunk and where it goes on, when parts of some images are loaded and not computed.

Pure arithmetic on token numbers: what is computed is [0, computed), a step computes the next tokens, a jump passes over
those that are loaded before that step. A step may compute several stretches of a prompt, with jumps between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Jump:
    """Tokens [start, end) of the prompt are loaded: the rows of one image from `start - image` on.

    `rows`, where not all layers compute the same rows before `start`, says how many of the image each computes.
    """

    image: int
    start: int
    end: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens [start, end) of the prompt, which a step computes."""

    start: int
    end: int

    @property
    def tokens(self) -> int:
        """How many."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Walk:
    """A request goes on at `target`; before that `loads` are loaded, and `passed` are computed in the same step."""

    target: int
    loads: tuple[Jump, ...] = ()
    passed: tuple[Stretch, ...] = ()


def rows_of(tokens: int, ratio: float) -> int:
    """How many rows of an image are computed at a ratio of 0 to 1: rounded up."""
    # 0.05 * 20 is a little more than 1; no token is computed for that.
    return min(tokens, ceil(round(ratio * tokens, 6)))


def jump_over(first: int, tokens: int, ratio: float, prompt_tokens: int) -> Jump | None:
    """What of an image is loaded when its first share `ratio` is computed; None when that is nothing.

    Args:
        first: the image's first token.
        tokens: how many it has.
        ratio: 0 to 1; rounded up to a whole token.
        prompt_tokens: of the prompt, whose last one is always computed, for its logits are what is asked for.
    """
    start, end = first + rows_of(tokens, ratio), min(first + tokens, prompt_tokens - 1)
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


def walk(jumps: Sequence[Jump], computed: int, tokens: int = 0, stretches: int = 0) -> Walk:
    """How far a request gets in one step.

    Args:
        jumps: as `chunk` takes them.
        computed: tokens that are there.
        tokens: how many may be computed before the stretch that it goes on with.
        stretches: in how many pieces at most.
    """
    at, loads = landing(jumps, computed)
    passed: list[Stretch] = []
    for jump in jumps:
        if jump.start <= at:
            continue
        tokens -= jump.start - at
        if tokens < 0 or len(passed) == stretches:
            break
        passed.append(Stretch(at, jump.start))
        at, more = landing(jumps, jump.start)
        loads += more
    return Walk(at, tuple(loads), tuple(passed))
