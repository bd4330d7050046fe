"""Percentiles of the times that turns took, from how many turns lie in which range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from metrics.records.buckets import TIMES, UNKNOWN
from metrics.records.facts import facts_of
from metrics.records.figures import Latency, Percentiles, Split
from metrics.records.reader import Filter, Records
from metrics.records.schema import NAMED

_SHARES = (0.5, 0.9, 0.99)
_MILLISECONDS = 1000


def latencies(records: Records, of: Filter, split: Split | None = None) -> list[Latency]:
    """Times to the first token and in all.

    Args:
        records, of: as everywhere.
        split: tenant, model or policy, for a row for each; None for all turns together.
    """
    assert split is None or split in NAMED, "of the others no times are kept"
    words: dict[int, str] = dict(records.rows("SELECT id, name FROM record_names")) if split else {}
    first, total = (_counts(records, of, kind, split) for kind in ("first_token", "total"))
    found = [
        Latency(
            (words.get(key, "?"),) if split else (),
            sum(total[key].values()),
            _percentiles(first.get(key, {})),
            _percentiles(total[key]),
        )
        for key in total
    ]
    return sorted(found, key=lambda one: one.values)


def _counts(
    records: Records, of: Filter, kind: Literal["first_token", "total"], split: Split | None
) -> dict[int, dict[int, int]]:
    """How many turns lie in which range, by the value of the split."""
    facts, parameters = facts_of(records, of, kind)
    rows = records.rows(
        f"SELECT {split or 0}, value, sum(requests) FROM ({facts}) WHERE value <> {UNKNOWN} GROUP BY 1, 2 ORDER BY 2",
        parameters,
    )
    found: dict[int, dict[int, int]] = {}
    for key, low, count in rows:
        found.setdefault(key, {})[low] = count
    return found


def _percentiles(counts: Mapping[int, int]) -> Percentiles | None:
    return Percentiles(*(_place(counts, share) for share in _SHARES)) if counts else None


def _place(counts: Mapping[int, int], share: float) -> float:
    """Where this share of them ends, in seconds: evenly within the range that it ends in."""
    left, lows = share * sum(counts.values()), list(TIMES.lows)
    low = 0
    for low, count in counts.items():
        if left <= count:
            return _within(lows, low, left / count) / _MILLISECONDS
        left -= count
    return _within(lows, low, 1.0) / _MILLISECONDS


def _within(lows: Sequence[int], low: int, share: float) -> float:
    at = lows.index(low)
    high = lows[at + 1] if at + 1 < len(lows) else low
    return low + share * (high - low)
