"""Records as rows, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from metrics.records.record import TurnRecord
from metrics.records.schema import ACTORS, CAUSES, COLUMNS, NAMED, OUTCOMES

_IMAGE_BYTES = 32
_MOST_COUNT = 255
_CODES: dict[str, dict[Any, int]] = {
    "outcome": {word: at for at, word in enumerate(OUTCOMES)},
    "cause": {word: at for at, word in enumerate(CAUSES)},
    "actor": {word: at for at, word in enumerate(ACTORS)},
}
_BOOLEANS = ("stream", "text_only", "write_derived", "image_eviction", "summary")
# About what a record takes with its part of the sums, in bytes; and more for each of its images.
_RECORD_BYTES = 320
_RECORD_IMAGE_BYTES = 45

_PLACES = {name: at + 1 for at, name in enumerate(COLUMNS)}


def row_of(record: TurnRecord) -> tuple[Any, ...]:
    """A record as a row of words: its id, then `COLUMNS`, with names where the table has their numbers."""
    return (
        record.id,
        record.request_id,
        record.tenant,
        record.conversation,
        record.number,
        record.model,
        record.policy,
        record.policy_version,
        int(record.stream),
        _CODES["outcome"][record.outcome],
        int(record.text_only),
        record.images,
        record.unique_images,
        record.new_images,
        record.encoder_runs,
        record.encoder_hits,
        record.visual_tokens,
        record.prompt_tokens,
        record.completion_tokens,
        record.read_tokens,
        record.write_tokens,
        record.uncached_tokens,
        int(record.write_derived),
        record.approximate_tokens,
        record.expected_read,
        record.lost_tokens,
        record.break_message,
        record.break_part,
        record.break_token,
        None if record.cause is None else _CODES["cause"][record.cause],
        None if record.actor is None else _CODES["actor"][record.actor],
        None if record.evicted_image is None else bytes.fromhex(record.evicted_image),
        int(record.image_eviction),
        int(record.summary),
        record.epoch,
        record.first_token_seconds,
        record.total_seconds,
        record.cost,
        b"".join(map(bytes.fromhex, record.image_ids)),
        bytes(min(count, _MOST_COUNT) for count in _counts(record)),
    )


def images_of(record: TurnRecord) -> list[tuple[int, bytes, int]]:
    """A row for each unique image: record, image, how often it was sent."""
    return [
        (record.id, bytes.fromhex(image), count) for image, count in zip(record.image_ids, _counts(record), strict=True)
    ]


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
    values["evicted_image"] = None if values["evicted_image"] is None else values["evicted_image"].hex()
    images: bytes = values["image_ids"]
    values["image_ids"] = tuple(images[at : at + _IMAGE_BYTES].hex() for at in range(0, len(images), _IMAGE_BYTES))
    values["image_counts"] = tuple(values["image_counts"])
    return TurnRecord(id=row[0], **values)


def read(connection: sqlite3.Connection, rest: str, parameters: Sequence[Any]) -> list[TurnRecord]:
    """Records by what comes behind `SELECT`."""
    return [record_of(row) for row in connection.execute(SELECT + rest, tuple(parameters))]


def _counts(record: TurnRecord) -> Sequence[int]:
    """How often each unique image was sent; once, where that was not counted."""
    return record.image_counts or (1,) * len(record.image_ids)
