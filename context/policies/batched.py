"""Let the context grow to a high water, then shrink it to a low one in one go: one break where `sliding` has many."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from context.policies.base import Rules, Shaped, View
from context.policies.eviction import Draft

Measure = Literal["images", "visual_tokens", "turns", "prompt_tokens"]


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Prices for `Batched`, per token in any one currency.

    Attributes:
        expected_turns: how many turns a conversation is expected to have; `expected_turns` less those it has had are
            still to come.
        read_price, write_price: of a prompt token that is read from the engine's cache, and of one that is not.
    """

    expected_turns: float
    read_price: float
    write_price: float


@dataclass(frozen=True, slots=True)
class Batched:
    """Evicts in batches, at boundaries.

    Nothing goes until `unit` of what is sent exceeds `high`. Then the oldest go, in a row, until at most `low` is left
    or nothing that may go is; what the client has cut goes too. That is one break. Pinned images do not count.

        images          images go, a marker stays in the place of each
        visual_tokens   as images, measured in their tokens by estimate
        turns           whole turns go, one message in front names their images; the current turn counts as one
        prompt_tokens   first images, then whole turns, measured in the tokens of all messages by estimate

    Where the client has broken the prefix in front of the oldest that may go, a batch goes as soon as half the way from
    `low` to `high` is passed: the break is there, and nothing is prefilled twice for it. What the client has cut behind
    such a break goes in any case.

    With `break_even` a batch goes earlier than at `high`, in the first turn in which

        saved tokens a turn * read_price * turns to come  >  rewritten tokens * (write_price - read_price)

    Saved is what the batch takes from the prompt: each turn to come would have read it. Rewritten is what was sent
    before, stands behind the first place that changes, and stays: it is written once where it would have been read.
    `high` stays the bound, whether it pays or not.

    Attributes:
        unit, high, low: what is measured, and the two waters in it.
        defer_client_deletions: go on sending what the client has cut until the next batch.
        pin_first_images: so many images stay, the first ones of the conversation.
        break_even: prices, for an earlier batch.
    """

    unit: Measure = "images"
    high: int = 20
    low: int = 3
    defer_client_deletions: bool = True
    pin_first_images: int = 0
    break_even: BreakEven | None = None
    name: str = "batched"
    version: str = "1"
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        rules = replace(self.rules, defer_client_window=self.defer_client_deletions)
        object.__setattr__(self, "rules", rules)

    def shape(self, view: View) -> Shaped:
        """What is sent, less a batch where one is due."""
        draft = Draft(view, self.pin_first_images)
        level = self._level(draft)
        if level > self.high:
            self._evict(draft)
        elif view.broken_at is not None and self._is_free(draft, level, view.broken_at):
            self._evict(draft, view.broken_at)
        elif (early := self._early(view, draft, level)) is not None:
            draft = early
        elif view.broken_at is not None:
            draft.take_stale(view.broken_at)
        words = self.unit.replace("_", " ")
        return draft.shaped(f"{words}: {level} of at most {self.high}, evicted to {self.low}")

    def _level(self, draft: Draft) -> int:
        if self.unit == "images":
            return sum(1 for _ in draft.images())
        if self.unit == "visual_tokens":
            return sum(map(draft.image_tokens, draft.images()))
        if self.unit == "turns":
            return len(draft.turns()) + 1
        return draft.tokens()

    def _evict(self, draft: Draft, start: int = 0) -> None:
        """Take out what is above `low`, and from `start` on what the client has cut."""
        draft.take_stale(start)
        if self.unit == "turns":
            turns = draft.turns()
            for turn in turns[: max(0, len(turns) + 1 - self.low)]:
                draft.take_turn(turn)
            return
        excess = self._level(draft) - self.low
        if self.unit == "images":
            draft.take_oldest(excess, lambda _: 1)
        elif self.unit == "visual_tokens":
            draft.take_oldest(excess, draft.image_tokens)
        else:
            shrink_tokens(draft, excess)

    def _is_free(self, draft: Draft, level: int, broken_at: int) -> bool:
        """Whether a batch is due that costs nothing."""
        if 2 * level < self.low + self.high:
            return False
        places = [] if self.unit == "turns" else [place.message for place in draft.evictable()]
        if self.unit in ("turns", "prompt_tokens"):
            places += [index for turn in draft.turns() for unit in turn for index in unit]
        return min(places, default=0) >= broken_at

    def _early(self, view: View, draft: Draft, level: int) -> Draft | None:
        """The draft with a batch taken out, where that pays."""
        prices = self.break_even
        if prices is None or level <= self.low:
            return None
        early = Draft(view, self.pin_first_images)
        self._evict(early)
        coming = max(0.0, prices.expected_turns - view.number)
        saved = (draft.tokens() - early.tokens()) * prices.read_price * coming
        rewritten = early.rewritten_tokens() * (prices.write_price - prices.read_price)
        return early if early.first is not None and saved > rewritten else None


def shrink_tokens(draft: Draft, excess: int, *, pinned: bool = False) -> None:
    """Take out so many prompt tokens, by estimate: the oldest images first, then whole turns."""
    excess -= draft.take_oldest(excess, draft.saved_tokens, pinned=pinned)
    for turn in draft.turns(pinned=pinned) if excess > 0 else ():
        excess -= draft.take_turn(turn)
        if excess <= 0:
            return
