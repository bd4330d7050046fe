"""What a turn costs."""

from __future__ import annotations

import pytest

from metrics.records.prices import Price, Prices
from metrics.usage import Usage

_USAGE = Usage(prompt_tokens=1000, completion_tokens=100, read_tokens=700, write_tokens=200, uncached_tokens=100)
_PRICES = Prices(
    [Price("qwen*", 2.0, 0.2, 2.5, 8.0), Price("flat", 1.0, 1.0, 1.0, 3.0), Price("*", 10.0, 10.0, 10.0, 0.0)]
)


def test_each_part_has_its_price() -> None:
    assert _PRICES.cost("qwen3-vl", _USAGE) == pytest.approx((700 * 0.2 + 200 * 2.5 + 100 * 2 + 100 * 8) / 1e6)


def test_the_first_that_fits_counts() -> None:
    assert _PRICES.cost("other", _USAGE) == pytest.approx(0.01)
    assert Prices().cost("other", _USAGE) is None
    assert Prices([Price("a", 1, 1, 1, 1)]).cost("b", _USAGE) is None


def test_what_is_not_known_has_no_cost() -> None:
    unreported = Usage(prompt_tokens=1000, completion_tokens=100)
    assert _PRICES.cost("qwen3-vl", unreported) is None
    # Where all parts cost the same, they need not be known.
    assert _PRICES.cost("flat", unreported) == pytest.approx(0.0013)
    assert _PRICES.cost("flat", Usage()) is None
