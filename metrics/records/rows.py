"""Records as rows, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from metrics.records.record import TurnRecord
from metrics.records.schema import ACTORS, CAUSES, COLUMNS, NAMED, OUTCOMES

_IMAGE_BYTES = 32
_MOST_COUNT = 255
# The numbers that stand for words.
CODES: dict[str, dict[Any, int]] = {
    "outcome": {word: at for at, word in enumerate(OUTCOMES)},
    "cause": {word: at for at, word in enumerate(CAUSES)},
    "actor": {word: at for at, word in enumerate(ACTORS)},
}
_OUTCOME, _CAUSE, _ACTOR = CODES["outcome"], CODES["cause"], CODES["actor"]
# What stands in a row as it is, in the order of `COLUMNS`.
_COUNTS = attrgetter(
    *("images", "unique_images", "new_images", "encoder_runs", "encoder_hits", "visual_tokens"),
    *("prompt_tokens", "completion_tokens", "read_tokens", "write_tokens", "uncached_tokens"),
)
_LOSS = attrgetter(*("loaded_tokens", "expected_read", "lost_tokens", "break_message", "break_part", "break_token"))
_TIMES = attrgetter("epoch", "first_token_seconds", "total_seconds", "cost")
_BOOLEANS = ("stream", "text_only", "write_derived", "image_eviction", "summary", "unseen_images")
# About what a record takes with its part of the sums, in bytes; and more for each of its images.
_RECORD_BYTES = 320
_RECORD_IMAGE_BYTES = 45


def row_of(record: TurnRecord, tenant: int, conversation: int | None, model: int, policy: int) -> tuple[Any, ...]:
    """A record as a row of its table: its id, then `COLUMNS`.

    Args:
        record: what is kept.
        tenant, model, policy: the numbers of their names.
        conversation: the number of its row; None where it has none.
    """
    cause, actor, evicted = record.cause, record.actor, record.evicted_image
    images = record.image_ids
    return (
        record.id,
        record.request_id,
        tenant,
        conversation,
        record.number,
        model,
        policy,
        record.policy_version,
        int(record.stream),
        _OUTCOME[record.outcome],
        int(record.text_only),
        *_COUNTS(record),
        int(record.write_derived),
        *_LOSS(record),
        None if cause is None else _CAUSE[cause],
        None if actor is None else _ACTOR[actor],
        None if evicted is None else bytes.fromhex(evicted),
        int(record.image_eviction),
        int(record.summary),
        *_TIMES(record),
        bytes.fromhex("".join(images)) if images else b"",
        bytes(min(count, _MOST_COUNT) for count in counts_of(record)) if images else b"",
        record.evicted_conversation,
        record.evicted_tokens,
        int(record.unseen_images),
        record.reuse,
        None if record.reuse_by is None else _ACTOR[record.reuse_by],
    )


def size_of(record: TurnRecord) -> int:
    """About what it takes in the file, in bytes."""
    return _RECORD_BYTES + _RECORD_IMAGE_BYTES * len(record.image_ids)


def size_sql() -> str:
    """`size_of` as an expression over the table."""
    return f"({_RECORD_BYTES} + {_RECORD_IMAGE_BYTES} * length(image_counts))"


# Reads what `record_of` takes; a condition and an order come behind it.
SELECT = (
    "SELECT r.id, "
    + ", ".join(
        "ifnull(c.name, '')" if name == "conversation" else f"{name}_name.name" if name in NAMED else f"r.{name}"
        for name in COLUMNS
    )
    + " FROM records r "
    + " ".join(f"JOIN record_names {name}_name ON {name}_name.id = r.{name}" for name in NAMED)
    + " LEFT JOIN record_conversations c ON c.id = r.conversation "
)


def record_of(row: Sequence[Any]) -> TurnRecord:
    """A record from a row of `SELECT`."""
    values = dict(zip(COLUMNS, row[1:], strict=True))
    for name in _BOOLEANS:
        values[name] = bool(values[name])
    values["outcome"] = OUTCOMES[values["outcome"]]
    values["cause"] = None if values["cause"] is None else CAUSES[values["cause"]]
    values["actor"] = None if values["actor"] is None else ACTORS[values["actor"]]
    values["reuse_by"] = None if values["reuse_by"] is None else ACTORS[values["reuse_by"]]
    values["evicted_image"] = None if values["evicted_image"] is None else values["evicted_image"].hex()
    images: bytes = values["image_ids"]
    values["image_ids"] = tuple(images[at : at + _IMAGE_BYTES].hex() for at in range(0, len(images), _IMAGE_BYTES))
    values["image_counts"] = tuple(values["image_counts"])
    return TurnRecord(id=row[0], **values)


def read(connection: sqlite3.Connection, rest: str, parameters: Sequence[Any]) -> list[TurnRecord]:
    """Records by what comes behind `SELECT`."""
    return [record_of(row) for row in connection.execute(SELECT + rest, tuple(parameters))]


def counts_of(record: TurnRecord) -> Sequence[int]:
    """How often each unique image was sent; once, where that was not counted."""
    return record.image_counts or (1,) * len(record.image_ids)
