"""The longest common subsequence of two lists, in bounded time for any input."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence

# Up to here one row of bits per item costs less than 20 ms and 4 MB in all; longer lists are anchored by what is
# unique in them.
MAX_EXACT_ITEMS = 4096


def common(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Pairs (index in old, index in new) of equal items, increasing in both, as many as there can be.

    Equal starts and ends are paired first. Items are hashed a fixed number of times, however often they repeat.
    Where more than 4,096 items of both lists are left, only items that are unique in each are sure to be paired.
    """
    start, end = 0, 0
    shorter = min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    while end < shorter - start and old[-1 - end] == new[-1 - end]:
        end += 1
    pairs = [(index, index) for index in range(start)]
    if start + end < shorter:
        inner = _inner(old[start : len(old) - end], new[start : len(new) - end])
        pairs += ((start + one, start + two) for one, two in inner)
    pairs += ((len(old) - back, len(new) - back) for back in range(end, 0, -1))
    return pairs


def _inner(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[tuple[int, int]]:
    if len(old) == 1 or len(new) == 1:
        # An item for an item is what most changes of a message are.
        return [(one, two) for one, item in enumerate(old) for two, other in enumerate(new) if item == other][:1]
    in_old, in_new = Counter(old), Counter(new)
    left = [index for index, item in enumerate(old) if item in in_new]
    right = [index for index, item in enumerate(new) if item in in_old]
    if max(len(left), len(right)) > MAX_EXACT_ITEMS:
        left = [index for index in left if in_old[old[index]] == in_new[old[index]] == 1]
        right = [index for index in right if in_old[new[index]] == in_new[new[index]] == 1]
        return _unique([old[index] for index in left], left, [new[index] for index in right], right)
    found = _exact([old[index] for index in left], [new[index] for index in right])
    return [(left[one], right[two]) for one, two in found]


def _exact(old: list[Hashable], new: list[Hashable]) -> list[tuple[int, int]]:
    """Bit-parallel: after item j of `new`, a cleared bit i of row j says that old[i] lengthens what is common.

    Source: Hyyrö 2004, "Bit-parallel LCS-length computation revisited". A row is one integer of len(old) bits, so that
    the work is len(new) additions, whatever equals what.
    """
    numbers: dict[Hashable, int] = {}
    ones = [numbers.setdefault(item, len(numbers)) for item in old]
    twos = [numbers[item] for item in new]
    where = [0] * len(numbers)
    for index, number in enumerate(ones):
        where[number] |= 1 << index
    full = (1 << len(old)) - 1
    row, rows = full, [full]
    for number in twos:
        hits = row & where[number]
        row = ((row + hits) | (row - hits)) & full
        rows.append(row)
    pairs: list[tuple[int, int]] = []
    one, two = len(ones), len(twos)
    while one and two:
        if ones[one - 1] == twos[two - 1]:
            one, two = one - 1, two - 1
            pairs.append((one, two))
        elif rows[two] >> (one - 1) & 1:
            one -= 1
        else:
            two -= 1
    return pairs[::-1]


def _unique(old: list[Hashable], left: list[int], new: list[Hashable], right: list[int]) -> list[tuple[int, int]]:
    """The longest increasing run of items that each list holds once."""
    place = {item: index for index, item in zip(left, old, strict=True)}
    ends: list[int] = []
    chain: list[tuple[int, int, int]] = []
    last: list[int] = []
    for item, index in zip(new, right, strict=True):
        at = bisect_left(ends, place[item])
        chain.append((place[item], index, last[at - 1] if at else -1))
        ends[at : at + 1] = [place[item]]
        last[at : at + 1] = [len(chain) - 1]
    pairs: list[tuple[int, int]] = []
    link = last[-1] if last else -1
    while link >= 0:
        one, two, link = chain[link]
        pairs.append((one, two))
    return pairs[::-1]
