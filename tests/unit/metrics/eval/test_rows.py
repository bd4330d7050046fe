"""Outcomes as rows with intervals, and what they say of the methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from metrics.eval.base import FULL, HEAD, PER_LAYER, RANDOM, Cell, Outcome
from metrics.eval.findings import findings
from metrics.eval.rows import Table, interval

OUTCOME = Outcome(0, "single_hop", 0.5, 0.25, 0.125, True, 2, 3, True, 0.05, 0.4, 100)


def outcomes(rights: Sequence[bool], kl: float = 0.0) -> list[Outcome]:
    """Single and multi-hop in turn."""
    hops = ("single_hop", "multi_hop")
    return [
        replace(OUTCOME, case=at, hop=hops[at % 2], right=right, reply_kl=kl)  # type: ignore[arg-type]
        for at, right in enumerate(rights)
    ]


def lost(single: int, multi: int) -> list[Outcome]:
    """Of 100 questions each so many wrong."""
    return outcomes([wrong >= limit for wrong in range(100) for limit in (single, multi)])


@pytest.mark.parametrize(
    ("figures", "mean", "low", "high"),
    [([1.0] * 9, 1.0, 1.0, 1.0), ([0.0, 1.0] * 50, 0.5, 0.40, 0.60), ([0.0] * 19 + [1.0], 0.05, 0.0, 0.15)],
)
def test_an_interval_is_as_wide_as_the_questions_are_few(
    figures: list[float], mean: float, low: float, high: float
) -> None:
    found = interval(figures)
    assert found is not None
    assert found.mean == pytest.approx(mean)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.021), pytest.approx(high, abs=0.021))
    assert interval(figures) == found
    assert interval([]) is None


def test_a_row_has_means_over_its_questions_and_the_loss_against_full_recompute() -> None:
    cell = Cell(HEAD, 0.05, "reordered")
    full = outcomes([True, True, True, False])
    made = [
        replace(one, right=right, kl=kl)
        for one, right, kl in zip(full, (False, True, True, True), (0, 1, 0, 1), strict=True)
    ]
    whole, row = Table({Cell(FULL): full, cell: made}).rows({Cell(FULL): 0.04, cell: 0.01}, 2)
    assert (row.method, row.ratio, row.donor, row.questions, row.kl) == (HEAD, 0.05, "reordered", 4, 0.5)
    assert (row.ttft_seconds, row.speedup, whole.speedup, row.timed_questions) == (0.01, 4.0, 1.0, 2)
    assert row.accuracy_single_hop is not None
    assert row.loss_single_hop is not None
    assert row.loss_multi_hop is not None
    assert (row.accuracy_single_hop.mean, row.loss_single_hop.mean, row.loss_multi_hop.mean) == (0.5, 0.5, -0.5)
    assert Table({cell: made[:1]}).rows({}, 0)[0].accuracy_multi_hop is None
    assert Table({cell: made}).rows({}, 0)[0].speedup is None


def test_a_difference_is_taken_question_by_question() -> None:
    # Both are right on half the questions; that they are the same halves shows in the interval.
    half = outcomes([True, True, False, False] * 10)
    table = Table({Cell(HEAD, 0.1, "a"): half, Cell(RANDOM, 0.1, "a"): half})
    found = table.loss(Cell(HEAD, 0.1, "a"), "single_hop", Cell(RANDOM, 0.1, "a"))
    assert found is not None
    assert (found.mean, found.low, found.high) == (0, 0, 0)


@pytest.mark.parametrize(
    ("by_ratio", "least", "is_met"),
    [
        pytest.param({0.0: (0, 0), 0.05: (0, 0), 0.5: (0, 0)}, (0.0, 0.0), (True, True), id="nothing is lost"),
        pytest.param({0.0: (9, 9), 0.05: (1, 3), 0.5: (0, 0)}, (0.05, 0.05), (True, True), id="just what is allowed"),
        pytest.param({0.0: (9, 9), 0.05: (2, 3), 0.5: (1, 1)}, (0.5, 0.05), (False, True), id="one hop loses more"),
        pytest.param(
            {0.0: (0, 0), 0.05: (9, 9), 0.5: (0, 9)}, (0.5, None), (False, False), id="less by chance at zero"
        ),
    ],
)
def test_the_smallest_ratio_is_one_from_which_on_all_are_good_enough(
    by_ratio: dict[float, tuple[int, int]], least: tuple[float | None, float | None], is_met: tuple[bool, bool]
) -> None:
    cells = {Cell(HEAD, ratio, "reordered"): lost(*wrong) for ratio, wrong in by_ratio.items()}
    found = findings(Table({Cell(FULL): lost(0, 0), **cells})).losses
    assert [(loss.donor, loss.hop) for loss in found] == [("reordered", "single_hop"), ("reordered", "multi_hop")]
    assert tuple(loss.least_ratio for loss in found) == least
    assert tuple(loss.is_met for loss in found) == is_met


def test_methods_are_compared_where_both_were_run_and_can_differ() -> None:
    ratios = (0.0, 0.1, 1.0)
    cells = {Cell(HEAD, ratio, "reordered"): lost(10, 10) for ratio in ratios}
    cells |= {Cell(PER_LAYER, ratio, "reordered"): lost(4, 12) for ratio in ratios}
    cells[Cell(RANDOM, 0.2, "reordered")] = lost(0, 0)
    (found,) = findings(Table({Cell(FULL): lost(0, 0), **cells})).comparisons
    assert (found.method, found.against, found.donor, found.ratio) == (PER_LAYER, HEAD, "reordered", 0.1)
    assert found.loss_single_hop is not None
    assert found.loss_multi_hop is not None
    assert found.loss_single_hop.mean == pytest.approx(-0.06)
    assert found.loss_multi_hop.mean == pytest.approx(0.02)
