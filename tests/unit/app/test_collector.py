"""The collector of cycles runs behind requests alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator

import pytest

from app.collector import Collector


class Node:
    """One that holds itself: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def collector() -> Generator[Collector]:
    made = Collector()
    made.begin()
    yield made
    made.end()


def cycle() -> weakref.ref[Node]:
    return weakref.ref(Node())


def many(count: int) -> list[list[int]]:
    return [[] for _ in range(count)]


def test_a_cycle_stays_while_a_request_makes_objects_and_goes_behind_it(collector: Collector) -> None:
    left = cycle()
    kept = many(20_000)
    assert left() is not None
    collector.look()
    assert left() is None
    assert len(kept) == 20_000


def test_few_new_objects_are_not_worth_a_look(collector: Collector) -> None:
    left = cycle()
    collector.look()
    assert left() is not None
    gc.collect()


def test_nothing_is_collected_between_two_looks(collector: Collector) -> None:
    kept = many(20_000)
    collector.look()
    left = cycle()
    kept += many(20_000)
    assert left() is not None
    collector.look()
    assert left() is None


def test_after_its_last_user_the_interpreter_collects_as_it_likes_again() -> None:
    thresholds = gc.get_threshold()
    collector = Collector()
    collector.begin()
    collector.begin()
    collector.end()
    assert not gc.isenabled()
    collector.end()
    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == (True, thresholds, 0)
    left = cycle()
    kept = many(20_000)
    assert left() is None
    assert kept


def test_what_somebody_else_has_switched_on_is_left_on(collector: Collector) -> None:
    gc.enable()
    kept = many(20_000)
    collector.look()
    assert gc.isenabled()
    assert kept
