"""How many rows of an image each layer computes, where a profile of the model says how much its layers need.

A request's ratio is then the mean over the layers. A row that a layer computes has come through all layers before it,
so that the counts do not rise from layer to layer.

Source: VLCache (arXiv 2512.12977), ratios by layer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256

from engine.reference.profile import ReuseProfile
from engine.vllm.image_kv.jumps import Jump, rows_of


@dataclass(frozen=True, slots=True)
class LayerShares:
    """What the layers compute under one budget.

    Attributes:
        ratio: the budget, a mean over the layers.
        shares: of each layer, not rising.
        profile: digest of the profile that they are of.
    """

    ratio: float
    shares: tuple[float, ...]
    profile: str
    _rows: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]], compare=False, repr=False)

    def rows(self, tokens: int) -> tuple[int, ...]:
        """How many rows of an image each layer computes; together as many as the ratio alone has all layers compute."""
        if tokens not in self._rows:
            total = rows_of(tokens, self.ratio) * len(self.shares)
            self._rows[tokens] = spread([share * tokens for share in self.shares], total, tokens)
        return self._rows[tokens]

    def jump_over(self, first: int, tokens: int, prompt_tokens: int) -> Jump | None:
        """As `jumps.jump_over`, with the rows of each layer. Where the first layer computes all rows and later ones do
        not, nothing is jumped over: the jump is empty, and its rows say what is dropped.
        """
        end = min(first + tokens, prompt_tokens - 1)
        rows = tuple(min(count, end - first) for count in self.rows(tokens))
        return Jump(first, first + rows[0], end, rows) if rows[-1] < end - first else None


class LayerProfile:
    """A model's profile, and what it gives under the budgets that were asked for."""

    def __init__(self, profile: ReuseProfile) -> None:
        self._profile = profile
        self._digest = sha256(json.dumps(asdict(profile), sort_keys=True).encode()).hexdigest()[:32]
        self._made: dict[int, LayerShares] = {}

    def at(self, ratio: float) -> LayerShares:
        """Under a budget of 0 to 1."""
        # Clients may name any number. What is between two thousandths is the lower one's shares, with its own rows.
        budget = int(ratio * 1000 + 1e-6)
        if budget not in self._made:
            self._made[budget] = LayerShares(ratio, self._profile.ratios(budget / 1000), self._digest)
        made = self._made[budget]
        return made if made.ratio == ratio else LayerShares(ratio, made.shares, made.profile)


def spread(wanted: Sequence[float], total: int, most: int) -> tuple[int, ...]:
    """Whole numbers that do not rise, near to those wanted, with a given sum.

    Args:
        wanted: not rising, with a sum of at most `total`.
        total: the sum.
        most: of one number; `total` is at most that for each.
    """
    # A product that should be whole may be a little less.
    counts = [int(share + 1e-6) for share in wanted]
    while sum(counts) < total:
        open_to = [at for at in range(len(counts)) if counts[at] < (counts[at - 1] if at else most)]
        counts[max(open_to, key=lambda at: wanted[at] - counts[at])] += 1
    return tuple(counts)
