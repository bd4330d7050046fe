"""What an evaluation says of the methods: how much is lost at a small ratio, and which rows are worth computing."""

from __future__ import annotations

from dataclasses import dataclass

from metrics.eval import base
from metrics.eval.base import Cell, Hop, Interval
from metrics.eval.rows import Table

# How much of the share of right answers may be lost: one point where one picture is asked about, three where several.
ALLOWED: dict[Hop, float] = {"single_hop": 0.01, "multi_hop": 0.03}
SMALL = 0.05


@dataclass(frozen=True, slots=True)
class Loss:
    """What `head` loses with images of one donor.

    `at_small` is the loss at the small ratio; `least_ratio` the smallest from which on it stays within what is allowed;
    None where no ratio that was tried does, or nothing was asked.
    """

    donor: str
    hop: Hop
    allowed: float
    at_small: Interval | None
    least_ratio: float | None

    @property
    def is_met(self) -> bool:
        """Whether the mean at the small ratio is within what is allowed."""
        return self.at_small is not None and self.at_small.mean <= self.allowed + 1e-9


@dataclass(frozen=True, slots=True)
class Comparison:
    """One method against another at an equal budget, on the same questions; below zero is better than the other.

    `loss_*` are differences of the share of right answers, `reply_kl` of the divergence in nats.
    """

    method: str
    against: str
    donor: str
    ratio: float
    loss_single_hop: Interval | None
    loss_multi_hop: Interval | None
    reply_kl: Interval | None


@dataclass(frozen=True, slots=True)
class Findings:
    """Losses of `head` by donor, and comparisons at equal budgets."""

    losses: list[Loss]
    comparisons: list[Comparison]


_PAIRS = (
    (base.PER_LAYER, base.HEAD),
    (base.HEAD, base.RANDOM),
    (base.HEAD, base.SUFFIX),
    (base.HEAD, base.NO_ROTATION),
    (base.KV_DEVIATION + base.WITHIN, base.HEAD),
    (base.ATTENTION_DEVIATION + base.WITHIN, base.HEAD),
)


def findings(table: Table) -> Findings:
    """What the outcomes say. Only what was run is compared."""
    cells = list(table.outcomes)
    donors = dict.fromkeys(str(cell.donor) for cell in cells if cell.method == base.HEAD)
    hops: tuple[Hop, ...] = ("single_hop", "multi_hop")
    losses = [_loss(table, donor, hop) for donor in donors for hop in hops]
    comparisons = [
        _compare(table, cell, Cell(against, cell.ratio, cell.donor))
        for method, against in _PAIRS
        for cell in cells
        # Without rows of images, and with all of them, the methods are one.
        if cell.method == method and cell.ratio not in (None, 0.0, 1.0)
        if Cell(against, cell.ratio, cell.donor) in table.outcomes
    ]
    return Findings(losses, comparisons)


def _loss(table: Table, donor: str, hop: Hop) -> Loss:
    full = Cell(base.FULL)
    ratios = sorted(
        cell.ratio
        for cell in table.outcomes
        if cell.method == base.HEAD and cell.donor == donor and cell.ratio is not None
    )
    least: float | None = None
    for ratio in reversed(ratios):
        loss = table.loss(Cell(base.HEAD, ratio, donor), hop, full)
        if loss is None or loss.mean > ALLOWED[hop] + 1e-9:
            break
        least = ratio
    at_small = table.loss(Cell(base.HEAD, SMALL, donor), hop, full)
    return Loss(donor, hop, ALLOWED[hop], at_small, least)


def _compare(table: Table, cell: Cell, against: Cell) -> Comparison:
    return Comparison(
        cell.method,
        against.method,
        str(cell.donor),
        float(cell.ratio or 0),
        table.loss(cell, "single_hop", against),
        table.loss(cell, "multi_hop", against),
        table.excess(cell, against),
    )
