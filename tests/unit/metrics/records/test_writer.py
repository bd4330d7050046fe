"""Records on their way: nothing is lost by a clean stop, a second's worth by a kill, and never silently."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.store import RecordLimits, RecordStore
from metrics.records.writer import RecordWriter
from tests.unit.metrics.records.some import BEGIN, many, record


def _kept(path: Path) -> int:
    with open_records(path) as records:
        return queries.totals(records).requests


async def test_a_clean_stop_keeps_all(tmp_path: Path) -> None:
    writer = await RecordWriter.open(tmp_path / "ledger.db")
    for one in many(3000, 5):
        writer.put(one)
    await writer.close()
    assert writer.stats().written == _kept(tmp_path / "ledger.db") == 3000
    assert (writer.stats().waiting, writer.stats().dropped) == (0, 0)


async def test_a_file_that_is_locked_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path, busy_seconds=0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    writer.put(record())
    await writer.flush()
    assert (writer.stats().waiting, writer.stats().failures) == (1, 1)
    holder.execute("ROLLBACK")
    holder.close()
    await writer.close()
    assert _kept(path) == 1


@pytest.mark.parametrize("model", ["a\0b", "a", "größe", "'; --", '{"j": [1]}'])
async def test_a_model_of_any_name_is_recorded(tmp_path: Path, model: str) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path)
    for number in range(3):
        writer.put(record(BEGIN + number, model=model if number == 1 else "m"))
    await writer.close()
    assert (writer.stats().written, _kept(path)) == (3, 3)


@pytest.mark.parametrize("broken", [{"prompt_tokens": 2**70}, {"model": "\ud83d"}, {"model": object()}])
async def test_one_that_no_file_can_hold_costs_itself_alone(
    tmp_path: Path, broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path)
    for number in range(9):
        writer.put(record(BEGIN + number, **(broken if number == 4 else {})))
    await writer.flush()
    writer.put(record(BEGIN + 9))
    await writer.close()
    assert (writer.stats().written, writer.stats().dropped, _kept(path)) == (9, 1, 9)
    assert "1 records are lost" in caplog.text


async def test_what_waits_is_bounded_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path, RecordLimits(max_waiting=10), busy_seconds=0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    made = many(15, 1)
    for one in made:
        writer.put(one)
    await writer.flush()
    assert (writer.stats().waiting, writer.stats().dropped) == (10, 5)
    holder.execute("ROLLBACK")
    holder.close()
    with caplog.at_level(logging.WARNING):
        await writer.close()
    assert "5 records are lost" in caplog.text
    with open_records(path) as records:
        # The oldest went.
        assert [one.id for one in queries.latest(records)] == [one.id for one in made[:4:-1]]


async def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path)
    writer.put(record())
    await writer.flush()
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (tmp_path / name).rename(tmp_path / f"away-{name}")
    writer.put(record(BEGIN + 1))
    await writer.close()
    assert _kept(path) == 1
    assert _kept(tmp_path / "away-ledger.db") == 1
    assert writer.stats().dropped == 0


async def test_what_can_never_be_written_is_said_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path, busy_seconds=0.01)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    writer.put(record())
    with caplog.at_level(logging.WARNING):
        await writer.close()
    holder.close()
    assert writer.stats().dropped == 1
    assert "1 records are lost" in caplog.text


async def test_bounds_hold_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    writer = await RecordWriter.open(path, RecordLimits(max_age_seconds=1e12, max_bytes=200_000))
    for one in many(2000, 5):
        writer.put(one)
    await writer.close()
    store = RecordStore(path, 0.5)
    assert store.used_bytes() <= 200_000
    store.close()
    with open_records(path) as records:
        assert 100 < len(queries.latest(records, limit=10_000)) < 1000
        assert queries.totals(records).requests == 2000


_KILLED = """
import asyncio, sys
from pathlib import Path
from metrics.records.writer import RecordWriter
from tests.unit.metrics.records.some import many

async def main():
    writer = await RecordWriter.open(Path(sys.argv[1]))
    for one in many(50, 1):
        writer.put(one)
    while writer.stats().waiting or not writer.stats().written:
        await asyncio.sleep(0.01)
    print("written", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_what_was_written_outlives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    command = [sys.executable, "-c", _KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    assert _kept(path) == 50
