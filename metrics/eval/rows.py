"""Outcomes of single questions to rows, with intervals over the questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrics.eval import base
from metrics.eval.base import Cell, Hop, Interval, Outcome, Row

_DRAWS, _SEED = 1000, 1
Outcomes = Mapping[Cell, Sequence[Outcome]]


@dataclass(frozen=True, slots=True)
class Table:
    """Outcomes by cell, each with those of full recompute at hand."""

    outcomes: Outcomes

    def rows(self, ttft_seconds: Mapping[Cell, float], timed_questions: int) -> list[Row]:
        """A row for each cell, in the order of the cells.

        Args:
            ttft_seconds: of the cells that were timed.
            timed_questions: on how many questions each of them was.
        """
        return [self._row(cell, ttft_seconds, timed_questions) for cell in self.outcomes]

    def accuracy(self, cell: Cell, hop: Hop) -> Interval | None:
        """The share of right answers; None where nothing of the hop was asked."""
        return interval([float(one.right) for one in self.outcomes[cell] if one.hop == hop])

    def loss(self, cell: Cell, hop: Hop, against: Cell) -> Interval | None:
        """How much lower the share of right answers is than under another cell, on the questions that both have."""
        return self._difference(cell, against, lambda one: -float(one.right), hop)

    def excess(self, cell: Cell, against: Cell) -> Interval | None:
        """By how many nats the reply's divergence is higher than under another cell."""
        return self._difference(cell, against, lambda one: one.reply_kl, None)

    def _difference(
        self, cell: Cell, against: Cell, of: Callable[[Outcome], float], hop: Hop | None
    ) -> Interval | None:
        if cell not in self.outcomes or against not in self.outcomes:
            return None
        other = {one.case: of(one) for one in self.outcomes[against]}
        found = [one for one in self.outcomes[cell] if one.case in other and hop in (None, one.hop)]
        return interval([of(one) - other[one.case] for one in found])

    def _row(self, cell: Cell, ttft_seconds: Mapping[Cell, float], timed_questions: int) -> Row:
        found, full, ttft = self.outcomes[cell], Cell(base.FULL), ttft_seconds.get(cell)

        def mean(of: Callable[[Outcome], float]) -> float:
            return float(np.mean([of(one) for one in found]))

        return Row(
            method=cell.method,
            ratio=cell.ratio,
            donor=cell.donor,
            questions=len(found),
            image_tokens=mean(lambda one: one.image_tokens),
            computed_image_share=mean(lambda one: one.image_share),
            computed_token_share=mean(lambda one: one.token_share),
            ttft_seconds=ttft,
            speedup=ttft_seconds[full] / ttft if ttft and full in ttft_seconds else None,
            timed_questions=0 if ttft is None else timed_questions,
            logit_mse=mean(lambda one: one.logit_mse),
            kl=mean(lambda one: one.kl),
            reply_kl=mean(lambda one: one.reply_kl),
            top1_agreement=mean(lambda one: one.top1),
            greedy_match_tokens=mean(lambda one: one.match_tokens),
            reply_tokens=mean(lambda one: one.reply_tokens),
            accuracy_single_hop=self.accuracy(cell, "single_hop"),
            accuracy_multi_hop=self.accuracy(cell, "multi_hop"),
            loss_single_hop=self.loss(cell, "single_hop", full),
            loss_multi_hop=self.loss(cell, "multi_hop", full),
        )


def interval(figures: Sequence[float]) -> Interval | None:
    """The mean and its interval by the bootstrap over questions, the same each time; None of no figures."""
    if not figures:
        return None
    values: NDArray[np.float64] = np.asarray(figures, np.float64)
    drawn = np.random.default_rng(_SEED).integers(len(values), size=(_DRAWS, len(values)))
    means: NDArray[np.float64] = np.sort(values[drawn].mean(1))
    return Interval(float(values.mean()), float(means[_DRAWS // 40]), float(means[-_DRAWS // 40 - 1]))
