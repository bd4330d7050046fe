"""What an evaluation measures: methods, donors, cells, outcomes and rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Hop = Literal["single_hop", "multi_hop"]
# Is told the stage that the work is at, and how far it is.
Say = Callable[[str, str], None]

DONORS = ("same", "text_moved", "other_images", "describe", "reordered")
RATIOS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
FULL, PREFIX, HEAD, PER_LAYER, NO_ROTATION = "full", "prefix", "head", "per_layer", "no_rotation"
SUFFIX, RANDOM = "suffix", "random"
KV_DEVIATION, ATTENTION_DEVIATION = "kv_deviation", "attention_deviation"
# As the two, with so few rows that the first layer, which they compute whole, is within the budget.
WITHIN = "_within"
METHODS = (
    FULL,
    PREFIX,
    HEAD,
    PER_LAYER,
    SUFFIX,
    RANDOM,
    KV_DEVIATION,
    KV_DEVIATION + WITHIN,
    ATTENTION_DEVIATION,
    ATTENTION_DEVIATION + WITHIN,
    NO_ROTATION,
)
MEANINGS: Mapping[str, str] = {
    FULL: "everything is computed; what all others are measured against",
    PREFIX: "what a prefix cache allows: exact KV up to where the donor's context differs, all else computed",
    HEAD: "the first share r of each image is computed, the rest is the donor's with keys turned; the engine's way",
    PER_LAYER: "as head, with a share for each layer by a profile, r on the mean",
    SUFFIX: "as head, with the last share of each image; a control",
    RANDOM: "as head, with rows by chance; a control",
    KV_DEVIATION: "the first layer whole, then the rows whose keys and values changed most (CacheBlend's rule)",
    KV_DEVIATION + WITHIN: "the same with so few rows that the first layer is within the budget",
    ATTENTION_DEVIATION: "the first layer whole, then the rows whose weight for the text changed most (KVShare's rule)",
    ATTENTION_DEVIATION + WITHIN: "the same with so few rows that the first layer is within the budget",
    NO_ROTATION: "as head, with keys left as they were in the donor; a control",
}
# Of fewer questions a speed-up is no result.
FEWEST_TIMED = 3
# They have no ratio; `full` has no donor.
WITHOUT_RATIO = (FULL, PREFIX)


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. `questions` are of each hop and seed; `main` are the donors that every method is tried on."""

    questions: int
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    donors: tuple[str, ...]
    main: tuple[str, ...]
    ratios: tuple[float, ...]
    timed: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to make a prompt's KV. `ratio` is the budget: the mean share of an image that a layer computes."""

    method: str
    ratio: float | None = None
    donor: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question under one cell, against full recompute.

    Attributes:
        case: the question's number.
        hop: whether it needs one picture or several.
        logit_mse: mean squared difference of the first token's logits.
        kl: divergence of the first token's probabilities from those of full recompute, in nats.
        reply_kl: the same, a mean over the tokens of full recompute's reply.
        top1: whether the most likely first token is the same.
        match_tokens: how many tokens of the reply are the same from its start on; `reply_tokens` at most.
        reply_tokens: tokens of full recompute's reply.
        right: whether the answer is the expected one.
        image_share: rows of images computed, a mean over the layers, of all rows of images.
        token_share: the same of all tokens of the prompt.
        image_tokens: of the prompt.
    """

    case: int
    hop: Hop
    logit_mse: float
    kl: float
    reply_kl: float
    top1: bool
    match_tokens: int
    reply_tokens: int
    right: bool
    image_share: float
    token_share: float
    image_tokens: int


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """One question under one cell on the embedded engine; names as in `Outcome`, shares as the engine tells them.

    `ttft_seconds` is from the request to the first token of the reply.
    """

    case: int
    hop: Hop
    right: bool
    top1: bool
    image_share: float
    token_share: float
    ttft_seconds: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over questions, and the middle 95 % of what other draws of questions would give."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One cell over all questions. Shares and losses are 0 to 1; a loss is full recompute's share minus this one.

    `ttft_seconds` is the plain PyTorch model's, batch 1, encoder warm; None where it was not timed. `timed_questions`
    are those behind it and behind `speedup`.
    """

    method: str
    ratio: float | None
    donor: str | None
    questions: int
    image_tokens: float
    computed_image_share: float
    computed_token_share: float
    ttft_seconds: float | None
    speedup: float | None
    timed_questions: int
    logit_mse: float
    kl: float
    reply_kl: float
    top1_agreement: float
    greedy_match_tokens: float
    reply_tokens: float
    accuracy_single_hop: Interval | None
    accuracy_multi_hop: Interval | None
    loss_single_hop: Interval | None
    loss_multi_hop: Interval | None


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One cell over all questions on the embedded engine.

    `ttft_seconds` is the median over the questions, `speedup` the median of full recompute's time over this one's;
    `timed_questions` are all of them.
    `as_plain` is the share of questions that the plain model answers right where the engine does, and wrong where it
    does not, under the same cell; None where it was not asked.
    """

    method: str
    ratio: float | None
    donor: str | None
    questions: int
    computed_image_share: float
    computed_token_share: float
    ttft_seconds: float
    speedup: float
    timed_questions: int
    top1_agreement: float
    accuracy_single_hop: Interval | None
    accuracy_multi_hop: Interval | None
    as_plain: float | None
