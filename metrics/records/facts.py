"""Where the sums of a time stand: by day, by hour, or in the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrics.records.figures import Split, Totals
from metrics.records.reader import END, Filter, Records, names_where
from metrics.records.schema import DAY, HOUR, NAMED, NUMBERS, SUMS, VALUES

# The names of sums that `Totals` calls otherwise.
_RENAMED = {
    "visual_token_sum": "visual_tokens",
    "sent_images": "images",
    "first_token_seconds": "first_token_seconds_sum",
    "total_seconds": "total_seconds_sum",
    "cost": "cost_sum",
}
ALL_SUMS = tuple(SUMS)


def sums_by(records: Records, of: Filter, splits: Sequence[Split]) -> list[tuple[tuple[int, ...], Totals]]:
    """Sums by the values of the splits, in their order."""
    kept = [split for split in splits if split not in NAMED]
    places = dict.fromkeys(splits, "value") | {name: name for name in NAMED}
    if len(kept) > 1:
        # No sums are kept by two of them at once.
        facts, parameters = _single(of, kept, of.first, of.end)
        places |= {split: f"v_{split}" for split in kept}
    else:
        facts, parameters = facts_of(records, of, kept[0] if kept else "all")
    groups = ", ".join(places[split] for split in splits)
    select = f"SELECT {groups + ', ' if splits else ''}{summed(ALL_SUMS)} FROM ({facts})"
    rows = records.rows(select + (f" GROUP BY {groups}" if splits else ""), parameters)
    at = len(splits)
    return [(row[:at], totals_of(ALL_SUMS, row[at:])) for row in rows if row[at] is not None]


def summed(columns: Sequence[str]) -> str:
    return ", ".join(f"sum({name})" for name in columns)


def totals_of(columns: Sequence[str], sums: Sequence[Any]) -> Totals:
    return Totals(**{_RENAMED.get(name, name): value for name, value in zip(columns, sums, strict=True)})


def facts_of(records: Records, of: Filter, split: str, bins: int = 0) -> tuple[str, list[Any]]:
    """Rows with the sums of a filter's turns: `start`, `value` of the split, tenant, model, policy and `SUMS`. From the
    sums by day and by hour, and from the records where neither fits.

    Args:
        bins: when the rows are put into bins, the length of one; sums of longer times are then not used.
    """
    first, end = of.first, of.end
    oldest, hours_from = records.rows("SELECT (SELECT min(id) FROM records), hours_from FROM records_schema")[0]
    hours_from = 0 if split == "all" else hours_from * HOUR
    if first < (END if oldest is None else oldest):
        # What was deleted to save space is still in the sums: there the edge is rounded outwards.
        first = first // DAY * DAY if first < hours_from else first // HOUR * HOUR
    parts: list[str] = []
    parameters: list[Any] = []
    where, names = names_where(of, "r.")
    columns = ", ".join(f"r.{name}" for name in ("value", *NAMED, *SUMS))
    for table, unit, low, high in _pieces(first, end, hours_from, bins):
        if table == "records":
            query, given = _single(of, [split], low, high)
        else:
            query = (
                f"SELECT r.period * {unit} start, {columns} FROM {table} r "
                f"WHERE r.split = {NUMBERS[split]} AND r.period >= ? AND r.period < ?{where}"
            )
            given = [low // unit, _up(high, unit) // unit, *names]
        parts.append(query)
        parameters += given
    if not parts:
        return _single(of, [split], 0, 0)
    return " UNION ALL ".join(parts), parameters


def _single(of: Filter, splits: Sequence[str], first: int, end: int) -> tuple[str, list[Any]]:
    """Rows of single records; each split's value as `v_` with its name, the first one's as `value`, too."""
    where, names = names_where(of, "r.")
    values = ", ".join([f"{VALUES[splits[0]]} value", *(f"{VALUES[split]} v_{split}" for split in splits[1:])])
    if len(splits) > 1:
        values += f", {VALUES[splits[0]]} v_{splits[0]}"
    sums = ", ".join(f"{expression} {name}" for name, expression in SUMS.items())
    query = (
        f"SELECT r.id start, {values}, r.tenant, r.model, r.policy, {sums} FROM records r "
        f"WHERE r.id >= ? AND r.id < ?{where}"
    )
    return query, [first, end, *names]


def _pieces(first: int, end: int, hours_from: int, bins: int) -> list[tuple[str, int, int, int]]:
    """Which table has which part of a time: table, its unit, from, until."""
    found: list[tuple[str, int, int, int]] = []

    def cover(units: Sequence[tuple[str, int]], low: int, high: int) -> None:
        if low >= high:
            return
        table, unit = units[0]
        if unit == 1:
            found.append((table, unit, low, high))
            return
        floor = _up(max(low, hours_from if table == "rollups" else 0), unit)
        from_, until = floor, high if high == END else high // unit * unit
        if from_ >= until or (bins and bins % unit):
            cover(units[1:], low, high)
            return
        cover(units[1:], low, from_)
        found.append((table, unit, from_, until))
        cover(units[1:], until, high)

    cover((("rollups_by_day", DAY), ("rollups", HOUR), ("records", 1)), first, end)
    return found


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
