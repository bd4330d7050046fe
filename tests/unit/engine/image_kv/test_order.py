"""Which images go first."""

from __future__ import annotations

import pytest

from engine.vllm.image_kv.order import Order


def order(*members: tuple[str, str, int, float]) -> Order:
    made = Order()
    for member in members:
        made.add(*member)
    return made


def nothing(_: str) -> bool:
    return False


def test_with_equal_costs_the_one_used_longest_ago_goes_first() -> None:
    three = order(("a", "A", 10, 1), ("b", "B", 10, 1), ("c", "C", 10, 1))
    three.touch("a")
    assert three.make_room(1, nothing) == ["b"]
    assert three.make_room(11, nothing) == ["c", "a"]
    assert (three.bytes, len(three)) == (0, 0)


def test_all_that_is_held_of_an_image_goes_together() -> None:
    both = order(("a1", "A", 10, 1), ("b", "B", 10, 1), ("a2", "A", 10, 1))
    assert both.make_room(1, nothing) == ["b"]
    both.add("b", "B", 10, 1)
    assert both.make_room(1, nothing) == ["a1", "a2"]


def test_an_image_that_is_dear_for_its_bytes_outlives_cheap_ones_but_not_for_ever() -> None:
    one = order(("dear", "D", 10, 100), ("cheap", "C", 10, 10))
    gone: list[str] = []
    for number in range(30):
        gone += one.make_room(1, nothing) or []
        one.add(f"cheap-{number}", f"C{number}", 10, 10)
    assert gone[0] == "cheap"
    assert 8 <= gone.index("dear") <= 11
    # Of two equally dear ones the larger is the cheaper to lose, byte for byte.
    sizes = order(("small", "S", 10, 5), ("large", "L", 100, 5))
    assert sizes.make_room(1, nothing) == ["large"]


def test_what_is_needed_stays_and_its_image_with_it() -> None:
    two = order(("a1", "A", 10, 1), ("a2", "A", 10, 1), ("b", "B", 10, 1))
    assert two.make_room(5, lambda member: member == "a2") == ["b"]
    # Not enough: nothing goes in vain.
    two.add("c", "C", 10, 1)
    assert two.make_room(15, lambda member: member == "a2") is None
    assert sorted(two.members()) == ["a1", "a2", "c"]


@pytest.mark.parametrize("member", ["a", "never there"])
def test_to_remove_is_to_be_gone(member: str) -> None:
    one = order(("a", "A", 10, 1))
    one.remove(member)
    assert (member in one) is False
    assert one.bytes == (0 if member == "a" else 10)
