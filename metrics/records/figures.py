"""What the records say: the types that `metrics/records/queries.py` answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from context.plan import Actor, Cause

# What the sums can be kept apart by.
Split = Literal[
    "model",
    "policy",
    "tenant",
    "multi_turn",
    "multimodal",
    "images",
    "visual_tokens",
    "turn",
    "eviction",
    "summary",
    "prompt_length",
    "outcome",
]


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over turns.

    `prompt_tokens` and its parts are of the `reported` turns alone, those of which the engine said what it read;
    `unreported` ones completed without that. None is a figure that nothing is known of.
    """

    requests: int = 0
    reported: int = 0
    unreported: int = 0
    unreported_tokens: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    write_tokens: int = 0
    uncached_tokens: int = 0
    derived_write_tokens: int = 0
    loaded_tokens: int = 0
    visual_tokens: int = 0
    completion_tokens: int = 0
    expected_tokens: int = 0
    lost_tokens: int = 0
    losses: int = 0
    images: int = 0
    new_images: int = 0
    encoder_runs: int = 0
    encoder_hits: int = 0
    answered: int = 0
    first_token_seconds_sum: float = 0.0
    timed: int = 0
    total_seconds_sum: float = 0.0
    priced: int = 0
    cost_sum: float = 0.0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were neither read nor loaded."""
        return self.prompt_tokens - self.read_tokens - self.loaded_tokens

    @property
    def read_ratio(self) -> float | None:
        """Read tokens of prompt tokens: weighted by tokens, 0 to 1."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def first_token_seconds(self) -> float | None:
        """Mean of the turns that were answered."""
        return self.first_token_seconds_sum / self.answered if self.answered else None

    @property
    def total_seconds(self) -> float | None:
        """Mean."""
        return self.total_seconds_sum / self.timed if self.timed else None

    @property
    def cost(self) -> float | None:
        """Of the turns that have a price."""
        return self.cost_sum if self.priced else None


@dataclass(frozen=True, slots=True)
class Group:
    """The turns with these values of the splits that were asked for. `values` are words for people: `stable`, `6-7`;
    `lows` the lowest number of a range, for its place on an axis, else None."""

    values: tuple[str, ...]
    lows: tuple[int | None, ...]
    totals: Totals


@dataclass(frozen=True, slots=True)
class Bin:
    """The turns that came from `start` on, in seconds since 1970, until the next bin."""

    start: float
    totals: Totals


@dataclass(frozen=True, slots=True)
class CauseTotals:
    """Turns that lost tokens, or read less than was sent before, for one cause."""

    cause: Cause
    actor: Actor | None
    requests: int
    lost_tokens: int


@dataclass(frozen=True, slots=True)
class ShareBin:
    """Requests by the share of their prompt that was read: from above `low` up to `high`; the first is none at all."""

    low: float
    high: float
    requests: int


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of the turns of one group, in seconds; None without any. Within some hundredths: from ranges, ten for each
    power of ten. `values` are words for people, as in `Group`; empty for all turns."""

    values: tuple[str, ...]
    requests: int
    first_token: Percentiles | None
    total: Percentiles | None


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Half, nine tenths and all but a hundredth of them took no longer."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Evicted:
    """KV blocks that the engine evicted, and that a turn had to compute again: whose they were (a conversation), and
    the image that most of them held, None for text; over the turns that paid, the latest of which is named."""

    tenant: str
    conversation: str | None
    image_id: str | None
    turns: int
    lost_tokens: int
    paid_by: str
    paid_turn: int
    last_seconds: float


@dataclass(frozen=True, slots=True)
class ConversationTotals:
    """A conversation: when its first and latest turns came, in seconds since 1970, the record of the latest, its
    longest branch, and its sums."""

    tenant: str
    conversation: str
    models: tuple[str, ...]
    policies: tuple[str, ...]
    first_seconds: float
    last_seconds: float
    last_record: int
    turns: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class ImageTotals:
    """An image: in how many turns and conversations it was sent, how often in all, and when last."""

    tenant: str
    image_id: str
    turns: int
    occurrences: int
    conversations: int
    first_seconds: float
    last_seconds: float


@dataclass(frozen=True, slots=True)
class Heap:
    """What some conversations cost under one policy: `conversations` of them. `priced` requests have a cost."""

    policy: str
    conversations: int
    requests: int
    prompt_tokens: int
    read_tokens: int
    lost_tokens: int
    priced: int
    cost: float
    loaded_tokens: int = 0

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were neither read nor loaded."""
        return self.prompt_tokens - self.read_tokens - self.loaded_tokens
