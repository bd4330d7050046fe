"""Now and over time: tokens, requests, first tokens, losses and evictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from metrics.dashboard.window import Window
from metrics.kv_mirror import Eviction
from metrics.records import queries
from metrics.records.facts import facts_of
from metrics.records.figures import Totals
from metrics.records.queries import Filter, Records
from metrics.records.reader import names_where
from metrics.records.record import TurnRecord
from metrics.records.schema import CAUSE_UNIT, CAUSES, NANOSECONDS, OUTCOMES

# Of more answers only the means are told: their times would have to be read one by one.
_MOST_TIMES = 50_000
_MOST_MARKS = 40
_FIGURES = (
    "requests",
    "reported",
    "unreported",
    "prompt_tokens",
    "read_tokens",
    "write_tokens",
    "uncached_tokens",
    "loaded_tokens",
    "derived_write_tokens",
    "lost_tokens",
    "visual_tokens",
    "completion_tokens",
    "images",
    "new_images",
    "encoder_runs",
    "encoder_hits",
)


def figures(totals: Totals) -> dict[str, Any]:
    """What the page shows of sums."""
    return {name: getattr(totals, name) for name in _FIGURES} | {
        "computed_tokens": totals.computed_tokens,
        "read_ratio": totals.read_ratio,
        "first_token_seconds": totals.first_token_seconds,
        "total_seconds": totals.total_seconds,
        "cost": totals.cost,
    }


def overview(
    records: Records, window: Window, names: Filter, evicted: Sequence[Eviction] | None = None
) -> dict[str, Any]:
    """Everything of the first view.

    Args:
        records: the file.
        window: the time.
        names: whose turns.
        evicted: the latest evictions of KV blocks; None where the engine does not tell.
    """
    of = window.of(names)
    sums = queries.totals(records, of)
    times = _times(records, of, sums, window.bin_seconds)
    return {
        "window": window.json(),
        "totals": figures(sums) | _spread([seconds for some in times.values() for seconds in some]),
        "before": figures(queries.totals(records, window.before().closed(names))),
        "over_time": [
            {"start": one.start, **figures(one.totals)} | _spread(times.get(one.start, ()))
            for one in queries.over_time(records, window.bin_seconds, of)
        ],
        "evictions": {
            "policy_turns": _by_bin(records, window, of, "eviction", {1: "turns"}),
            "engine_turns": _by_bin(records, window, of, "cause", _ENGINE_EVICTIONS),
            "blocks": None if evicted is None else _blocks(evicted, window, names.tenant),
            "marks": [_mark(one) for one in queries.evictions(records, of, _MOST_MARKS)],
        },
        "outcomes": _by_bin(records, window, of, "outcome", dict(enumerate(OUTCOMES))),
        "by_turn": [
            {"turn": group.values[0], "low": group.lows[0], **figures(group.totals)}
            for group in queries.by_turn(records, of)
        ],
        "causes": [asdict(one) for one in queries.causes(records, of)],
        "read_shares": [asdict(one) for one in queries.read_shares(records, of)],
    }


def _times(records: Records, of: Filter, sums: Totals, bin_seconds: int) -> dict[float, list[float]]:
    """Seconds to the first token of every answer, by bin; none where there are too many."""
    found: dict[float, list[float]] = {}
    if sums.answered > _MOST_TIMES:
        return found
    where, parameters = names_where(of, "")
    rows = records.rows(
        f"SELECT id / {NANOSECONDS * bin_seconds}, first_token_seconds FROM records "
        f"WHERE id >= ? AND id < ? AND first_token_seconds IS NOT NULL{where}",
        (of.first, of.end, *parameters),
    )
    for at, seconds in rows:
        found.setdefault(float(at * bin_seconds), []).append(seconds)
    return found


def _spread(times: Sequence[float]) -> dict[str, float | None]:
    if not times:
        return {"first_token_p50": None, "first_token_p95": None}
    ordered = sorted(times)
    return {
        "first_token_p50": ordered[(len(ordered) - 1) // 2],
        "first_token_p95": ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)],
    }


def _by_bin(records: Records, window: Window, of: Filter, split: str, names: Mapping[int, str]) -> list[dict[str, Any]]:
    """Requests of some values of a split, and their lost tokens, by bin."""
    facts, parameters = facts_of(records, of, split, window.bin_seconds * NANOSECONDS)
    rows = records.rows(
        f"SELECT start / {window.bin_seconds * NANOSECONDS}, value, sum(requests), sum(lost_tokens) FROM ({facts}) "
        "GROUP BY 1, 2 ORDER BY 1, 2",
        parameters,
    )
    found: dict[tuple[float, str], list[int]] = {}
    for at, value, requests, lost in rows:
        if value in names:
            sums = found.setdefault((float(at * window.bin_seconds), names[value]), [0, 0])
            sums[0] += requests
            sums[1] += lost
    return [
        {"start": start, "name": name, "requests": requests, "lost_tokens": lost}
        for (start, name), (requests, lost) in found.items()
    ]


def _blocks(evicted: Iterable[Eviction], window: Window, tenant: str | None) -> list[dict[str, Any]]:
    """Blocks that left the engine's cache, and their tokens, by bin; of a tenant those that it used."""
    found: dict[float, list[int]] = {}
    for one in evicted:
        if one.seconds < window.since or not _is_of(one, tenant):
            continue
        sums = found.setdefault(one.seconds // window.bin_seconds * window.bin_seconds, [0, 0])
        sums[0] += 1
        sums[1] += one.tokens
    return [{"start": start, "blocks": blocks, "tokens": tokens} for start, (blocks, tokens) in sorted(found.items())]


def _is_of(one: Eviction, tenant: str | None) -> bool:
    return tenant is None or any(owner.tenant == tenant for owner in one.owners)


def _mark(record: TurnRecord) -> dict[str, Any]:
    return {
        "seconds": record.seconds,
        "by": "policy" if record.image_eviction else "engine",
        "tenant": record.tenant,
        "conversation": record.conversation,
        "turn": record.number,
        "image_id": record.evicted_image,
        "lost_tokens": record.lost_tokens,
    }


# A cause and its actor stand as one number.
_FIRST = (CAUSES.index("engine_eviction") + 1) * CAUSE_UNIT
_ENGINE_EVICTIONS = dict.fromkeys(range(_FIRST, _FIRST + CAUSE_UNIT), "turns")
