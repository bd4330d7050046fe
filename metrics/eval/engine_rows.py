"""What the engine answered, by cell, and how that compares with the plain model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from metrics.eval import base
from metrics.eval.base import Cell, EngineOutcome, EngineRow, Hop
from metrics.eval.rows import Outcomes, interval


def engine_rows(found: Mapping[Cell, Sequence[EngineOutcome]], plain: Outcomes) -> list[EngineRow]:
    """A row for each cell, in the order of the cells.

    Args:
        found: for each cell the questions in one order, those of full recompute among them.
        plain: what the plain model made of the same questions.
    """
    full = found[Cell(base.FULL)]
    return [_row(cell, outcomes, full, plain) for cell, outcomes in found.items()]


def _row(cell: Cell, outcomes: Sequence[EngineOutcome], full: Sequence[EngineOutcome], plain: Outcomes) -> EngineRow:
    def accuracy(hop: Hop) -> base.Interval | None:
        return interval([float(one.right) for one in outcomes if one.hop == hop])

    other = {one.case: one.right for one in plain.get(cell, ())}
    known = [one.right == other[one.case] for one in outcomes if one.case in other]
    return EngineRow(
        method=cell.method,
        ratio=cell.ratio,
        donor=cell.donor,
        questions=len(outcomes),
        computed_image_share=fmean(one.image_share for one in outcomes),
        computed_token_share=fmean(one.token_share for one in outcomes),
        ttft_seconds=median(one.ttft_seconds for one in outcomes),
        speedup=median(whole.ttft_seconds / one.ttft_seconds for one, whole in zip(outcomes, full, strict=True)),
        timed_questions=len(outcomes),
        top1_agreement=fmean(one.top1 for one in outcomes),
        accuracy_single_hop=accuracy("single_hop"),
        accuracy_multi_hop=accuracy("multi_hop"),
        as_plain=fmean(known) if known else None,
    )
