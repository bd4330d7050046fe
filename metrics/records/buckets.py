"""Ranges by which turns are grouped, where single values would be too many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# What is not known is in no range.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Buckets:
    """Ranges of whole numbers by the lowest of each, in rising order; the last one has no end."""

    lows: Sequence[int]

    def low_of(self, value: int) -> int:
        """The lowest number of the range that holds a value; the first range holds all that is below it."""
        return self.lows[max(0, bisect_right(self.lows, value) - 1)]

    def label(self, low: int) -> str:
        """A range in words: `3`, `6-7`, `101+`, `unknown`."""
        if low == UNKNOWN:
            return "unknown"
        at = self.lows.index(low)
        if at + 1 == len(self.lows):
            return f"{_short(low)}+"
        last = self.lows[at + 1] - 1
        return _short(low) if last == low else f"{_short(low)}-{_short(last)}"

    def sql(self, column: str, unit: int = 1) -> str:
        """An expression that gives `low_of` a column times `unit`, and `UNKNOWN` for null."""
        whens = " ".join(f"WHEN {column} >= {low / unit:g} THEN {low}" for low in reversed(self.lows[1:]))
        return f"(CASE WHEN {column} IS NULL THEN {UNKNOWN} {whens} ELSE {self.lows[0]} END)"


def _short(number: int) -> str:
    """A number; thousands of tokens as k."""
    if number >= 1000 and number % 1000 == 999:
        return f"{(number + 1) // 1000}k"
    return f"{number // 1000}k" if number >= 1000 and number % 1000 == 0 else str(number)


BUCKETS: Mapping[str, Buckets] = {
    "turn": Buckets((1, 2, 3, 4, 5, 6, 8, 11, 16, 21, 31, 51, 101)),
    "prompt_length": Buckets((0, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000)),
    "images": Buckets((0, 1, 2, 3, 5, 9, 17, 33, 65)),
    "visual_tokens": Buckets((0, 1, 1000, 4000, 16_000, 64_000)),
}
# Times in milliseconds: ten ranges for each power of ten, so that a percentile is within some hundredths.
TIMES = Buckets((0, *range(1, 10), *(round(10 ** (step / 10)) for step in range(10, 61))))
