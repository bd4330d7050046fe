"""What the scheduler's side and the worker's side of the pool tell each other, once a step.

The worker has the tensors and the pool, the scheduler has the requests. A plan goes out with each step and is carried
out in the order of its fields; a report comes back with the step's output. Nothing here is a tensor, so that both may
live in different processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.vllm.image_kv.stats import PoolStats


@dataclass(frozen=True, slots=True)
class ImageName:
    """An image as the scheduler can name it; with the model's fingerprint it is an entry's key.

    `tenant` is the request's cache salt, `image` the engine's identifier of the content, `grid` frames, rows and
    columns in tokens.
    """

    tenant: str
    image: str
    grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens side by side in the paged cache: `count` of them from place `first` of the first block on."""

    blocks: tuple[int, ...]
    first: int
    count: int

    @staticmethod
    def of(blocks: tuple[int, ...] | list[int], block_tokens: int, start: int, end: int) -> Span:
        """Where tokens [start, end) of a request stand that has these blocks."""
        first, last = start // block_tokens, -(-end // block_tokens)
        return Span(tuple(blocks[first:last]), start - first * block_tokens, end - start)


@dataclass(frozen=True, slots=True)
class Ask:
    """Hold an image's entry, under a number that names the hold."""

    hold: int
    name: ImageName


@dataclass(frozen=True, slots=True)
class Load:
    """Put rows of a held entry, from `row` on, where `span` says, for an image that stands at `position`.

    With `rows` the step computes them as well: those before `rows[l]` in layer l, which loads the others.
    """

    hold: int
    row: int
    span: Span
    position: int
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Capture:
    """The step computes rows of an image from `row` on, exactly, and they go where `span` says.

    Chunks of one image come one after the other under the same `request_id` and `first`, its first token in the prompt.
    """

    request_id: str
    first: int
    name: ImageName
    tokens: int
    position: int
    row: int
    span: Span


@dataclass(frozen=True, slots=True)
class Plan:
    """What the worker does with a step. `ended` names requests of which nothing more is captured.

    A request that leaves before its first step has its holds asked for and released in one plan.
    """

    asks: tuple[Ask, ...] = ()
    releases: tuple[int, ...] = ()
    ended: tuple[str, ...] = ()
    loads: tuple[Load, ...] = ()
    captures: tuple[Capture, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return self == _NOTHING


_NOTHING = Plan()


@dataclass(slots=True)
class Report:
    """What has become of holds: for each, how many workers have it and how many do not. `stats` is the pool of the
    first worker, None when nothing has changed in it, and `capturing` how many entries it is filling.
    """

    answers: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    stats: PoolStats | None = None
    capturing: int = 0

    def add(self, other: Report) -> Report:
        """With what another worker says of the same step."""
        for hold, (yes, no) in other.answers.items():
            mine = self.answers.get(hold, (0, 0))
            self.answers[hold] = (mine[0] + yes, mine[1] + no)
        if self.stats is None:
            self.stats, self.capturing = other.stats, other.capturing
        return self
