"""What can happen to the ledger's file: no space, locks, damage, removal."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from context.errors import ConfigError
from context.ledger import Ledger
from tests.contract.ledger_chats import Wire, answer, assistant, at, chain, converse, new_turn, same, user
from tests.contract.ledger_rigs import opened, survives


@contextmanager
def locked(path: Path) -> Generator[None]:
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        holder.close()


@contextmanager
def full(path: Path) -> Generator[None]:
    """Nothing in this process can make a file longer than the ledger's log is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.with_name(f"{path.name}-wal").stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def something_else_there(path: Path) -> Generator[None]:
    away = path.with_name("away")
    path.rename(away)
    path.mkdir()
    try:
        yield
    finally:
        path.rmdir()
        away.rename(path)


@pytest.mark.parametrize("trouble", [locked, full, something_else_there])
async def test_trouble_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trouble: Callable[[Path], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    await converse(ledger, 2, "before")
    with trouble(path):
        wires, during = await converse(ledger, 3, "during")
        await ledger.flush()
        found = await ledger.find("t", chain([*wires, user("four")]))
        assert found is not None
        assert same(found.turn, during)
        assert ledger.stats().failures > 0
    # It goes on in the file as soon as it can, the turns that were in memory alone in front.
    more = [*wires, user("four")]
    turn = await answer(ledger, await ledger.commit("t", new_turn(more, during, conversation="during")), more, "x")
    await ledger.close()
    ledger = await opened(path)
    found = await ledger.find("t", chain([*more, assistant("x"), user("five")]))
    assert found is not None
    assert same(found.turn, turn)
    await ledger.close()
    assert await survives(path, 2, "before")
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert str(tmp_path) not in warnings[0]


async def test_a_turn_whose_parents_reply_was_lost_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    wires = [user("one")]
    turn = await ledger.commit("t", new_turn(wires))
    with locked(path):
        turn = await answer(ledger, turn, wires, "lost")
    more = [*wires, assistant("lost"), user("two")]
    turn = await ledger.commit("t", new_turn(more, turn))
    await ledger.close()
    ledger = await opened(path)
    found = await ledger.find("t", chain(more))
    assert found is not None
    assert same(found.turn, turn)
    await ledger.close()


async def test_a_locked_file_is_left_alone_for_a_while(tmp_path: Path) -> None:
    ledger = await Ledger.open(tmp_path / "ledger.db", busy_seconds=0.01, retry_seconds=3600)
    with locked(tmp_path / "ledger.db"):
        for _ in range(3):
            await converse(ledger, 1)
            await ledger.flush()
    assert ledger.stats().failures == 1
    await ledger.close()


async def test_a_file_that_is_locked_at_the_start_is_used_later(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with locked(path):
        ledger = await opened(path)
        wires, turn = await converse(ledger, 1)
        assert at(await ledger.find("t", chain([*wires, user("two")]))) == (turn.id, 3, True)
    await converse(ledger, 2, "after")
    await ledger.close()
    assert await survives(path, 2, "after")


async def test_a_file_that_was_removed_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.db"
    ledger = await opened(path)
    wires, turn = await converse(ledger, 2)
    for one in path.parent.iterdir():
        one.unlink()
    path.parent.rmdir()
    more = [*wires, user("three")]
    turn = await answer(ledger, await ledger.commit("t", new_turn(more, turn)), more, "x")
    await ledger.close()
    assert await survives(path, 3, "c")


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
async def test_a_damaged_file_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(damage)
    ledger = await opened(path)
    await converse(ledger, 2)
    await ledger.close()
    assert (tmp_path / "ledger.db.damaged").read_bytes() == damage
    assert await survives(path, 2, "c")
    assert "damaged" in caplog.text
    assert str(tmp_path) not in caplog.text


async def kept(path: Path) -> list[Wire]:
    """A file with one conversation, which nobody has open; its messages."""
    ledger = await opened(path)
    wires, _ = await converse(ledger, 5, "old")
    await ledger.close()
    return wires


def damage(path: Path) -> None:
    """Overwrite all but the first page: what has it open notices it when it reads on."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xee" * (path.stat().st_size - 4096))


async def test_damage_under_way_is_noticed_and_healed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old = await kept(path)
    ledger = await opened(path)
    damage(path)
    assert await ledger.find("t", chain([*old, user("on")])) is None
    assert ledger.stats().failures == 1
    wires, turn = await converse(ledger, 2, "new")
    assert at(await ledger.find("t", chain([*wires, user("on")]))) == (turn.id, len(wires), True)
    assert ledger.stats().failures == 1
    await ledger.close()
    assert await survives(path, 2, "new")
    assert (tmp_path / "ledger.db.damaged").exists()


async def test_what_one_process_mended_another_leaves_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    old = await kept(path)
    one, two = await opened(path), await opened(path)
    damage(path)
    assert await one.find("t", chain([*old, user("on")])) is None
    await converse(one, 3, "mended")
    # It still has the damaged file open, and finds out now.
    assert await two.find("t", chain([*old, user("on")])) is None
    assert two.stats().failures == 1
    await converse(two, 2, "by two")
    await asyncio.gather(one.close(), two.close())
    assert await survives(path, 3, "mended")
    assert await survives(path, 2, "by two")


def another_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()


def another_program(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url)")
    connection.close()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def in_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (another_version, "another version"),
        (another_program, "another program"),
        (a_folder, "not a file"),
        (in_a_file, "cannot keep"),
    ],
)
async def test_a_file_that_can_never_work_stops_the_start(
    tmp_path: Path, spoil: Callable[[Path], None], reason: str
) -> None:
    path = tmp_path / "folder" / "ledger.db"
    await (await opened(path)).close()
    spoil(path)
    with pytest.raises(ConfigError, match=reason) as refused:
        await opened(path)
    assert refused.value.key == "ledger.path"
    assert str(tmp_path) not in str(refused.value)


async def test_a_file_that_may_not_be_written_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    await (await opened(path)).close()
    path.chmod(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everything")
    with pytest.raises(ConfigError, match="cannot keep"):
        await opened(path)
