"""How policies differ, with an interval: a bootstrap over whole conversations, since turns of one are alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrics.records.figures import Heap

_ROUNDS = 2000
_TAIL_ROUNDS = _ROUNDS // 40
# Of fewer heaps an interval says less than it seems to.
_FEWEST = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference and where it lies with 95% confidence; `low` and `high` are None where there are too few
    conversations to say."""

    value: float
    low: float | None
    high: float | None

    @property
    def is_clear(self) -> bool:
        """Whether it is not zero, by its interval."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """What one policy came to, and how it differs from the `baseline`, which has no differences.

    Attributes:
        policy: its name.
        conversations, requests: how many there were.
        read_ratio: read tokens of prompt tokens, 0 to 1.
        computed_per_request: prompt tokens that were neither read nor loaded, for a request.
        cost_per_request: by the price table; None without one.
        differences: by the names of the three figures above; missing for the baseline.
    """

    policy: str
    conversations: int
    requests: int
    read_ratio: float
    computed_per_request: float
    cost_per_request: float | None
    differences: dict[str, Interval]


# Columns of the sums: requests, prompt, read, priced, cost, computed.
_FIGURES: dict[str, Callable[[Any], Any]] = {
    "read_ratio": lambda sums: sums[..., 2] / np.maximum(sums[..., 1], 1),
    "computed_per_request": lambda sums: sums[..., 5] / np.maximum(sums[..., 0], 1),
    "cost_per_request": lambda sums: sums[..., 4] / np.maximum(sums[..., 3], 1),
}


def compare(heaps: Sequence[Heap], baseline: str | None = None, seed: int = 0) -> list[PolicyFigures]:
    """Policies side by side, the baseline first, then by their requests.

    Args:
        heaps: what whole conversations cost under them.
        baseline: what the others are compared with; the policy of the most requests where it is None or not there.
        seed: of the resampling; equal heaps and seeds give equal intervals.
    """
    sums = {name: _sums([heap for heap in heaps if heap.policy == name]) for name in {heap.policy for heap in heaps}}
    order = sorted(sums, key=lambda name: (name != baseline, -float(sums[name][:, 0].sum()), name))
    if not order:
        return []
    rng = np.random.default_rng(seed)
    drawn = {name: _resampled(sums[name], rng) for name in order}
    return [_figures(name, order[0], heaps, sums, drawn) for name in order]


def _figures(
    name: str, first: str, heaps: Sequence[Heap], sums: dict[str, Any], drawn: dict[str, Any]
) -> PolicyFigures:
    own, base = sums[name].sum(axis=0), sums[first].sum(axis=0)
    priced = own[3] > 0 and base[3] > 0
    values = {key: float(figure(own)) for key, figure in _FIGURES.items()}
    differences: dict[str, Interval] = {}
    for key, figure in _FIGURES.items():
        if name == first or (key == "cost_per_request" and not priced):
            continue
        value = values[key] - float(figure(base))
        if min(len(sums[name]), len(sums[first])) < _FEWEST:
            differences[key] = Interval(value, None, None)
            continue
        found: list[float] = sorted((figure(drawn[name]) - figure(drawn[first])).tolist())
        differences[key] = Interval(value, found[_TAIL_ROUNDS], found[-1 - _TAIL_ROUNDS])
    return PolicyFigures(
        name,
        sum(heap.conversations for heap in heaps if heap.policy == name),
        int(own[0]),
        values["read_ratio"],
        values["computed_per_request"],
        values["cost_per_request"] if own[3] > 0 else None,
        differences,
    )


def _sums(heaps: Sequence[Heap]) -> Any:
    rows = [
        (heap.requests, heap.prompt_tokens, heap.read_tokens, heap.priced, heap.cost, heap.computed_tokens)
        for heap in heaps
    ]
    return np.array(rows, dtype=np.float64)


def _resampled(sums: Any, rng: np.random.Generator) -> Any:
    """Sums of as many heaps, drawn with replacement, again and again."""
    count = len(sums)
    times = rng.multinomial(count, np.full(count, 1 / count), size=_ROUNDS)
    return times @ sums
