"""What is kept in the file: records as they were, sums that agree with them, within the bounds, beside the ledger."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from context.errors import ConfigError
from context.ledger import Ledger, NewTurn
from context.plan import SentMessage
from context.store.turn_rows import TurnStoreError
from context.transcript import transcript
from metrics.records import queries
from metrics.records.queries import Filter, open_records
from metrics.records.record import TurnRecord
from metrics.records.schema import DAY, HOUR, NANOSECONDS, SUMS, VALUES
from metrics.records.store import RecordStore
from metrics.records.sums import figures_of, values_of
from tests.unit.metrics.records.some import BEGIN, IMAGES, many, record, whole


def _write(path: Path, records: list[TurnRecord]) -> RecordStore:
    store = RecordStore(path, 0.5)
    store.write(records)
    return store


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    nothing = record(BEGIN + 1, conversation="", number=0, prompt_tokens=None, read_tokens=None, write_tokens=None)
    nothing = replace(nothing, uncached_tokens=None, completion_tokens=None, outcome="refused")
    _write(tmp_path / "ledger.db", [whole(), nothing]).close()
    with open_records(tmp_path / "ledger.db") as records:
        assert queries.latest(records) == [nothing, whole()]


def test_an_image_that_was_not_counted_stands_there_once(tmp_path: Path) -> None:
    _write(tmp_path / "ledger.db", [record(image_ids=(IMAGES[0],))]).close()
    with open_records(tmp_path / "ledger.db") as records:
        assert queries.latest(records)[0].image_counts == (1,)


def test_a_batch_that_is_written_again_changes_nothing(tmp_path: Path) -> None:
    made = many(700, 30)
    store = _write(tmp_path / "ledger.db", made)
    used = store.used_bytes()
    store.write(made[300:])
    assert store.used_bytes() == used
    with open_records(tmp_path / "ledger.db") as records:
        assert queries.totals(records).requests == 700
        assert sum(one.turns for one in queries.images(records)) == sum(len(one.image_ids) for one in made)


def test_pruned_by_age(tmp_path: Path) -> None:
    made = many(400, 100)
    store = _write(tmp_path / "ledger.db", made)
    half = store.used_bytes()
    before = made[200].id
    assert store.prune(before, 10**12) == 200
    assert store.prune(before, 10**12) == 0
    assert store.used_bytes() < half
    with open_records(tmp_path / "ledger.db") as records:
        assert [one.id for one in queries.latest(records, limit=1000)] == [one.id for one in made[:199:-1]]
        # Sums go with their day at the latest.
        kept = [one for one in made if one.id >= before // DAY * DAY]
        assert 200 <= queries.totals(records).requests <= len(kept)
        seen = {image for one in made[200:] for image in one.image_ids}
        assert {one.image_id for one in queries.images(records)} == seen


def test_pruned_by_size_the_sums_by_day_stay(tmp_path: Path) -> None:
    made = many(4000, 24 * 20)
    store = _write(tmp_path / "ledger.db", made)
    used = store.used_bytes()
    gone = store.prune(0, used // 2)
    assert gone >= 2000
    assert store.used_bytes() <= used // 2
    with open_records(tmp_path / "ledger.db") as records:
        assert len(queries.latest(records, limit=10_000)) == 4000 - gone
        assert queries.totals(records).requests == 4000
        assert sum(group.totals.requests for group in queries.by_turn(records)) == 4000
        # Of an hour whose records are gone nothing is known within it: it is counted whole.
        since = made[500].id / NANOSECONDS
        expected = sum(one.id >= made[500].id // HOUR * HOUR for one in made)
        assert queries.totals(records, Filter(since=since)).requests == expected


def test_hours_of_splits_go_first(tmp_path: Path) -> None:
    made = many(600, 60)
    store = _write(tmp_path / "ledger.db", made)
    noon = made[300].id
    store.prune(0, 10**12, noon)
    with open_records(tmp_path / "ledger.db") as records:
        for at in (0, 100, 299, 301, 450):
            of = Filter(since=made[at].id / NANOSECONDS)
            counted = sum(one.id >= of.first for one in made)
            assert queries.totals(records, of).requests == counted
            assert sum(group.totals.requests for group in queries.by_turn(records, of)) == counted


async def test_beside_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    # Whichever comes first.
    store = _write(path, [record()])
    ledger = await Ledger.open(path)
    read = transcript([{"role": "user", "content": "a"}], b"key")
    sent = (SentMessage(read.messages[0].wire, 0),)
    await ledger.commit("alice", NewTurn("c", 1, None, read.messages, read.chain[-1], sent, None))
    await ledger.flush()
    store.write([record(BEGIN + 1)])
    await ledger.close()
    again = await Ledger.open(path)
    assert again.stats().turns == 1
    assert (await again.find("alice", read.chain)) is not None
    await again.close()
    store.close()
    with open_records(path) as records:
        assert queries.totals(records).requests == 2


def test_a_file_that_was_moved_away_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = _write(path, [record()])
    path.rename(tmp_path / "ledger.db.damaged")
    with pytest.raises(TurnStoreError, match="gone"):
        store.write([record(BEGIN + 1)])


def test_records_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    _write(path, [record()]).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records_schema SET version = 99")
    connection.close()
    for opened in (lambda: RecordStore(path, 0.5), lambda: open_records(path)):
        with pytest.raises(ConfigError, match="another version"):
            opened()


def test_sums_in_memory_are_those_of_sql(tmp_path: Path) -> None:
    """Where times are asked for that no sum fits, the rows are summed up: both must say the same."""
    nothing = record(BEGIN + 7 * HOUR, number=0, prompt_tokens=None, read_tokens=0, total_seconds=None)
    made = [*many(400, 9), replace(whole(BEGIN + 8 * HOUR), number=3), nothing]
    made += [record(BEGIN + 9 * HOUR + at, first_token_seconds=at / 1000, total_seconds=at / 7) for at in range(60)]
    _write(tmp_path / "ledger.db", made).close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        facts = ", ".join([*VALUES.values(), *SUMS.values()])
        rows = connection.execute(f"SELECT {facts} FROM records r ORDER BY r.id").fetchall()
    connection.close()
    assert [(*values_of(one), *figures_of(one)) for one in sorted(made, key=lambda one: one.id)] == rows


@pytest.mark.parametrize("version", [1, 2, 3])
def test_records_of_older_versions_are_brought_up(tmp_path: Path, version: int) -> None:
    path = tmp_path / "ledger.db"
    _write(path, [record()]).close()
    with sqlite3.connect(path) as connection:
        later = ["reuse", "reuse_by"]
        if version < 3:
            for table in ("records", "rollups", "rollups_by_day"):
                connection.execute(f"ALTER TABLE {table} RENAME COLUMN loaded_tokens TO approximate_tokens")
            connection.execute("ALTER TABLE record_conversations DROP COLUMN loaded_tokens")
        if version < 2:
            later += ["evicted_conversation", "evicted_tokens", "unseen_images"]
        for name in later:
            connection.execute(f"ALTER TABLE records DROP COLUMN {name}")
        connection.execute(f"UPDATE records_schema SET version = {version}")
    connection.close()
    with pytest.raises(ConfigError, match="start the gateway once"):
        open_records(path)
    _write(path, [whole(BEGIN + 1)]).close()
    with open_records(path) as records:
        assert queries.latest(records) == [whole(BEGIN + 1), record()]
        assert queries.totals(records).loaded_tokens == 8
        listed = {one.conversation: one.totals.loaded_tokens for one in queries.conversations(records)}
        assert listed == {record().conversation: 8}


def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    made = many(600, 10)
    first, second = RecordStore(path, 5.0), RecordStore(path, 5.0)
    for at in range(0, 600, 100):
        (first if at % 200 else second).write(made[at : at + 100])
    first.close()
    second.close()
    with open_records(path) as records:
        assert queries.latest(records, limit=1000) == [
            replace(one, image_counts=(1,) * len(one.image_ids)) for one in made[::-1]
        ]
        assert queries.totals(records).requests == 600
