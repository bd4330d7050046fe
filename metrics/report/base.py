"""The report as a value."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from metrics.records import queries
from metrics.records.figures import Bin, CauseTotals, Evicted, Group, Latency, ShareBin, Split, Totals
from metrics.records.latency import latencies
from metrics.records.prices import Prices
from metrics.records.queries import Filter, Records
from metrics.records.schema import NAMED
from metrics.report.compare import PolicyFigures, compare

# Lengths of bins, so that there are about as many as a plot has room for.
_BINS = (60, 300, 900, 3600, 3 * 3600, 6 * 3600, 86_400, 7 * 86_400, 28 * 86_400)
_MOST_BINS = 60
_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Report:
    """What the turns of a filter came to.

    Attributes:
        of: which turns.
        span: when the first and the last of the file's records came, in seconds since 1970; None without any.
        totals: all of them.
        completed: those that were answered whole.
        shares: requests by the share of their prompt that was read.
        by_turn: by the number of the turn in its conversation.
        by_eviction: turns in which the policy took images out of the history, and the others.
        causes: why tokens were not read, those of the most lost tokens first.
        splits: what was asked for beside these, by its name; `model,policy` are two at once.
        policies: how policies differ; empty unless they were asked for.
        latency: percentiles of all turns; then by each tenant, model or policy that was asked for.
        evicted: whose KV blocks the engine evicted that were paid for again.
        saved, wasted: by the price table of now, how much less what was read cost than to compute it, and how much more
            what was lost cost than to read it; None without prices.
        bin_seconds, over_time: sums over time.
    """

    of: Filter
    span: tuple[float, float] | None
    totals: Totals
    completed: Totals
    shares: Sequence[ShareBin]
    by_turn: Sequence[Group]
    by_eviction: Sequence[Group]
    causes: Sequence[CauseTotals]
    splits: Mapping[str, Sequence[Group]] = field(default_factory=dict[str, Sequence[Group]])
    policies: Sequence[PolicyFigures] = ()
    latency: Mapping[str, Sequence[Latency]] = field(default_factory=dict[str, Sequence[Latency]])
    evicted: Sequence[Evicted] = ()
    saved: float | None = None
    wasted: float | None = None
    bin_seconds: int = 86_400
    over_time: Sequence[Bin] = ()


def make_report(
    records: Records,
    of: Filter,
    splits: Sequence[Sequence[Split]] = (),
    baseline: str | None = None,
    prices: Prices | None = None,
) -> Report:
    """Ask the records for a report.

    Args:
        records: the file.
        of: which turns.
        splits: tables to add, each by one or more splits at once.
        baseline: the policy that others are compared with.
        prices: what tokens cost.
    """
    span = queries.span(records)
    bin_seconds = _bin_seconds(of, span)
    asked = {",".join(split): queries.by(records, split, of) for split in splits}
    has_policy = any("policy" in split for split in splits)
    named: list[Split] = list(dict.fromkeys(split[0] for split in splits if len(split) == 1 and split[0] in NAMED))
    outcomes = {group.values: group.totals for group in queries.by(records, ["outcome"], of)}
    saved, wasted = _worth(queries.by(records, ["model"], of), prices or Prices())
    return Report(
        of=of,
        span=span,
        totals=queries.totals(records, of),
        completed=outcomes.get(("completed",), Totals()),
        shares=queries.read_shares(records, of),
        by_turn=queries.by_turn(records, of),
        by_eviction=queries.by(records, ["eviction"], of),
        causes=queries.causes(records, of),
        splits=asked,
        policies=compare(queries.heaps_of_conversations(records, of), baseline) if has_policy else (),
        latency={"": latencies(records, of)} | {split: latencies(records, of, split) for split in named},
        evicted=queries.evicted(records, of),
        saved=saved,
        wasted=wasted,
        bin_seconds=bin_seconds,
        over_time=queries.over_time(records, bin_seconds, of),
    )


def _worth(models: Sequence[Group], prices: Prices) -> tuple[float | None, float | None]:
    """What reading saved, and what was lost cost, by the prices of the models that have one."""
    differences = [(group.totals, prices.of_reading(group.values[0])) for group in models]
    known = [(totals, difference) for totals, difference in differences if difference is not None]
    if not known:
        return None, None
    saved = sum(totals.read_tokens * difference for totals, difference in known)
    return saved, sum(totals.lost_tokens * difference for totals, difference in known)


def _bin_seconds(of: Filter, span: tuple[float, float] | None) -> int:
    if span is None:
        return _HOUR
    begin = max(span[0], of.since or 0.0)
    end = min(time.time(), span[1] if of.until is None else of.until)
    return next((bin for bin in _BINS if (end - begin) / bin <= _MOST_BINS), _BINS[-1])


def as_json(report: Report) -> dict[str, Any]:
    """The report for programs. Ratios are 0 to 1; None is a figure that nothing is known of."""
    return {
        "since": report.of.since,
        "until": report.of.until,
        "tenant": report.of.tenant,
        "model": report.of.model,
        "policy": report.of.policy,
        "totals": figures(report.totals),
        "read_shares": [asdict(one) for one in report.shares],
        "by_turn": [_row(["turn"], group) for group in report.by_turn],
        "by_eviction": [_row(["eviction"], group) for group in report.by_eviction],
        "causes": [asdict(one) for one in report.causes],
        "splits": {name: [_row(name.split(","), group) for group in groups] for name, groups in report.splits.items()},
        "policies": [asdict(one) for one in report.policies],
        "latency": {name or "all": [asdict(one) for one in rows] for name, rows in report.latency.items()},
        "evicted": [asdict(one) for one in report.evicted],
        "saved": report.saved,
        "wasted": report.wasted,
        "bin_seconds": report.bin_seconds,
        "over_time": [{"start": one.start, **figures(one.totals)} for one in report.over_time],
    }


def figures(totals: Totals) -> dict[str, Any]:
    """Sums with what is made of them."""
    return {
        **asdict(totals),
        "computed_tokens": totals.computed_tokens,
        "read_ratio": totals.read_ratio,
        "first_token_seconds": totals.first_token_seconds,
        "total_seconds": totals.total_seconds,
        "cost": totals.cost,
    }


def _row(names: Sequence[str], group: Group) -> dict[str, Any]:
    return {**dict(zip(names, group.values, strict=True)), **figures(group.totals)}
