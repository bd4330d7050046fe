"""The longest common subsequence, exact and bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.alignment import align
from context.alignment import order as alignment_order
from context.alignment.order import common
from context.transcript import Message, message_of
from tests.unit.context.transcripts import agent, user


def longest(old: Sequence[int], new: Sequence[int]) -> int:
    """By the textbook's table."""
    row = [0] * (len(new) + 1)
    for one in old:
        last = row
        row = [0]
        for index, two in enumerate(new):
            row.append(last[index] + 1 if one == two else max(last[index + 1], row[index]))
    return row[-1]


def check(old: Sequence[int], new: Sequence[int]) -> int:
    pairs = common(old, new)
    assert all(old[one] == new[two] for one, two in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
    return len(pairs)


FEW = st.lists(st.integers(0, 3), max_size=14)


@given(FEW, FEW)
def test_as_many_pairs_as_there_can_be(old: list[int], new: list[int]) -> None:
    assert check(old, new) == longest(old, new)


@given(st.permutations(range(12)), st.permutations(range(6, 18)))
def test_of_items_that_are_unique_too(old: list[int], new: list[int]) -> None:
    assert check(old, new) == longest(old, new)


def test_lists_too_long_for_that_are_anchored_by_what_is_unique() -> None:
    size = alignment_order.MAX_EXACT_ITEMS + 8
    old = [-1, *([0] * size), *range(1, 99), *([0] * size), -2]
    new = [-3, *([0] * size), *range(50, 120), *([0] * size), -4]
    assert check(old, new) == 49
    unique = [*range(1, size), 0]
    assert check([-1, *unique, -2], [-3, *unique[1:], unique[0], -4]) == size - 1


class Counted(bytes):
    """A digest that counts how often it is looked at."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return bytes.__eq__(self, other)  # pyright: ignore[reportArgumentType]

    def __hash__(self) -> int:
        Counted.looks += 1
        return bytes.__hash__(self)


class Read(dict[str, Any]):
    """A message that counts how often it is read."""

    reads = 0

    def __getitem__(self, key: str) -> Any:
        Read.reads += 1
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        Read.reads += 1
        return super().get(key, default)


Pair = tuple[list[Message], list[Message]]


def counted(messages: Sequence[Message]) -> list[Message]:
    return [Message(Read(one.wire), Counted(one.digest), one.form) for one in messages]


def all_equal(size: int) -> Pair:
    inner = [user("ok")] * size
    return [user("a"), *inner, user("b")], [user("c"), *inner[:-9], user("d")]


def all_different(size: int) -> Pair:
    return [user(f"old {index}") for index in range(size)], [user(f"new {index}") for index in range(size - 9)]


def turned_round(size: int) -> Pair:
    messages = [user(f"message {index}") for index in range(size)]
    return messages, messages[::-1]


def two_kinds(size: int) -> Pair:
    messages = [user("a"), user("b")] * (size // 2)
    return [user("c"), *messages, user("d")], [*messages[1:], user("e"), *messages[:7]]


def window(size: int) -> Pair:
    old = agent(size // 2)
    return old, [*old[:2], *(message_of({**one.wire, "content": "gone"}) for one in old[2:-20]), *old[-20:]]


@pytest.mark.parametrize("make", [all_equal, all_different, turned_round, two_kinds, window])
def test_the_work_grows_with_the_number_of_messages_alone(make: Callable[[int], Pair]) -> None:
    looks: dict[int, int] = {}
    for size in (500, 1000):
        old, new = map(counted, make(size))
        Counted.looks = Read.reads = 0
        align(old, new)
        looks[size] = Counted.looks + Read.reads
        assert Counted.looks <= 12 * (len(old) + len(new))
    assert looks[1000] <= 2.2 * looks[500]


def test_equal_messages_are_not_looked_into() -> None:
    old = counted(agent(50))
    Read.reads = 0
    align(old, [*old, user("next")])
    assert Read.reads == 0
    align(old, [*old[:-1], user("next")])
    assert 0 < Read.reads < 50
