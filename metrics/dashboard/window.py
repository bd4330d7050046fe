"""Which time is asked for, in bins that a plot has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metrics.records import queries
from metrics.records.queries import Filter, Records

_HOUR, _DAY = 3600, 86_400
# Range, and bins in it. Sums of every split are kept by hour for some days and by day for longer: a range of more than
# a week has bins of whole days, so that no single record is read for it.
RANGES: Mapping[str, tuple[int, int]] = {
    "15m": (900, 15),
    "1h": (_HOUR, 60),
    "6h": (6 * _HOUR, 300),
    "24h": (_DAY, 1800),
    "7d": (7 * _DAY, 3 * _HOUR),
    "30d": (30 * _DAY, _DAY),
    "all": (0, _DAY),
}
_LONG_BINS = (_DAY, 7 * _DAY, 28 * _DAY)
_MOST_BINS = 64


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` on, in seconds since 1970, until now: `bins` of `bin_seconds` each, the last one not over yet."""

    since: float
    bin_seconds: int
    bins: int

    @property
    def until(self) -> float:
        """The end of the last bin."""
        return self.since + self.bin_seconds * self.bins

    def before(self) -> Window:
        """As long a time just before this one."""
        return Window(self.since - self.bin_seconds * self.bins, self.bin_seconds, self.bins)

    def of(self, names: Filter) -> Filter:
        """A filter of these names and this time. Open at its end where that is now, so that a clock that was set back
        hides nothing."""
        return Filter(self.since, None, names.tenant, names.model, names.policy)

    def closed(self, names: Filter) -> Filter:
        """The same, ended where the window ends."""
        return Filter(self.since, self.until, names.tenant, names.model, names.policy)

    def json(self) -> dict[str, Any]:
        """For the page."""
        return {"since": self.since, "until": self.until, "bin_seconds": self.bin_seconds, "bins": self.bins}


def window(records: Records, name: str, now: float) -> Window:
    """A range by its name in `RANGES`; `all` begins with the first record.

    Raises:
        KeyError: there is no such range.
    """
    length, bin_seconds = RANGES[name]
    if not length:
        span = queries.span(records)
        first = now if span is None else min(span[0], now)
        bin_seconds = next((one for one in _LONG_BINS if (now - first) / one < _MOST_BINS), _LONG_BINS[-1])
        length = int(now // bin_seconds - first // bin_seconds + 1) * bin_seconds
    end = (now // bin_seconds + 1) * bin_seconds
    return Window(end - length, bin_seconds, length // bin_seconds)
