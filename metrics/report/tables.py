"""The report for the terminal. Its tables fit 80 columns without cutting a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from rich import box
from rich.table import Table

from metrics.records.figures import CauseTotals, Evicted, Group, Latency, ShareBin, Totals
from metrics.report.base import Report
from metrics.report.compare import Interval, PolicyFigures

NAMES = {
    "multi_turn": "single or multi turn",
    "multimodal": "text or multimodal",
    "visual_tokens": "visual tokens",
    "prompt_length": "prompt tokens",
    "eviction": "image eviction by the policy",
}
_BAR = 24
_MOST_EVICTED = 10
_SHOWN_CHARACTERS = 14


def told(report: Report) -> list[str]:
    """The sums in words."""
    totals = report.totals
    if not totals.requests:
        if report.span is None:
            return ["There are no records yet. Every chat through the gateway makes one, within a second of its end."]
        first, last = (moment(seconds) for seconds in report.span)
        return [f"There are no records of these turns. The file has some from {first} to {last}."]
    lines = [f"{_counted(totals.requests, 'request')}, {totals.reported:,} with cache figures of the engine."]
    if totals.unreported:
        lines.append(
            f"Of {_counted(totals.unreported, 'request')} with {totals.unreported_tokens:,} prompt tokens the engine "
            "did not say what it read; they are in no ratio below."
        )
    if totals.read_ratio is not None:
        lines.append(
            f"{totals.prompt_tokens:,} prompt tokens: {totals.read_tokens:,} read ({percent(totals.read_ratio)}, "
            f"weighted by tokens), {_loaded(totals)}{totals.write_tokens:,} write, {totals.uncached_tokens:,} uncached."
        )
        lines.append(
            f"{totals.computed_tokens:,} tokens were computed (write and uncached); {totals.lost_tokens:,} of them had "
            "been sent before and could have been read."
        )
    if totals.derived_write_tokens:
        lines.append(
            f"{totals.derived_write_tokens:,} of the written tokens are derived: the engine does not report them."
        )
    if report.completed.requests:
        first, whole = report.completed.first_token_seconds, report.completed.total_seconds
        lines.append(
            f"First token after {seconds(first)}, whole answer after {seconds(whole)}: means of what was completed."
        )
    if totals.cost is not None:
        lines.append(f"Cost {money(totals.cost)} for {totals.priced:,} requests that have a price.")
    if report.saved is not None and report.wasted is not None:
        lines.append(
            f"At today's prices reading saved {money(report.saved)}; had the lost tokens been read, it had been "
            f"{money(report.wasted)} more."
        )
    return lines


def tables(report: Report) -> Iterator[Table]:
    """Every table of a report that has turns."""
    if not report.totals.requests:
        return
    yield shares_table(report.shares)
    yield groups_table("By turn of the conversation", ["turn"], report.by_turn)
    yield groups_table("With and without image eviction by the policy", ["images"], report.by_eviction)
    yield causes_table(report.causes)
    if report.evicted:
        yield evicted_table(report.evicted)
    for split, rows in report.latency.items():
        if rows:
            yield latency_table(split, rows)
    for name, groups in report.splits.items():
        heads = [NAMES.get(split, split) for split in name.split(",")]
        yield groups_table(f"By {' and '.join(heads)}", heads, groups)
    if report.policies:
        yield policies_table(report.policies)


def groups_table(title: str, heads: Sequence[str], groups: Sequence[Group]) -> Table:
    """A row for each group."""
    has_cost = any(group.totals.priced for group in groups)
    shown = _table(title)
    for head in heads:
        shown.add_column(head, overflow="fold")
    has_loaded = any(group.totals.loaded_tokens for group in groups)
    optional = ["loaded"] if has_loaded else [], ["cost"] if has_cost else []
    for name in ("requests", "prompt", "read", *optional[0], "computed", "lost", "first", *optional[1]):
        shown.add_column(name, justify="right", no_wrap=True)
    for group in groups:
        totals = group.totals
        shown.add_row(
            *group.values,
            short(totals.requests),
            short(totals.prompt_tokens),
            percent(totals.read_ratio),
            *([short(totals.loaded_tokens)] if has_loaded else []),
            short(totals.computed_tokens),
            short(totals.lost_tokens),
            seconds(totals.first_token_seconds),
            *([money(totals.cost)] if has_cost else []),
        )
    return shown


def shares_table(shares: Sequence[ShareBin]) -> Table:
    """How many requests read how much of their prompt."""
    shown = _table("Requests by the share of their prompt that was read")
    shown.add_column("read")
    shown.add_column("requests", justify="right", no_wrap=True)
    shown.add_column("")
    most = max((share.requests for share in shares), default=0) or 1
    for share in shares:
        shown.add_row(share_label(share), f"{share.requests:,}", "█" * round(_BAR * share.requests / most))
    return shown


def causes_table(causes: Sequence[CauseTotals]) -> Table:
    """Why tokens were not read."""
    shown = _table("Why less was read than was sent before, by lost tokens")
    shown.add_column("cause")
    shown.add_column("by")
    for name in ("requests", "lost tokens", "share"):
        shown.add_column(name, justify="right", no_wrap=True)
    lost = sum(one.lost_tokens for one in causes)
    for one in causes:
        share = percent(one.lost_tokens / lost if lost else None)
        shown.add_row(one.cause, one.actor or "?", f"{one.requests:,}", f"{one.lost_tokens:,}", share)
    if not causes:
        shown.add_row("none", "", "", "", "")
    return shown


def evicted_table(evicted: Sequence[Evicted]) -> Table:
    """Whose blocks the engine evicted, and who paid."""
    shown = _table("Evicted by the engine and computed again, the most lost tokens first")
    shown.caption = "Long names are cut; --json has them whole."
    for name in ("blocks of", "image", "paid by", "last at turn"):
        shown.add_column(name, no_wrap=True)
    for name in ("turns", "lost tokens"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in evicted[:_MOST_EVICTED]:
        whose, image = cut(one.conversation or "?"), cut(one.image_id or "text")
        payer = "itself" if one.paid_by == one.conversation else cut(one.paid_by)
        shown.add_row(whose, image, payer, str(one.paid_turn), f"{one.turns:,}", f"{one.lost_tokens:,}")
    return shown


def latency_table(split: str, rows: Sequence[Latency]) -> Table:
    """Percentiles of times."""
    shown = _table(f"Latency by {split}" if split else "Latency")
    shown.caption = "Half, 90% and 99% of the requests took no longer."
    if split:
        shown.add_column(split, overflow="fold")
    for name in ("first p50", "p90", "p99", "total p50", "p90", "p99"):
        shown.add_column(name, justify="right", no_wrap=True)
    for one in rows:
        shown.add_row(*one.values, *times(one))
    return shown


def times(one: Latency) -> list[str]:
    """Percentiles in words: of the first token, then of all."""
    return [
        "?" if found is None else seconds(value)
        for found in (one.first_token, one.total)
        for value in ((found.p50, found.p90, found.p99) if found else (None,) * 3)
    ]


def cut(name: str) -> str:
    """The beginning of a name or an id."""
    return name if len(name) <= _SHOWN_CHARACTERS else name[: _SHOWN_CHARACTERS - 1] + "…"


def policies_table(policies: Sequence[PolicyFigures]) -> Table:
    """Policies side by side."""
    shown = _table(f"Policies against {policies[0].policy}, with 95% intervals by conversation")
    shown.caption = "An interval that holds 0 says that chance alone may have made the difference."
    shown.add_column("policy", overflow="fold")
    for name in ("conversations", "read", "difference", "computed/request", "difference"):
        shown.add_column(name, justify="right")
    for one in policies:
        shown.add_row(
            one.policy,
            f"{one.conversations:,}",
            percent(one.read_ratio),
            interval(one.differences.get("read_ratio"), 100, " points"),
            f"{one.computed_per_request:,.0f}",
            interval(one.differences.get("computed_per_request")),
        )
    return shown


def interval(difference: Interval | None, factor: float = 1, unit: str = "") -> str:
    """A difference with its interval: `+3.1 points (1.2 to 5.0)`."""
    if difference is None:
        return ""
    digits = 1 if unit else 0
    value = f"{difference.value * factor:+,.{digits}f}{unit}"
    if difference.low is None or difference.high is None:
        return f"{value} (too few)"
    return f"{value} ({difference.low * factor:,.{digits}f} to {difference.high * factor:,.{digits}f})"


def share_label(share: ShareBin) -> str:
    """A share in words: `none`, `10-20%`."""
    return "none" if share.high == 0 else f"{share.low * 100:.0f}-{share.high * 100:.0f}%"


def percent(ratio: float | None) -> str:
    """A ratio in hundredths; `?` where nothing is known."""
    return "?" if ratio is None else f"{ratio * 100:.1f}%"


def seconds(value: float | None) -> str:
    """A time."""
    if value is None:
        return "?"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def money(value: float | None) -> str:
    """A cost in the currency of the price table."""
    return "?" if value is None else f"{value:,.2f}" if value >= 1 else f"{value:.4f}"


def short(number: int) -> str:
    """A count of at most seven characters."""
    for unit, word in ((10**12, "T"), (10**9, "G"), (10**6, "M")):
        if number >= 10 * unit:
            return f"{number / unit:,.1f}{word}"
    return f"{number:,}" if number < 10**6 else f"{number / 10**6:.2f}M"


def moment(at: float) -> str:
    """A time of day in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _loaded(totals: Totals) -> str:
    loaded = totals.loaded_tokens
    return f"{loaded:,} loaded from the pool of images' KV, " if loaded else ""


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _table(title: str) -> Table:
    # As wide as its title, which is broken otherwise.
    return Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
        min_width=min(len(title) + 2, 78),
    )
