"""Differences between policies, and how sure they are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from metrics.records import queries
from metrics.records.figures import Heap
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from metrics.records.store import RecordStore
from metrics.report.compare import compare
from tests.unit.metrics.records.some import BEGIN, record


def _heaps(policy: str, ratio: float, count: int, seed: int, spread: float = 0.2) -> list[Heap]:
    """Conversations, each a heap, whose read ratio lies around one."""
    rng = random.Random(seed)  # noqa: S311
    made: list[Heap] = []
    for _ in range(count):
        prompt = rng.randrange(1000, 9000)
        read = int(prompt * min(1.0, max(0.0, rng.gauss(ratio, spread))))
        made.append(Heap(policy, 1, 5, prompt, read, 0, 5, (prompt - read) / 1e6))
    return made


def test_what_was_loaded_was_not_computed(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "ledger.db", 0.5)
    store.write([record(BEGIN, loaded_tokens=6, prompt_tokens=106), record(BEGIN + 1, conversation="c2")])
    store.close()
    with open_records(tmp_path / "ledger.db") as records:
        (found,) = compare(queries.heaps_of_conversations(records))
    assert found.computed_per_request == 36


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


@pytest.mark.parametrize(("effect", "is_clear"), [(0.15, True), (0.0, False)])
def test_from_records_to_the_difference(tmp_path: Path, effect: float, is_clear: bool) -> None:
    """Conversations of many turns each, in two halves: the interval holds the effect that was put in."""
    rng, made = random.Random(7), list[TurnRecord]()  # noqa: S311
    for number in range(400):
        policy = ("stable", "batched")[number % 2]
        # What differs between conversations differs more than between turns of one.
        ratio = rng.uniform(0.3, 0.7) + (effect if policy == "batched" else 0.0)
        for turn in range(1, 1 + rng.randrange(1, 12)):
            read = int(1000 * ratio)
            names = {"conversation": f"c{number}", "policy": policy, "number": turn}
            made.append(
                record(BEGIN + len(made), **names, prompt_tokens=1000, read_tokens=read, write_tokens=1000 - read)
            )
    store = RecordStore(tmp_path / "ledger.db", 0.5)
    store.write(made)
    store.close()
    with open_records(tmp_path / "ledger.db") as records:
        base, other = compare(queries.heaps_of_conversations(records), "stable")
    found = other.differences["read_ratio"]
    assert (base.conversations, other.conversations) == (200, 200)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= effect <= found.high
    assert found.is_clear is is_clear
    assert found.high - found.low < 0.1


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
