"""What a benchmark gives: rows with a limit and a verdict, the figures behind them, and both as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.table import Table

SMALL = "small body"
SEEN = "1 MB image seen before"
BY_UUID = "direct by uuid"

Verdict = Literal["pass", "fail", "unknown"]
Bound = Literal["at most", "below", "at least"]


@dataclass(frozen=True, slots=True)
class Row:
    """One measure against its limit. A `value` of None was not reported by the gateway, and is neither good nor bad."""

    measure: str
    value: float | None
    unit: str
    bound: Bound | None = None
    limit: float | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """None for a row without a limit."""
        if self.limit is None:
            return None
        if self.value is None:
            return "unknown"
        kept = {
            "at most": self.value <= self.limit,
            "below": self.value < self.limit,
            "at least": self.value >= self.limit,
        }
        return "pass" if kept[self.bound or "at most"] else "fail"


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of one target: medians over the rounds of each round's quantile, and of its CPU time a request."""

    p50_seconds: float
    p99_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The outcome. `latency[body][target]` and `throughput[target]` (requests a second) are the raw figures."""

    rows: tuple[Row, ...]
    latency: Mapping[str, Mapping[str, Spread]] = field(default_factory=dict[str, Mapping[str, Spread]])
    throughput: Mapping[str, float] = field(default_factory=dict[str, float])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def passed(self) -> bool:
        """Whether no measure fails its limit and none is unknown."""
        return all(row.verdict in (None, "pass") for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """As plain values; every row with its verdict."""
        rows = [asdict(row) | {"verdict": row.verdict} for row in self.rows]
        latency = {body: {name: asdict(spread) for name, spread in each.items()} for body, each in self.latency.items()}
        return {
            "rows": rows,
            "latency": latency,
            "throughput": dict(self.throughput),
            "machine": dict(self.machine),
            "passed": self.passed,
        }

    def table(self) -> Table:
        """As a table for a terminal."""
        shown = Table(
            title="stillframe bench", caption=", ".join(f"{key} {text}" for key, text in self.machine.items())
        )
        for heading in ("measure", "value", "limit", "verdict", "note"):
            shown.add_column(heading, justify="right" if heading in ("value", "limit") else "left")
        colours = {"pass": "green", "fail": "red", "unknown": "yellow", None: "dim"}
        for row in self.rows:
            limit = "" if row.limit is None else f"{row.bound} {row.limit:g} {row.unit}"
            verdict = f"[{colours[row.verdict]}]{row.verdict or ''}[/]"
            value = "not reported" if row.value is None else f"{row.value:.4g} {row.unit}"
            shown.add_row(row.measure, value, limit, verdict, row.note)
        return shown


def added_latency_rows(latency: Mapping[str, Mapping[str, Spread]]) -> list[Row]:
    """What the gateway adds to a direct call, and the relay beside it."""
    rows: list[Row] = []
    limits = {SMALL: 0.8, SEEN: 3.0}
    for body, spreads in latency.items():
        direct, relay, gateway = (spreads[name] for name in ("direct", "relay", "gateway"))
        added = (gateway.p50_seconds - direct.p50_seconds) * 1000
        yardstick = (relay.p50_seconds - direct.p50_seconds) * 1000
        tail = (gateway.p99_seconds - direct.p99_seconds) * 1000
        note = f"relay {yardstick:.2f} ms; direct {direct.p50_seconds * 1000:.2f} ms"
        rows.append(Row(f"{body}: added at p50", added, "ms", "at most", limits[body], note))
        rows.append(Row(f"{body}: added at p99", tail, "ms"))
        # A relay that seems to add nothing was measured in noise: no ratio can be taken from that.
        ratio = added / yardstick if yardstick > 0 else None
        bound = ("at most", 1.5) if body == SEEN else (None, None)
        rows.append(Row(f"{body}: added at p50, against the relay", ratio, "x", *bound))
        if named := spreads.get(BY_UUID):
            # Called directly the engine decodes the image, behind the gateway it need not. Here that is no credit.
            strict = (gateway.p50_seconds - named.p50_seconds) * 1000
            rows.append(Row(f"{body}: p50 over a direct call by uuid", strict, "ms"))
    return rows
