"""What can happen to the ledger's file: other processes, no space, locks, damage, removal, and its bounds."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sqlite3
import stat
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from context.errors import ConfigError
from context.ledger import Ledger, LedgerLimits
from tests.contract.ledger_chats import answer, assistant, at, chain, converse, new_turn, same, user


async def opened(path: Path, **limits: int) -> Ledger:
    return await Ledger.open(path, LedgerLimits(**limits), busy_seconds=0.01, retry_seconds=0)


async def survives(path: Path, turns: int, conversation: str) -> bool:
    """Whether a new process would find a conversation of so many turns."""
    ledger = await opened(path)
    latest = await ledger.latest("t", conversation)
    await ledger.close()
    return latest is not None and latest.number == turns and latest.replied


async def test_two_processes_see_each_other(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    one, two = await opened(path), await opened(path)
    wires, turn = await converse(one, 3)
    await one.flush()
    # Known to one from memory, continued by two: the longer one is found.
    found = await two.find("t", chain([*wires, user("four")]))
    assert found is not None
    assert same(found.turn, turn)
    more = [*wires, user("four")]
    turn = await two.commit("t", new_turn(more, found.turn))
    await two.flush()
    assert at(await one.find("t", chain([*more, assistant("x"), user("five")]))) == (turn.id, len(more), False)
    turn = await answer(two, turn, more, "x")
    await two.flush()
    found = await one.find("t", chain([*more, assistant("x"), user("five")]))
    assert found is not None
    assert same(found.turn, turn)
    latest = await one.latest("t", "c")
    assert latest is not None
    assert same(latest, turn)
    await asyncio.gather(one.close(), two.close())


async def test_many_begin_the_same_file(tmp_path: Path) -> None:
    ledgers = await asyncio.gather(*(Ledger.open(tmp_path / "ledger.db", busy_seconds=5) for _ in range(6)))
    await asyncio.gather(*(converse(one, 5, str(number)) for number, one in enumerate(ledgers)))
    await asyncio.gather(*(one.flush() for one in ledgers))
    assert [one.stats().failures for one in ledgers] == [0] * 6
    for number in range(6):
        assert await ledgers[-1 - number].latest("t", str(number)) is not None
    await asyncio.gather(*(one.close() for one in ledgers))


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    ledger = await opened(tmp_path / "a" / "ledger.db")
    await converse(ledger, 1)
    assert {stat.S_IMODE(one.stat().st_mode) for one in (tmp_path / "a").iterdir()} == {0o600}
    await ledger.close()


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


def damage(path: Path) -> None:
    """Overwrite all but the first page: what has it open notices it when it reads on."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xee" * (path.stat().st_size - 4096))


async def test_damage_under_way_is_noticed_and_healed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    await converse(ledger, 5, "old")
    await ledger.close()
    ledger = await opened(path)
    damage(path)
    assert await ledger.find("t", chain([user("x")] * 20)) is None
    assert ledger.stats().failures == 1
    wires, turn = await converse(ledger, 2, "new")
    assert at(await ledger.find("t", chain([*wires, user("on")]))) == (turn.id, len(wires), True)
    assert ledger.stats().failures == 1
    await ledger.close()
    assert await survives(path, 2, "new")
    assert (tmp_path / "ledger.db.damaged").exists()


async def test_what_one_process_mended_another_leaves_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    await converse(ledger, 5, "old")
    await ledger.close()
    one, two = await opened(path), await opened(path)
    damage(path)
    assert await one.find("t", chain([user("x")] * 20)) is None
    await converse(one, 3, "mended")
    # It still has the damaged file open, and finds out now.
    assert await two.find("t", chain([user("x")] * 20)) is None
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
    path.unlink()
    path.parent.rmdir()
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


async def test_the_file_stays_within_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    bound = 1_000_000
    ledger = await opened(path, max_bytes=bound, memory_bytes=100_000)
    text = "x" * 10_000
    largest = 0
    for number in range(400):
        tools = ({"type": "function", "function": {"name": f"tool_{number}"}},)
        await ledger.commit("t", new_turn([user(f"{number} {text}")], conversation=f"{number}", tools=tools))
        largest = max(largest, path.stat().st_size)
    await ledger.prune(0.0)
    # Over it by what comes between two looks at the size, and by what is on its way into the file at most.
    assert largest < bound + 64 * 11_000 + 1024 * 1024
    assert path.stat().st_size <= bound
    connection = sqlite3.connect(path)
    # Tools go with the last turn that had them.
    assert connection.execute("SELECT count(*) FROM tools").fetchone()[0] == ledger.stats().turns
    connection.close()
    # The newest are those that are kept.
    assert await ledger.latest("t", "399") is not None
    assert await ledger.latest("t", "0") is None
    assert 40 < ledger.stats().turns < 100
    assert ledger.stats().pruned == 400 - ledger.stats().turns
    assert ledger.stats().failures == 0
    await ledger.close()


async def test_pruning_by_size_keeps_what_newer_turns_are_based_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path, max_bytes=1_000_000)
    wires, turn = await converse(ledger, 30, "long")
    for number in range(150):
        await ledger.commit("t", new_turn([user(f"{number} " + "x" * 10_000)], conversation=f"{number}"))
    more = [*wires, user("on")]
    turn = await ledger.commit("t", new_turn(more, turn, conversation="long"))
    await ledger.prune(0.0)
    assert ledger.stats().pruned > 50
    assert await ledger.latest("t", "0") is None
    await ledger.close()
    ledger = await opened(path)
    found = await ledger.find("t", chain(more))
    assert found is not None
    assert same(found.turn, turn)
    await ledger.close()


async def test_growing_histories_are_stored_once(tmp_path: Path) -> None:
    """What a turn adds is stored, and tools once for all: else 100 turns of 10 kB would take 50 MB."""
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    tools = ({"type": "function", "function": {"name": "f", "description": "d" * 20_000}},)
    wires = [user("x" * 10_000)]
    turn = await ledger.commit("t", new_turn(wires, tools=tools))
    for number in range(99):
        turn = await answer(ledger, turn, wires, f"answer {number}")
        wires += [assistant(f"answer {number}"), user(f"{number}" + "x" * 10_000)]
        turn = await ledger.commit("t", new_turn(wires, turn, tools=(dict(tools[0]),)))
    await ledger.close()
    assert path.stat().st_size < 1_800_000


async def test_a_request_that_is_cancelled_keeps_its_turn(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    commits = [
        asyncio.create_task(ledger.commit("t", new_turn([user(f"{number}")], conversation=f"{number}")))
        for number in range(10)
    ]
    await asyncio.sleep(0)
    for one in commits:
        one.cancel()
    await asyncio.gather(*commits, return_exceptions=True)
    await ledger.close()
    ledger = await opened(path)
    assert [await ledger.latest("t", f"{number}") is not None for number in range(10)] == [True] * 10
    await ledger.close()
