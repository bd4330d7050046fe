"""Reading figures out of Prometheus text. What is not there is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def value(text: str, name: str) -> float | None:
    """A sample without labels."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and not sample.labels:
                return sample.value
    return None


def buckets(text: str, name: str) -> dict[float, float] | None:
    """A histogram's cumulative counts by upper bound; None when there is no such histogram."""
    found = {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{name}_bucket" and set(sample.labels) == {"le"}
    }
    return found or None


def quantile_between(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float | None:
    """The quantile of what was observed between two readings, as Prometheus' histogram_quantile gives it.

    It lies within its bucket by linear interpolation; beyond the last bound it is that bound. None when nothing was
    observed.
    """
    counts = sorted((bound, count - before.get(bound, 0.0)) for bound, count in after.items())
    rank = share * counts[-1][1]
    if counts[-1][1] <= 0:
        return None
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * ((rank - below) / (count - below) if count > below else 1.0)
        lower, below = bound, count
    return lower
