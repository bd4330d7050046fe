"""The records' tables in the ledger's file: their columns, how they are made, and which version they have.

records               a row for each turn
rollups, rollups_by_day   sums over records by hour and by day (UTC), a row for each set of keys
record_conversations  sums by conversation, model and policy
record_images         which image was sent in which conversation, and how often
record_names          names of tenants, models and policies, so that the others hold numbers
records_schema        the version
"""

from __future__ import annotations

import sqlite3
from typing import get_args

from context.errors import ConfigError
from context.plan import Actor, Cause
from metrics.records.buckets import BUCKETS, TIMES
from metrics.records.record import Outcome

VERSION = 4
NANOSECONDS = 1_000_000_000
HOUR = 3600 * NANOSECONDS
DAY = 24 * HOUR

# What stands for these words in the file. Only ever add to the end.
CAUSES: tuple[Cause, ...] = (
    "cold",
    "client_edit",
    "client_window",
    "volatile_text",
    "tools_changed",
    "policy_eviction",
    "summary",
    "engine_eviction",
    "template",
    "salt",
    "below_block",
    "engine_unreported",
)
ACTORS: tuple[Actor, ...] = ("client", "policy", "engine", "template", "gateway")
OUTCOMES: tuple[Outcome, ...] = ("completed", "aborted", "failed", "refused")
assert set(CAUSES) == set(get_args(Cause)), "each has its number"
assert set(ACTORS) == set(get_args(Actor)), "each has its number"
assert set(OUTCOMES) == set(get_args(Outcome)), "each has its number"

# A record's columns behind its id; `+` is NOT NULL. `tenant`, `model`, `policy` are rows of record_names,
# `conversation` of record_conversations.
COLUMNS: dict[str, str] = {
    "request_id": "TEXT+",
    "tenant": "INTEGER+",
    "conversation": "INTEGER",
    "number": "INTEGER+",
    "model": "INTEGER+",
    "policy": "INTEGER+",
    "policy_version": "TEXT+",
    "stream": "INTEGER+",
    "outcome": "INTEGER+",
    "text_only": "INTEGER+",
    "images": "INTEGER+",
    "unique_images": "INTEGER+",
    "new_images": "INTEGER+",
    "encoder_runs": "INTEGER",
    "encoder_hits": "INTEGER",
    "visual_tokens": "INTEGER",
    "prompt_tokens": "INTEGER",
    "completion_tokens": "INTEGER",
    "read_tokens": "INTEGER",
    "write_tokens": "INTEGER",
    "uncached_tokens": "INTEGER",
    "write_derived": "INTEGER+",
    "loaded_tokens": "INTEGER",
    "expected_read": "INTEGER",
    "lost_tokens": "INTEGER",
    "break_message": "INTEGER",
    "break_part": "INTEGER",
    "break_token": "INTEGER",
    "cause": "INTEGER",
    "actor": "INTEGER",
    "evicted_image": "BLOB",
    "image_eviction": "INTEGER+",
    "summary": "INTEGER+",
    "epoch": "INTEGER+",
    "first_token_seconds": "REAL",
    "total_seconds": "REAL",
    "cost": "REAL",
    "image_ids": "BLOB+",
    "image_counts": "BLOB+",
    "evicted_conversation": "TEXT",
    "evicted_tokens": "INTEGER",
    "unseen_images": "INTEGER+",
    "reuse": "TEXT",
    "reuse_by": "INTEGER",
}
NAMED = ("tenant", "model", "policy")

_REPORTED = "r.read_tokens IS NOT NULL AND r.prompt_tokens IS NOT NULL"
# Of the prompt's tokens the share that was read: none, then tenths; the last tenth with its end.
_SHARE = "CASE WHEN r.read_tokens = 0 THEN 0 ELSE 1 + min(9, r.read_tokens * 10 / max(1, r.prompt_tokens)) END"
SHARES = 11
# A cause and an actor as one number.
CAUSE_UNIT = 8
# By what the sums are kept apart, beside tenant, model and policy: one at a time, for all of them at once would be as
# many rows as there are records. Each is an expression over a record `r`; its place is its number in the file, so only
# ever add to the end. -1 is unknown.
VALUES: dict[str, str] = {
    "all": "0",
    "cause": f"(ifnull(r.cause, -1) + 1) * {CAUSE_UNIT} + ifnull(r.actor, -1) + 1",
    "outcome": "r.outcome",
    "multi_turn": "r.number > 1",
    "multimodal": "NOT r.text_only",
    "eviction": "r.image_eviction",
    "summary": "r.summary",
    "turn": BUCKETS["turn"].sql("r.number"),
    "prompt_length": BUCKETS["prompt_length"].sql("r.prompt_tokens"),
    "images": BUCKETS["images"].sql("r.images"),
    "visual_tokens": BUCKETS["visual_tokens"].sql("r.visual_tokens"),
    "read_share": f"CASE WHEN {_REPORTED} THEN {_SHARE} ELSE -1 END",
    "first_token": TIMES.sql("r.first_token_seconds", 1000),
    "total": TIMES.sql("r.total_seconds", 1000),
}
NUMBERS = {name: at for at, name in enumerate(VALUES)}
KEYS = ("split", "period", "value", *NAMED)


def _where(condition: str, value: str) -> str:
    return f"CASE WHEN {condition} THEN {value} ELSE 0 END"


# What is summed up, as expressions over a record. Tokens of the prompt and its parts only where the engine said what it
# read: a ratio of the others would be one of what is not known.
SUMS: dict[str, str] = {
    "requests": "1",
    "reported": _where(_REPORTED, "1"),
    "unreported": _where("r.outcome = 0 AND r.read_tokens IS NULL", "1"),
    "unreported_tokens": _where("r.read_tokens IS NULL", "ifnull(r.prompt_tokens, 0)"),
    "prompt_tokens": _where(_REPORTED, "r.prompt_tokens"),
    "read_tokens": _where(_REPORTED, "r.read_tokens"),
    "write_tokens": _where(_REPORTED, "ifnull(r.write_tokens, 0)"),
    "uncached_tokens": _where(_REPORTED, "ifnull(r.uncached_tokens, 0)"),
    "derived_write_tokens": _where(f"r.write_derived AND {_REPORTED}", "ifnull(r.write_tokens, 0)"),
    "loaded_tokens": _where(_REPORTED, "ifnull(r.loaded_tokens, 0)"),
    "visual_token_sum": "ifnull(r.visual_tokens, 0)",
    "completion_tokens": "ifnull(r.completion_tokens, 0)",
    "expected_tokens": "ifnull(r.expected_read, 0)",
    "lost_tokens": "ifnull(r.lost_tokens, 0)",
    "losses": _where("r.lost_tokens > 0", "1"),
    "sent_images": "r.images",
    "new_images": "r.new_images",
    "encoder_runs": "ifnull(r.encoder_runs, 0)",
    "encoder_hits": "ifnull(r.encoder_hits, 0)",
    "answered": _where("r.first_token_seconds IS NOT NULL", "1"),
    "first_token_seconds": "ifnull(r.first_token_seconds, 0.0)",
    "timed": _where("r.total_seconds IS NOT NULL", "1"),
    "total_seconds": "ifnull(r.total_seconds, 0.0)",
    "priced": _where("r.cost IS NOT NULL", "1"),
    "cost": "ifnull(r.cost, 0.0)",
}
REAL_SUMS = frozenset(("first_token_seconds", "total_seconds", "cost"))
# Sums that a conversation has a row of.
CONVERSATION_SUMS = (
    "requests",
    "reported",
    "unreported",
    "unreported_tokens",
    "prompt_tokens",
    "read_tokens",
    "write_tokens",
    "uncached_tokens",
    "loaded_tokens",
    "completion_tokens",
    "lost_tokens",
    "losses",
    "priced",
    "cost",
)
ROLLUPS = ("rollups", "rollups_by_day")


def _typed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind.replace('+', ' NOT NULL')}" for name, kind in columns.items())


def _sums(names: tuple[str, ...] | dict[str, str]) -> str:
    return ", ".join(f"{name} {'REAL' if name in REAL_SUMS else 'INTEGER'} NOT NULL" for name in names)


def _tables() -> list[str]:
    keys = ", ".join(f"{name} INTEGER NOT NULL" for name in KEYS)
    rollups = [
        f"CREATE TABLE {table} ({keys}, {_sums(SUMS)}, PRIMARY KEY ({', '.join(KEYS)})) STRICT, WITHOUT ROWID"
        for table in ROLLUPS
    ]
    return [
        f"CREATE TABLE records (id INTEGER PRIMARY KEY, {_typed(COLUMNS)}) STRICT",
        "CREATE INDEX records_of_conversation ON records (conversation) WHERE conversation IS NOT NULL",
        f"CREATE INDEX records_with_eviction ON records (id) WHERE {EVICTIONS}",
        *rollups,
        "CREATE TABLE record_names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT",
        "CREATE TABLE record_conversations (id INTEGER PRIMARY KEY, tenant INTEGER NOT NULL, name TEXT NOT NULL, "
        "model INTEGER NOT NULL, policy INTEGER NOT NULL, first_record INTEGER NOT NULL, last_record INTEGER NOT NULL, "
        f"turns INTEGER NOT NULL, {_sums(CONVERSATION_SUMS)}, UNIQUE (tenant, name, model, policy)) STRICT",
        "CREATE INDEX record_conversations_latest ON record_conversations (last_record)",
        "CREATE TABLE record_images (tenant INTEGER NOT NULL, image BLOB NOT NULL, conversation INTEGER NOT NULL, "
        "first_record INTEGER NOT NULL, last_record INTEGER NOT NULL, turns INTEGER NOT NULL, "
        "occurrences INTEGER NOT NULL, PRIMARY KEY (tenant, image, conversation)) STRICT, WITHOUT ROWID",
        "CREATE INDEX record_images_latest ON record_images (last_record)",
        # `bytes`: what the records take, by estimate. `hours_from`: from this hour on all sums by hour are kept.
        "CREATE TABLE records_schema (version INTEGER NOT NULL, bytes INTEGER NOT NULL, hours_from INTEGER NOT NULL) "
        "STRICT",
        f"INSERT INTO records_schema VALUES ({VERSION}, 0, 0)",
    ]


# Turns that an eviction is seen in: of KV blocks by the engine, or of images by the policy.
EVICTIONS = f"(evicted_image IS NOT NULL OR image_eviction OR cause = {CAUSES.index('engine_eviction')})"


# What brings a file up to a version, from the one before it. No table had ever held an approximate token.
_RENEWALS: dict[int, tuple[str, ...]] = {
    2: (
        "ALTER TABLE records ADD COLUMN evicted_conversation TEXT",
        "ALTER TABLE records ADD COLUMN evicted_tokens INTEGER",
        "ALTER TABLE records ADD COLUMN unseen_images INTEGER NOT NULL DEFAULT 0",
    ),
    3: (
        *(f"ALTER TABLE {table} RENAME COLUMN approximate_tokens TO loaded_tokens" for table in ("records", *ROLLUPS)),
        "ALTER TABLE record_conversations ADD COLUMN loaded_tokens INTEGER NOT NULL DEFAULT 0",
    ),
    4: (
        "ALTER TABLE records ADD COLUMN reuse TEXT",
        "ALTER TABLE records ADD COLUMN reuse_by INTEGER",
    ),
}
_OLDER = range(min(_RENEWALS) - 1, VERSION)
assert max(_RENEWALS) == VERSION, "each version can be reached"


def has_records(connection: sqlite3.Connection) -> bool:
    """Whether the file has the tables, in this version.

    Raises:
        ConfigError: it has those of another version.
    """
    version = _version(connection)
    if version in _OLDER:
        raise ConfigError("ledger.db", "", "its records are of an older version; start the gateway once to renew them")
    if version not in (None, VERSION):
        reason = "its records were written by another version of Stillframe; use that one, or name another data_dir"
        raise ConfigError("ledger.db", "", reason)
    return version is not None


def _version(connection: sqlite3.Connection) -> int | None:
    """None where there are no tables."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'records_schema'"
    if connection.execute(query).fetchone() is None:
        return None
    version = connection.execute("SELECT version FROM records_schema").fetchone()
    return -1 if version is None else version[0]


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in a file that is the ledger's already, or bring them up from an older version; nothing where
    they are there.

    Raises:
        ConfigError: they are there in another version.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version is not None and version in _OLDER:
            for renewed in range(version + 1, VERSION + 1):
                for statement in _RENEWALS[renewed]:
                    connection.execute(statement)
            connection.execute(f"UPDATE records_schema SET version = {VERSION}")
        elif not has_records(connection):
            for statement in _tables():
                connection.execute(statement)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
