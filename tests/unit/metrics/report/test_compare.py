"""Differences between policies, and how sure they are."""

from __future__ import annotations

import random

import pytest

from metrics.records.figures import Heap
from metrics.report.compare import compare


def _heaps(policy: str, ratio: float, count: int, seed: int, spread: float = 0.2) -> list[Heap]:
    """Conversations, each a heap, whose read ratio lies around one."""
    rng = random.Random(seed)  # noqa: S311
    made: list[Heap] = []
    for _ in range(count):
        prompt = rng.randrange(1000, 9000)
        read = int(prompt * min(1.0, max(0.0, rng.gauss(ratio, spread))))
        made.append(Heap(policy, 1, 5, prompt, read, 0, 5, (prompt - read) / 1e6))
    return made


def test_a_real_difference_is_clear() -> None:
    base, other = compare(_heaps("stable", 0.8, 200, 1) + _heaps("batched", 0.5, 150, 2), "stable")
    assert (base.policy, base.differences) == ("stable", {})
    assert other.conversations == 150
    difference = other.differences["read_ratio"]
    assert difference.value == pytest.approx(other.read_ratio - base.read_ratio)
    assert difference.low is not None
    assert difference.high is not None
    assert difference.low < difference.value < difference.high < -0.2
    assert difference.is_clear
    assert other.differences["computed_per_request"].value > 0
    assert other.differences["cost_per_request"].is_clear


def test_no_difference_is_mostly_not_clear() -> None:
    """Of experiments without a difference about one in twenty seems to have one."""
    clear = 0
    for seed in range(60):
        _, other = compare(_heaps("a", 0.6, 80, 2 * seed) + _heaps("b", 0.6, 80, 2 * seed + 1), "a", seed)
        clear += other.differences["read_ratio"].is_clear
    assert 0 <= clear <= 9


def test_an_interval_narrows_with_more_conversations() -> None:
    def width(count: int) -> float:
        _, other = compare(_heaps("a", 0.6, count, 1) + _heaps("b", 0.5, count, 2), "a")
        found = other.differences["read_ratio"]
        return (found.high or 0) - (found.low or 0)

    assert 0 < width(400) < 0.6 * width(50)


def test_too_few_have_no_interval() -> None:
    _, other = compare(_heaps("a", 0.6, 50, 1) + _heaps("b", 0.5, 3, 2))
    assert other.policy == "b"
    assert (other.differences["read_ratio"].low, other.differences["read_ratio"].is_clear) == (None, False)


def test_the_order() -> None:
    heaps = _heaps("few", 0.5, 10, 1) + _heaps("many", 0.5, 30, 2) + _heaps("some", 0.5, 20, 3)
    assert [one.policy for one in compare(heaps)] == ["many", "some", "few"]
    assert [one.policy for one in compare(heaps, "few")] == ["few", "many", "some"]
    assert compare([]) == []
    assert compare(heaps) == compare(heaps)


def test_without_prices_there_is_no_cost() -> None:
    heaps = [Heap(policy, 1, 5, 100, 50, 0, 0, 0.0) for policy in ("a", "b") for _ in range(9)]
    base, other = compare(heaps)
    assert base.cost_per_request is None
    assert "cost_per_request" not in other.differences
