"""What reports and dashboards ask of the records. Every question takes a `Filter`; a tenant sees its own alone.

Sums come from the rollups wherever a whole hour or day is asked for, and from the records at the edges, so that the
time that an answer takes depends little on how many records there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import get_args

from context.plan import Actor, Cause
from metrics.records.buckets import BUCKETS, UNKNOWN
from metrics.records.facts import ALL_SUMS, facts_of, summed, sums_by, totals_of
from metrics.records.figures import (
    Bin,
    CauseTotals,
    ConversationTotals,
    Evicted,
    Group,
    Heap,
    ImageTotals,
    ShareBin,
    Split,
    Totals,
)
from metrics.records.reader import END, Filter, Records, names_where, open_records
from metrics.records.record import TurnRecord
from metrics.records.schema import (
    ACTORS,
    CAUSE_UNIT,
    CAUSES,
    CONVERSATION_SUMS,
    EVICTIONS,
    NAMED,
    NANOSECONDS,
    OUTCOMES,
    SHARES,
)

__all__ = ["Filter", "Records", "open_records"]

SPLITS: tuple[Split, ...] = get_args(Split)
_WORDS = {
    "multi_turn": ("single turn", "multi turn"),
    "multimodal": ("text", "multimodal"),
    "eviction": ("no eviction", "eviction"),
    "summary": ("no summary", "summary"),
    "outcome": OUTCOMES,
}
# A conversation's sums are put into so many heaps for a comparison.
_HEAPS = 256
_MOST_ROWS = 1000
_ROWS_OF_IMAGE = 4
_MOST_EVICTED = 10_000
_ALL = Filter()


def totals(records: Records, of: Filter = _ALL) -> Totals:
    """Sums over all."""
    rows = sums_by(records, of, ())
    return rows[0][1] if rows else Totals()


def by(records: Records, splits: Sequence[Split], of: Filter = _ALL) -> list[Group]:
    """Sums for each combination of the splits' values that there is, in the order of the values."""
    words = {split: _words(records, split) for split in splits}
    found: list[tuple[list[tuple[int, str]], Group]] = []
    for key, sums in sums_by(records, of, splits):
        values = tuple(words[split](value) for split, value in zip(splits, key, strict=True))
        lows = tuple(value if split in BUCKETS else None for split, value in zip(splits, key, strict=True))
        # Names by their letters, all others by their values; what is unknown stands last.
        order = [
            (0 if split in NAMED else value if value != UNKNOWN else END, word)
            for split, value, word in zip(splits, key, values, strict=True)
        ]
        found.append((order, Group(values, lows, sums)))
    return [group for _, group in sorted(found, key=lambda one: one[0])]


def over_time(records: Records, bin_seconds: int, of: Filter = _ALL) -> list[Bin]:
    """Sums over time; bins without turns are left out.

    Args:
        bin_seconds: length of a bin; bins begin at its multiples since 1970. Below an hour the records themselves are
            read, so that it should be asked of some hours only.
    """
    bin_seconds = max(1, bin_seconds)
    facts, parameters = facts_of(records, of, "all", bin_seconds * NANOSECONDS)
    rows = records.rows(
        f"SELECT start / {bin_seconds * NANOSECONDS}, {summed(ALL_SUMS)} FROM ({facts}) GROUP BY 1 ORDER BY 1",
        parameters,
    )
    return [Bin(float(at * bin_seconds), totals_of(ALL_SUMS, sums)) for at, *sums in rows]


def causes(records: Records, of: Filter = _ALL) -> list[CauseTotals]:
    """Causes of tokens that were not read, those of the most lost tokens first."""
    facts, parameters = facts_of(records, of, "cause")
    rows = records.rows(
        f"SELECT value, sum(requests), sum(lost_tokens) FROM ({facts}) WHERE value >= {CAUSE_UNIT} "
        "GROUP BY 1 ORDER BY 3 DESC, 2 DESC",
        parameters,
    )
    return [CauseTotals(*_cause(value), requests, lost) for value, requests, lost in rows]


def by_turn(records: Records, of: Filter = _ALL) -> list[Group]:
    """Sums by the number of the turn in its conversation."""
    return by(records, ["turn"], of)


def read_shares(records: Records, of: Filter = _ALL) -> list[ShareBin]:
    """How many requests read which share of their prompt."""
    facts, parameters = facts_of(records, of, "read_share")
    counts = dict(records.rows(f"SELECT value, sum(requests) FROM ({facts}) GROUP BY 1", parameters))
    return [ShareBin(max(0, at - 1) / 10, at / 10, counts.get(at, 0)) for at in range(SHARES)]


def conversations(
    records: Records, of: Filter = _ALL, limit: int = 50, before: int | None = None, named: str = ""
) -> list[ConversationTotals]:
    """The conversations whose latest turn lies in the filter's time, the latest first, with the sums over their life.

    Args:
        records, of: as everywhere.
        limit: how many.
        before: those whose latest turn came before this record; `last_record` of the last one gives the next page.
        named: those in whose name this stands.
    """
    end = of.end if before is None else min(of.end, before)
    where, parameters = names_where(of, "c.")
    newer, again = names_where(of, "n.")
    if named:
        where, parameters = f"{where} AND instr(c.name, ?) > 0", [*parameters, named]
    # The latest by the index, and only then their other rows: there is one for each model and policy.
    chosen = (
        "SELECT tenant, name FROM record_conversations c WHERE c.last_record >= ? AND c.last_record < ?"
        f"{where} AND NOT EXISTS (SELECT 1 FROM record_conversations n WHERE n.tenant = c.tenant AND n.name = c.name "
        f"AND n.last_record > c.last_record{newer}) ORDER BY c.last_record DESC LIMIT ?"
    )
    sums = ", ".join(f"sum(a.{name})" for name in CONVERSATION_SUMS)
    rows = records.rows(
        "SELECT t.name, a.name, json_group_array(DISTINCT m.name), json_group_array(DISTINCT p.name), "
        f"min(a.first_record), max(a.last_record), max(a.turns), {sums} FROM ({chosen}) l "
        "JOIN record_conversations a ON a.tenant = l.tenant AND a.name = l.name "
        "JOIN record_names t ON t.id = a.tenant JOIN record_names m ON m.id = a.model "
        "JOIN record_names p ON p.id = a.policy GROUP BY a.tenant, a.name ORDER BY max(a.last_record) DESC",
        (of.first, end, *parameters, *again, _bounded(limit)),
    )
    return [
        ConversationTotals(
            tenant,
            name,
            tuple(json.loads(models)),
            tuple(json.loads(policies)),
            first / NANOSECONDS,
            last / NANOSECONDS,
            last,
            turns,
            totals_of(CONVERSATION_SUMS, found),
        )
        for tenant, name, models, policies, first, last, turns, *found in rows
    ]


def conversation_turns(records: Records, tenant: str, conversation: str, limit: int = _MOST_ROWS) -> list[TurnRecord]:
    """The latest turns of one conversation, in the order in which they came."""
    found = records.records(
        "WHERE r.conversation IN (SELECT id FROM record_conversations WHERE name = ? AND tenant = "
        "(SELECT id FROM record_names WHERE name = ?)) ORDER BY r.id DESC LIMIT ?",
        (conversation, tenant, _bounded(limit)),
    )
    return found[::-1]


def turns_of_image(records: Records, tenant: str, image_id: str, limit: int = 50) -> list[TurnRecord]:
    """The latest turns in which an image was sent, the latest first."""
    return records.records(
        "WHERE r.conversation IN (SELECT conversation FROM record_images WHERE image = ?1 AND tenant = "
        "(SELECT id FROM record_names WHERE name = ?2)) AND instr(r.image_ids, ?1) > 0 ORDER BY r.id DESC LIMIT ?3",
        (bytes.fromhex(image_id), tenant, _bounded(limit)),
    )


def latest(records: Records, of: Filter = _ALL, limit: int = 50) -> list[TurnRecord]:
    """The latest turns, the latest first."""
    where, parameters = names_where(of, "r.")
    rest = f"WHERE r.id >= ? AND r.id < ?{where} ORDER BY r.id DESC LIMIT ?"
    return records.records(rest, (of.first, of.end, *parameters, _bounded(limit)))


def evictions(records: Records, of: Filter = _ALL, limit: int = 200) -> list[TurnRecord]:
    """The latest turns in which the policy evicted images, or that paid for blocks that the engine had evicted; the
    latest first."""
    where, parameters = names_where(of, "")
    chosen = f"SELECT id FROM records WHERE {EVICTIONS} AND id >= ? AND id < ?{where} ORDER BY id DESC LIMIT ?"
    rest = f"WHERE r.id IN ({chosen}) ORDER BY r.id DESC"
    return records.records(rest, (of.first, of.end, *parameters, _bounded(limit)))


def evicted(records: Records, of: Filter = _ALL, limit: int = 20) -> list[Evicted]:
    """Whose KV blocks the engine evicted that a turn then had to compute again, and which turn: by conversation and
    image, those of the most lost tokens first. Of the latest ten thousand such turns."""
    where, parameters = names_where(of, "r.")
    cause = CAUSES.index("engine_eviction")
    # Of the bare columns beside max() SQLite takes those of the latest turn.
    chosen = (
        "SELECT tenant, whose, image, count(*) turns, sum(lost_tokens) lost, max(id) last, payer, number FROM ("
        "SELECT r.id, r.tenant, r.evicted_conversation whose, r.evicted_image image, r.lost_tokens, "
        f"r.conversation payer, r.number FROM records r INDEXED BY records_with_eviction WHERE {EVICTIONS} "
        f"AND r.cause = {cause} AND r.id >= ? AND r.id < ?{where} ORDER BY r.id DESC LIMIT {_MOST_EVICTED}) "
        "GROUP BY 1, 2, 3 ORDER BY lost DESC LIMIT ?"
    )
    rows = records.rows(
        "SELECT t.name, e.whose, e.image, e.turns, ifnull(e.lost, 0), ifnull(c.name, ''), e.number, e.last FROM "
        f"({chosen}) e JOIN record_names t ON t.id = e.tenant LEFT JOIN record_conversations c ON c.id = e.payer "
        "ORDER BY e.lost DESC",
        (of.first, of.end, *parameters, _bounded(limit)),
    )
    return [
        Evicted(tenant, whose, None if image is None else image.hex(), turns, lost, payer, number, last / NANOSECONDS)
        for tenant, whose, image, turns, lost, payer, number, last in rows
    ]


def images(records: Records, of: Filter = _ALL, limit: int = 100) -> list[ImageTotals]:
    """The images that were sent last, the latest first, with the sums over their life. Models and policies are not
    heeded."""
    where, parameters = names_where(Filter(tenant=of.tenant), "i.")
    # Latest first by the index; an image has a row for each of its conversations.
    chosen = (
        "SELECT DISTINCT tenant, image FROM (SELECT tenant, image FROM record_images i "
        f"WHERE i.last_record >= ? AND i.last_record < ?{where} ORDER BY i.last_record DESC LIMIT ?)"
    )
    rows = records.rows(
        "SELECT t.name, image, sum(turns), sum(occurrences), count(*), min(first_record), max(last_record) FROM "
        f"({chosen}) JOIN record_images USING (tenant, image) JOIN record_names t ON t.id = tenant "
        "GROUP BY tenant, image ORDER BY max(last_record) DESC LIMIT ?",
        (of.first, of.end, *parameters, _ROWS_OF_IMAGE * _bounded(limit), _bounded(limit)),
    )
    return [
        ImageTotals(tenant, image.hex(), turns, occurrences, found, first / NANOSECONDS, last / NANOSECONDS)
        for tenant, image, turns, occurrences, found, first, last in rows
    ]


def heaps_of_conversations(records: Records, of: Filter = _ALL) -> list[Heap]:
    """What the conversations cost under each policy whose latest turn lies in the filter's time, in heaps of whole
    conversations: of up to some hundred conversations each is a heap, more share them. For comparisons between
    policies: conversations are what differs by chance, not turns."""
    where, parameters = names_where(of, "c.")
    rows = records.rows(
        "SELECT p.name, count(*), sum(requests), sum(prompt_tokens), sum(read_tokens), sum(lost_tokens), sum(priced), "
        f"sum(cost), sum(loaded_tokens) FROM record_conversations c JOIN record_names p ON p.id = c.policy "
        f"WHERE c.last_record >= ? AND c.last_record < ?{where} AND c.reported > 0 GROUP BY c.policy, c.id % {_HEAPS}",
        (of.first, of.end, *parameters),
    )
    return [Heap(*row) for row in rows]


def names(records: Records, kind: Split) -> list[str]:
    """The tenants, models or policies that there are records of."""
    assert kind in NAMED, "the others have no names"
    rows = records.rows(
        f"SELECT name FROM record_names WHERE id IN (SELECT {kind} FROM rollups_by_day WHERE split = 0) ORDER BY 1"
    )
    return [name for (name,) in rows]


def span(records: Records) -> tuple[float, float] | None:
    """When the first and the last of the records came, in seconds since 1970; None without any."""
    first, last = records.rows("SELECT (SELECT min(id) FROM records), (SELECT max(id) FROM records)")[0]
    return None if first is None else (first / NANOSECONDS, last / NANOSECONDS)


def _bounded(limit: int) -> int:
    return max(0, min(limit, 10 * _MOST_ROWS))


def _cause(value: int) -> tuple[Cause, Actor | None]:
    cause, actor = divmod(value, CAUSE_UNIT)
    return CAUSES[cause - 1], ACTORS[actor - 1] if actor else None


def _words(records: Records, split: Split) -> Callable[[int], str]:
    """A split's values as words for people."""
    if split in NAMED:
        known: dict[int, str] = dict(records.rows("SELECT id, name FROM record_names"))
        return lambda value: known.get(value, "?")
    if split in BUCKETS:
        return BUCKETS[split].label
    return _WORDS[split].__getitem__
