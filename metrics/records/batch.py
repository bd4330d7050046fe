"""A batch of records into the file: each table in few statements, each row of sums once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from context.store.turn_file import insert
from metrics.records.record import TurnRecord
from metrics.records.rows import counts_of, row_of, size_of
from metrics.records.schema import COLUMNS, CONVERSATION_SUMS, HOUR, KEYS, NAMED, SUMS
from metrics.records.sums import Row, figures_of, of_conversation, rollups_of, values_of

# Numbers of tenant and name, model, policy.
_Conversation = tuple[int, str, int, int]


def write_batch(connection: sqlite3.Connection, records: Sequence[TurnRecord]) -> None:
    """Keep records, within a transaction. One whose id is there already is there already."""
    new = _new(connection, records)
    if not new:
        return
    names = _names(connection, new)
    keys = [_key(one, names) for one in new]
    figures = [figures_of(one) for one in new]
    conversations = _conversations(connection, new, keys, figures)
    rows = [
        row_of(one, tenant, conversations.get(key), model, policy)
        for one, key in zip(new, keys, strict=True)
        for tenant, _, model, policy in (key,)
    ]
    insert(connection, _INTO_RECORDS, rows)
    hours, days = rollups_of(_grouped(new, keys, figures))
    insert(connection, _INTO_ROLLUPS.format("rollups"), hours, _ADD_ROLLUPS)
    insert(connection, _INTO_ROLLUPS.format("rollups_by_day"), days, _ADD_ROLLUPS)
    insert(connection, _INTO_IMAGES, _images(new, keys, conversations), _ADD_IMAGES)
    connection.execute("UPDATE records_schema SET bytes = bytes + ?", (sum(map(size_of, new)),))


def _new(connection: sqlite3.Connection, records: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Those that are not there yet. Of two with one id the second is none."""
    by_id: dict[int, TurnRecord] = {}
    for one in records:
        by_id.setdefault(one.id, one)
    query = "SELECT json_group_array(id) FROM records WHERE id IN (SELECT value FROM json_each(?))"
    for id in _listed(connection, query, list(by_id)):
        del by_id[id]
    return list(by_id.values())


def _names(connection: sqlite3.Connection, records: Sequence[TurnRecord]) -> dict[str, int]:
    """The numbers of their names; they are given ones where they have none."""
    wanted = {name for one in records for name in (one.tenant, one.model, one.policy)}
    # Bound one by one: SQLite's JSON ends a text at its first NUL, and a client may name a model so.
    marks = ", ".join("?" * len(wanted))
    query = f"SELECT json_group_array(json_array(name, id)) FROM record_names WHERE name IN ({marks})"
    known = dict(from_json(connection.execute(query, sorted(wanted)).fetchone()[0]))
    if len(known) < len(wanted):
        insert(connection, "INSERT INTO record_names (name)", [(name,) for name in sorted(wanted - known.keys())])
        known = dict(from_json(connection.execute(query, sorted(wanted)).fetchone()[0]))
    return known


def _key(record: TurnRecord, names: dict[str, int]) -> _Conversation:
    return names[record.tenant], record.conversation, names[record.model], names[record.policy]


def _conversations(
    connection: sqlite3.Connection,
    records: Sequence[TurnRecord],
    keys: Sequence[_Conversation],
    figures: Sequence[Row],
) -> dict[_Conversation, int]:
    """Add to the sums of their conversations, and give the numbers of these; a refused request has none."""
    of: dict[_Conversation, list[int]] = {}
    for at, key in enumerate(keys):
        if key[1]:
            of.setdefault(key, []).append(at)
    if not of:
        return {}
    query = (
        "SELECT json_group_array(json_array(c.tenant, c.name, c.model, c.policy, c.id)) FROM json_each(?) j "
        "JOIN record_conversations c ON c.tenant = j.value ->> 0 AND c.name = j.value ->> 1"
    )
    wanted = [(tenant, name) for tenant, name in dict.fromkeys((key[0], key[1]) for key in of)]
    numbers: dict[_Conversation, int] = {tuple(key): id for *key, id in _listed(connection, query, wanted)}  # pyright: ignore[reportAssignmentType]
    last: int = connection.execute("SELECT ifnull(max(id), 0) FROM record_conversations").fetchone()[0]
    rows: list[Row] = []
    for key, places in of.items():
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = last = last + 1
        ids = [records[at].id for at in places]
        turns = max(records[at].number for at in places)
        rows.append((number, *key, min(ids), max(ids), turns, *of_conversation([figures[at] for at in places])))
    insert(connection, _INTO_CONVERSATIONS, rows, _ADD_CONVERSATIONS)
    return numbers


def _grouped(
    records: Sequence[TurnRecord], keys: Sequence[_Conversation], figures: Sequence[Row]
) -> Iterable[tuple[Row, list[Row], list[Row]]]:
    """Values and figures by hour and names."""
    groups: dict[Row, tuple[list[Row], list[Row]]] = {}
    for one, (tenant, _, model, policy), figure in zip(records, keys, figures, strict=True):
        key = (one.id // HOUR, tenant, model, policy)
        group = groups.get(key)
        if group is None:
            group = groups[key] = ([], [])
        group[0].append(values_of(one))
        group[1].append(figure)
    return ((key, values, summands) for key, (values, summands) in groups.items())


def _images(
    records: Sequence[TurnRecord], keys: Sequence[_Conversation], conversations: dict[_Conversation, int]
) -> list[Row]:
    """A row for each image of a conversation."""
    found: dict[tuple[int, str, int], list[int]] = {}
    for one, key in zip(records, keys, strict=True):
        number = conversations.get(key)
        if number is None or not one.image_ids:
            continue
        for image, count in zip(one.image_ids, counts_of(one), strict=True):
            sums = found.setdefault((key[0], image, number), [one.id, one.id, 0, 0])
            sums[0], sums[1] = min(sums[0], one.id), max(sums[1], one.id)
            sums[2] += 1
            sums[3] += count
    return [(tenant, bytes.fromhex(image), number, *sums) for (tenant, image, number), sums in found.items()]


def _listed(connection: sqlite3.Connection, query: str, wanted: Sequence[Any]) -> list[Any]:
    """What a query gives as one text. Each row that is fetched gives the interpreter's lock away, and waits for it."""
    return from_json(connection.execute(query, (to_json(wanted).decode(),)).fetchone()[0])


def _added(names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {name} + excluded.{name}" for name in names)


_SPAN = "first_record = min(first_record, excluded.first_record), last_record = max(last_record, excluded.last_record)"
_INTO_RECORDS = f"INSERT INTO records (id, {', '.join(COLUMNS)})"
_INTO_ROLLUPS = f"INSERT INTO {{}} ({', '.join([*KEYS, *SUMS])})"
_ADD_ROLLUPS = f"ON CONFLICT ({', '.join(KEYS)}) DO UPDATE SET {_added(SUMS)}"
_INTO_CONVERSATIONS = (
    "INSERT INTO record_conversations (id, tenant, name, model, policy, first_record, last_record, turns, "
    f"{', '.join(CONVERSATION_SUMS)})"
)
_ADD_CONVERSATIONS = (
    f"ON CONFLICT (tenant, name, model, policy) DO UPDATE SET {_SPAN}, turns = max(turns, excluded.turns), "
    f"{_added(CONVERSATION_SUMS)}"
)
_INTO_IMAGES = "INSERT INTO record_images (tenant, image, conversation, first_record, last_record, turns, occurrences)"
_ADD_IMAGES = f"ON CONFLICT (tenant, image, conversation) DO UPDATE SET {_SPAN}, {_added(('turns', 'occurrences'))}"
assert NAMED == ("tenant", "model", "policy"), "as the keys here"
