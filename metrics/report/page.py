"""The report as one HTML file: plots, and beside each the values as a table. It asks for nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from metrics.records.figures import Group, Totals
from metrics.report.base import Report
from metrics.report.charts import Series, bars, intervals, stacked_bars
from metrics.report.tables import (
    NAMES,
    cut,
    interval,
    moment,
    money,
    percent,
    seconds,
    share_label,
    times,
    told,
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --soft: #565d66; --paper: #fff; --line: #d8dce1; --panel: #f5f6f8;
  --read: #3a74d8; --loaded: #2fa5a0; --write: #efb02e; --uncached: #a8261d; --plain: #56606d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a6adb6; --paper: #15181c; --line: #363b42;
  --panel: #1e2228; --read: #5a93f2; --loaded: #4fc9c2; --write: #f2c04d; --uncached: #e2584b; --plain: #a4aebb; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .75rem; margin: 1rem 0;
  padding: 0; list-style: none; }
.cards li { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .8rem; }
.cards b { display: block; font-size: 1.35rem; } .cards span { color: var(--soft); font-size: .85rem; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
.read { fill: var(--read); } .loaded { fill: var(--loaded); } .write { fill: var(--write); }
.uncached { fill: var(--uncached); }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); } .interval { stroke: var(--plain); stroke-width: 3; }
.plain, .point { fill: var(--plain); }
.legend { color: var(--soft); font-size: .85rem; } .legend i { display: inline-block; width: .8em; height: .8em;
  margin: 0 .3em 0 .9em; border-radius: .15em; }
.legend .read { background: var(--read); } .legend .loaded { background: var(--loaded); }
.legend .write { background: var(--write); }
.legend .uncached { background: var(--uncached); }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .3rem; }
th, td { padding: .25rem .7rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
"""


def page(report: Report) -> str:
    """The whole file."""
    title = "Stillframe report"
    body = "".join(_sections(report)) if report.totals.requests else ""
    words = "".join(f"<p>{escape(line)}</p>" for line in told(report))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        f'<p class="soft">{escape(_scope(report))}</p>\n{words}{body}\n</main>\n</body>\n</html>\n'
    )


def _scope(report: Report) -> str:
    of = report.of
    since = "the beginning" if of.since is None else moment(of.since)
    until = moment(datetime.now(UTC).timestamp() if of.until is None else of.until)
    names = [
        f"{word} {value}"
        for word, value in (("tenant", of.tenant), ("model", of.model), ("policy", of.policy))
        if value
    ]
    return f"From {since} to {until}" + (f"; {', '.join(names)}" if names else "; all tenants, models and policies")


def _sections(report: Report) -> list[str]:
    totals = report.totals
    made = [_cards(totals)]
    moments = [moment(one.start)[:-4] for one in report.over_time]
    ticks = [_tick(one.start, report.bin_seconds) for one in report.over_time]
    chart = _stacked("Prompt tokens over time", ticks, [one.totals for one in report.over_time])
    made.append(
        _section("Over time (UTC)", chart + _totals_table("from", moments, [one.totals for one in report.over_time]))
    )
    turns = [group.values[0] for group in report.by_turn]
    chart = _stacked(
        "Prompt tokens of a turn by its number, mean", turns, [group.totals for group in report.by_turn], mean=True
    )
    made.append(_section("By turn, mean of a request", chart + _groups_table(["turn"], report.by_turn)))
    made.append(_shares(report))
    made.append(_causes(report))
    made += _evicted(report) + _latency(report)
    made.append(
        _section(
            "With and without image eviction by the policy", _groups_table(["images"], report.by_eviction, is_open=True)
        )
    )
    for name, groups in report.splits.items():
        heads = [NAMES.get(split, split) for split in name.split(",")]
        labels = [", ".join(group.values) for group in groups]
        chart = _stacked(f"Prompt tokens by {' and '.join(heads)}", labels, [group.totals for group in groups])
        made.append(_section(f"By {' and '.join(heads)}", chart + _groups_table(heads, groups, is_open=True)))
    if report.policies:
        made.append(_policies(report))
    return made


def _cards(totals: Totals) -> str:
    cards = (
        (percent(totals.read_ratio), "read of prompt tokens, weighted by tokens"),
        (f"{totals.computed_tokens:,}", "prompt tokens computed"),
        (f"{totals.lost_tokens:,}", "tokens lost: sent before, not read"),
        (f"{totals.requests:,}", "requests"),
        (seconds(totals.first_token_seconds), "to the first token, mean"),
        (money(totals.cost), "cost" if totals.priced else "cost: no prices are set"),
    )
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(words)}</span></li>" for value, words in cards)
    return f'<ul class="cards">{items}</ul>'


def _shares(report: Report) -> str:
    rows = [(share_label(share), float(share.requests), f"{share.requests:,}") for share in report.shares]
    label = "Requests by the share of their prompt that was read"
    table = _table(["read", "requests"], [[name, words] for name, _, words in rows])
    return _section(label, bars(label, rows, "read") + table)


def _causes(report: Report) -> str:
    label = "Why less was read than was sent before, by lost tokens"
    if not report.causes:
        return _section(label, "<p>Nothing was lost.</p>")
    rows = [
        (f"{one.cause} ({one.actor or '?'})", float(one.lost_tokens), f"{one.lost_tokens:,}") for one in report.causes
    ]
    table = _table(
        ["cause", "by", "requests", "lost tokens"],
        [[one.cause, one.actor or "?", f"{one.requests:,}", f"{one.lost_tokens:,}"] for one in report.causes],
    )
    return _section(label, bars(label, rows, "uncached") + table)


def _evicted(report: Report) -> list[str]:
    if not report.evicted:
        return []
    heads = ["blocks of", "image", "paid by", "last at turn", "turns", "lost tokens"]
    rows = [
        [
            one.conversation or "?",
            cut(one.image_id or "text"),
            "itself" if one.paid_by == one.conversation else one.paid_by,
            str(one.paid_turn),
            f"{one.turns:,}",
            f"{one.lost_tokens:,}",
        ]
        for one in report.evicted
    ]
    title = "Evicted by the engine and computed again, the most lost tokens first"
    return [_section(title, _table(heads, rows, is_open=True, named=2))]


def _latency(report: Report) -> list[str]:
    made: list[str] = []
    for split, found in report.latency.items():
        heads = [*([split] if split else []), "first p50", "p90", "p99", "total p50", "p90", "p99"]
        rows = [[*one.values, *times(one)] for one in found]
        if rows:
            title = f"Latency by {split}" if split else "Latency"
            made.append(_section(title, _table(heads, rows, is_open=True, named=len(found[0].values))))
    return made


def _policies(report: Report) -> str:
    first, *others = report.policies
    label = f"Read ratio against {first.policy}, with 95% intervals by conversation"
    drawn = [
        (one.policy, found.low, found.value, found.high, interval(found, 100, " points"))
        for one in others
        if (found := one.differences.get("read_ratio")) is not None and found.low is not None and found.high is not None
    ]
    rows = [
        [
            one.policy,
            f"{one.conversations:,}",
            f"{one.requests:,}",
            percent(one.read_ratio),
            interval(one.differences.get("read_ratio"), 100, " points"),
            f"{one.computed_per_request:,.0f}",
            interval(one.differences.get("computed_per_request")),
            money(one.cost_per_request) if one.cost_per_request is not None else "?",
        ]
        for one in report.policies
    ]
    heads = [
        "policy",
        "conversations",
        "requests",
        "read",
        "difference",
        "computed/request",
        "difference",
        "cost/request",
    ]
    note = "<p class=soft>An interval that holds 0 says that chance alone may have made the difference.</p>"
    chart = intervals(label, drawn) if drawn else ""
    return _section(label, chart + _table(heads, rows, is_open=True) + note)


def _stacked(label: str, places: Sequence[str], of: Sequence[Totals], *, mean: bool = False) -> str:
    def values(name: str) -> list[float]:
        return [getattr(one, name) / (max(1, one.reported) if mean else 1) for one in of]

    parts = _parts(of)
    series = [Series(name, name, values(f"{name}_tokens")) for name in parts]
    keys = "".join(f'<i class="{name}"></i>{name}' for name in parts)
    return f'<p class="legend">{keys} prompt tokens</p>' + stacked_bars(label, places, series, "tokens")


def _parts(of: Sequence[Totals]) -> list[str]:
    """The parts of a prompt that there are; nothing is loaded where there is no pool of images' KV."""
    loaded = ["loaded"] if any(one.loaded_tokens for one in of) else []
    return ["read", *loaded, "write", "uncached"]


def _heads(of: Sequence[Totals]) -> list[str]:
    return ["requests", "prompt tokens", *_parts(of), "read ratio", "lost", "first token", "cost"]


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n"


def _groups_table(heads: Sequence[str], groups: Sequence[Group], *, is_open: bool = False) -> str:
    of = [group.totals for group in groups]
    rows = [[*group.values, *_figures(group.totals, _parts(of))] for group in groups]
    return _table([*heads, *_heads(of)], rows, is_open=is_open, named=len(heads))


def _totals_table(head: str, names: Sequence[str], of: Sequence[Totals]) -> str:
    parts = _parts(of)
    return _table([head, *_heads(of)], [[name, *_figures(one, parts)] for name, one in zip(names, of, strict=True)])


def _figures(totals: Totals, parts: Sequence[str]) -> list[str]:
    tokens = (totals.requests, totals.prompt_tokens, *(getattr(totals, f"{name}_tokens") for name in parts))
    ratio, lost = percent(totals.read_ratio), f"{totals.lost_tokens:,}"
    return [*(f"{count:,}" for count in tokens), ratio, lost, seconds(totals.first_token_seconds), money(totals.cost)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, is_open: bool = False, named: int = 1) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    lines = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(cell)}</th>' if at < named else f"<td>{escape(cell)}</td>"
            for at, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
    return f"<details{' open' if is_open else ''}><summary>The values as a table</summary>{table}</details>"


def _tick(start: float, bin_seconds: int) -> str:
    at = datetime.fromtimestamp(start, UTC)
    return at.strftime("%m-%d") if bin_seconds >= 86_400 else at.strftime("%d %H:%M")
