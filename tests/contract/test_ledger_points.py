"""What nobody has sent is told without asking the ledger's file, and what others have sent is found all the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from context.store import known_points
from context.store.known_points import QUIET_SECONDS, KnownPoints
from context.store.turn_file import connect
from tests.contract.ledger_chats import at, chain, converse, user
from tests.contract.ledger_rigs import opened, survives
from tests.contract.test_ledger_file import damage, kept

POINTS = [bytes([number]) * 32 for number in range(1, 7)]


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A file of turns with none in it."""
    ledger = await opened(tmp_path / "ledger.db")
    await ledger.close()
    return tmp_path / "ledger.db"


def commit(points: KnownPoints, writer: sqlite3.Connection, *chains: bytes) -> None:
    """Add points as a process does."""
    writer.execute("BEGIN IMMEDIATE")
    writer.executemany("INSERT INTO points VALUES ('t', ?, 1, 1, 0)", [(one,) for one in chains])
    points.add(chains)
    writer.execute("COMMIT")


async def test_what_nobody_sent_is_told_without_reading_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old = await kept(path)
    ledger = await opened(path)
    # Whoever reads the file from here on notices.
    damage(path)
    for number in range(20):
        assert await ledger.find("t", chain([user(f"new {number}")] * (1 + 10 * number))) is None
    assert ledger.stats().failures == 0
    assert await ledger.find("t", chain([*old, user("on")])) is None
    assert ledger.stats().failures == 1
    await ledger.close()


async def test_a_counter_that_cannot_be_had_changes_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    (tmp_path / "ledger.db.points").mkdir()
    ledger = await opened(path)
    wires, turn = await converse(ledger, 4, "c")
    assert at(await ledger.find("t", chain([*wires, user("on")]))) == (turn.id, len(wires), True)
    await ledger.close()
    assert await survives(path, 4, "c")


async def test_more_points_than_are_kept_change_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_points, "_MOST_POINTS", 3)
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    wires, turn = await converse(ledger, 8, "c")
    await ledger.flush()
    assert at(await ledger.find("t", chain([*wires, user("on")]))) == (turn.id, len(wires), True)
    await ledger.close()
    assert await survives(path, 8, "c")


async def test_each_process_knows_its_own_points_and_asks_once_another_has_written(
    path: Path,
) -> None:
    now = [0.0]
    one, two = (KnownPoints(path, lambda: now[-1]) for _ in range(2))
    with closing(connect(path, 1)) as writer:
        assert one.may_have(POINTS, 0)
        for points in (one, two):
            points.refresh(writer)
            assert not points.may_have(POINTS, 0)
        commit(one, writer, POINTS[0])
        assert (one.may_have(POINTS, 0), one.may_have(POINTS, 1)) == (True, False)
        # It cannot know whether this was all, and others may be at it still.
        assert two.may_have(POINTS, 5)
        commit(two, writer, POINTS[1])
        two.refresh(writer)
        assert two.may_have(POINTS, 5)
        assert one.may_have(POINTS, 5)
        # Once they are quiet all points are read, those of others too.
        now.append(now[-1] + QUIET_SECONDS)
        commit(two, writer, POINTS[2])
        two.refresh(writer)
        assert [two.may_have(POINTS[: number + 1], number) for number in range(6)] == [True] * 3 + [False] * 3
        # What one reads is not what the other knows.
        assert one.may_have(POINTS, 5)
    one.close()
    two.close()


async def test_a_point_is_known_before_it_is_committed(path: Path) -> None:
    points, other = KnownPoints(path), KnownPoints(path)
    with closing(connect(path, 1)) as writer:
        points.refresh(writer)
        other.refresh(writer)
        writer.execute("BEGIN IMMEDIATE")
        points.add([POINTS[3]])
        assert points.may_have(POINTS, 3)
        assert other.may_have(POINTS, 4)
        writer.execute("ROLLBACK")
    points.close()
    other.close()
