"""What records add to the sums, made in memory: so each batch writes each row of sums once.

`values_of` and `figures_of` say of a record what `schema.VALUES` and `schema.SUMS` say of its row in SQL; a test holds
them together. In SQL this was two thirds of all that writing costs: for each split all figures were sorted again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import add
from typing import Any

from metrics.records.buckets import BUCKETS, TIMES, UNKNOWN
from metrics.records.record import TurnRecord
from metrics.records.rows import CODES
from metrics.records.schema import CAUSE_UNIT, CONVERSATION_SUMS, DAY, HOUR, SUMS

Row = tuple[Any, ...]

_HOURS = DAY // HOUR
_TURN, _LENGTH, _IMAGES, _VISUAL = (
    BUCKETS[name].low_of for name in ("turn", "prompt_length", "images", "visual_tokens")
)
_SECONDS = [low / 1000 for low in TIMES.lows]
_CAUSE, _ACTOR, _OUTCOME = CODES["cause"], CODES["actor"], CODES["outcome"]
_OF_CONVERSATION = tuple(list(SUMS).index(name) for name in CONVERSATION_SUMS)


def values_of(record: TurnRecord) -> Row:
    """Its value in each split, in the order of `schema.VALUES`."""
    prompt, read = record.prompt_tokens, record.read_tokens
    cause = 0 if record.cause is None else CAUSE_UNIT * (_CAUSE[record.cause] + 1)
    first, total = record.first_token_seconds, record.total_seconds
    return (
        0,
        cause if record.actor is None else cause + _ACTOR[record.actor] + 1,
        _OUTCOME[record.outcome],
        int(record.number > 1),
        int(not record.text_only),
        int(record.image_eviction),
        int(record.summary),
        _TURN(record.number),
        UNKNOWN if prompt is None else _LENGTH(prompt),
        _IMAGES(record.images),
        UNKNOWN if record.visual_tokens is None else _VISUAL(record.visual_tokens),
        UNKNOWN if prompt is None or read is None else 1 + min(9, read * 10 // (prompt or 1)) if read else 0,
        UNKNOWN if first is None else TIMES.lows[max(0, bisect_right(_SECONDS, first) - 1)],
        UNKNOWN if total is None else TIMES.lows[max(0, bisect_right(_SECONDS, total) - 1)],
    )


def figures_of(record: TurnRecord) -> Row:
    """What it adds to each sum, in the order of `schema.SUMS`."""
    prompt, read, lost = record.prompt_tokens, record.read_tokens, record.lost_tokens or 0
    first, total, cost = record.first_token_seconds, record.total_seconds, record.cost
    if prompt is None or read is None:
        unknown = read is None
        tokens = (0, int(unknown and record.outcome == "completed"), (prompt or 0) if unknown else 0, 0, 0, 0, 0, 0, 0)
    else:
        write = record.write_tokens or 0
        derived, loaded = write if record.write_derived else 0, record.loaded_tokens or 0
        tokens = (1, 0, 0, prompt, read, write, record.uncached_tokens or 0, derived, loaded)
    return (
        1,
        *tokens,
        record.visual_tokens or 0,
        record.completion_tokens or 0,
        record.expected_read or 0,
        lost,
        int(lost > 0),
        record.images,
        record.new_images,
        record.encoder_runs or 0,
        record.encoder_hits or 0,
        0 if first is None else 1,
        first or 0.0,
        0 if total is None else 1,
        total or 0.0,
        0 if cost is None else 1,
        cost or 0.0,
    )


def rollups_of(groups: Iterable[tuple[Row, Sequence[Row], Sequence[Row]]]) -> tuple[list[Row], list[Row]]:
    """Rows for the sums by hour and by day (`schema.KEYS`, then `SUMS`), each key once.

    Args:
        groups: hour and numbers of the names, then `values_of` and `figures_of` of the records of these.
    """
    hours: list[Row] = []
    days: dict[Row, Sequence[Any]] = {}
    for (hour, *names), values, figures in groups:
        for split, value, sums in _by_split(values, figures):
            hours.append((split, hour, value, *names, *sums))
            key = (split, hour // _HOURS, value, *names)
            of_day = days.get(key)
            days[key] = sums if of_day is None else list(map(add, of_day, sums))
    return hours, [(*key, *sums) for key, sums in days.items()]


def of_conversation(figures: Sequence[Row]) -> list[Any]:
    """The sums that a conversation has (`schema.CONVERSATION_SUMS`)."""
    sums = summed(figures)
    return [sums[at] for at in _OF_CONVERSATION]


def summed(figures: Sequence[Row]) -> Sequence[Any]:
    """Sums by column."""
    return figures[0] if len(figures) == 1 else [sum(column) for column in zip(*figures, strict=True)]


def _by_split(values: Sequence[Row], figures: Sequence[Row]) -> list[tuple[int, int, Sequence[Any]]]:
    """Number of the split, value, sums."""
    whole = summed(figures)
    found: list[tuple[int, int, Sequence[Any]]] = []
    for split, column in enumerate(zip(*values, strict=True)):
        if column.count(column[0]) == len(column):
            # Mostly all of them are alike in this.
            found.append((split, column[0], whole))
            continue
        apart: dict[int, list[Row]] = {}
        for value, one in zip(column, figures, strict=True):
            some = apart.get(value)
            if some is None:
                apart[value] = [one]
            else:
                some.append(one)
        found += [(split, value, summed(some)) for value, some in apart.items()]
    return found
