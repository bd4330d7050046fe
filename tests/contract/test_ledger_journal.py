"""The ledger's journal: what is kept outlives the process at once, and reaches the file a moment later."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sqlite3
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from context.ledger import Ledger, LedgerLimits
from context.store.turn_journal import Journal, decoded, encoded
from context.store.turn_rows import Addition, Answer, Entry
from tests.contract.ledger_chats import answer, assistant, at, chain, converse, new_turn, same, user

TOOLS = ({"type": "function", "function": {"name": "f", "description": "d" * 20_000}},)


async def opened(path: Path, **limits: int) -> Ledger:
    return await Ledger.open(path, LedgerLimits(**limits), busy_seconds=0.01, retry_seconds=0)


def journals(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.journal-*"))


def in_file(path: Path) -> int:
    """Turns that the file holds."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT count(*) FROM turns").fetchone()[0]
    finally:
        connection.close()


def killed(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Do it in another process, which is then killed at once."""
    child = os.fork()
    if not child:

        async def run() -> None:
            await work()
            os.kill(os.getpid(), signal.SIGKILL)

        try:
            asyncio.run(run())
        finally:
            # Where the work fails: what runs the tests must not go on in two processes.
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def talk(path: Path, turns: int, conversation: str = "c") -> Callable[[], Coroutine[Any, Any, object]]:
    async def work() -> None:
        await converse(await opened(path), turns, conversation)

    return work


def numbered(entries: Sequence[Entry]) -> list[tuple[int, bool]]:
    return [(one.id, isinstance(one, Answer)) for one in entries]


async def number_of(path: Path, conversation: str) -> int | None:
    """The number of a conversation's last turn as a new process finds it, answered."""
    ledger = await opened(path)
    latest = await ledger.latest("t", conversation)
    await ledger.close()
    assert latest is None or latest.replied
    return latest and latest.number


def test_what_a_killed_process_kept_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    killed(talk(path, 3))
    assert len(journals(path)) == 2
    assert sum(one.stat().st_size for one in journals(path)) > 0
    assert asyncio.run(number_of(path, "c")) == 3
    assert in_file(path) == 3
    assert journals(path) == []


def test_a_journal_that_was_fed_already_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    killed(talk(path, 3))
    left = {one: one.read_bytes() for one in journals(path)}
    for _ in range(2):
        assert asyncio.run(number_of(path, "c")) == 3
        assert in_file(path) == 3
        # As if the process had died before it removed them.
        for one, data in left.items():
            one.write_bytes(data)


@pytest.mark.parametrize(("cut", "end"), [(1, b""), (1, b"\x00"), (40, b"")])
def test_an_entry_that_is_torn_is_ignored(tmp_path: Path, cut: int, end: bytes) -> None:
    path = tmp_path / "ledger.db"

    async def work() -> None:
        ledger = await opened(path)
        wires, turn = await converse(ledger, 2)
        await ledger.commit("t", new_turn([*wires, user("torn")], turn, conversation="torn"))

    killed(work)
    full = next(one for one in journals(path) if any("torn" in entry.columns for entry in decoded(one.read_bytes())))
    full.write_bytes(full.read_bytes()[:-cut] + end)
    assert asyncio.run(number_of(path, "torn")) is None
    assert asyncio.run(number_of(path, "c")) == 2


async def test_a_living_processes_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    one = await opened(path)
    wires, turn = await converse(one, 2)
    names = journals(path)
    two = await opened(path)
    assert len(journals(path)) == 4
    await two.close()
    assert journals(path) == names
    # It can still be told whose it is, and takes what comes.
    more = [*wires, user("more")]
    turn = await answer(one, await one.commit("t", new_turn(more, turn)), more, "x")
    assert sum(journal.stat().st_size for journal in names) > 0
    wires = [*more, assistant("x")]
    await one.flush()
    two = await opened(path)
    found = await two.find("t", chain([*wires, user("on")]))
    assert found is not None
    assert same(found.turn, turn)
    await asyncio.gather(one.close(), two.close())


async def test_a_turn_reaches_other_processes_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    one, two = await opened(path), await opened(path)
    wires, turn = await converse(one, 1)
    async with asyncio.timeout(10):
        while (found := await two.find("t", chain([*wires, user("on")]))) is None or not found.at_reply:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert same(found.turn, turn)
    await asyncio.gather(one.close(), two.close())


async def test_closing_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    await converse(ledger, 5)
    assert sum(one.stat().st_size for one in journals(path)) > 0
    await ledger.close()
    assert journals(path) == []
    assert in_file(path) == 5


async def test_what_the_file_does_not_take_at_the_end_stays_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    await converse(ledger, 3)
    await ledger.close()
    holder.close()
    assert len(journals(path)) == 2
    assert await number_of(path, "c") == 3
    assert journals(path) == []


async def test_the_journal_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    largest = 0
    for number in range(120):
        wires = [user(f"{number} " + "x" * 500_000)]
        await answer(ledger, await ledger.commit("t", new_turn(wires, conversation=f"{number}")), wires, "y")
        largest = max(largest, sum(one.stat().st_size for one in journals(path)))
    await ledger.flush()
    assert 500_000 < largest < 12_000_000
    assert sum(one.stat().st_size for one in journals(path)) == 0
    assert in_file(path) == 120
    await ledger.close()


async def test_a_file_that_fails_for_long_costs_a_bounded_journal(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    for number in range(40):
        await ledger.commit("t", new_turn([user(f"{number} " + "x" * 1_000_000)], conversation=f"{number}"))
    assert 30_000_000 < sum(one.stat().st_size for one in journals(path)) < 40_000_000
    wires, turn = await converse(ledger, 2, "memory alone")
    assert at(await ledger.find("t", chain([*wires, user("on")]))) == (turn.id, len(wires), True)
    holder.close()
    await ledger.flush()
    # What goes on from a turn that was not taken is kept whole.
    more = [*wires, user("on")]
    await answer(ledger, await ledger.commit("t", new_turn(more, turn, conversation="memory alone")), more, "x")
    await ledger.close()
    assert await number_of(path, "memory alone") == 3
    assert 30 < in_file(path) < 40


@contextmanager
def no_space_beside(path: Path) -> Generator[None]:
    """The journal cannot grow, the file can take some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(one.stat().st_size for one in journals(path)) + 100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_no_space_for_the_journal_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    await converse(ledger, 1, "before")
    with no_space_beside(path):
        wires, turn = await converse(ledger, 3, "during")
        assert at(await ledger.find("t", chain([*wires, user("on")]))) == (turn.id, len(wires), True)
        assert ledger.stats().failures > 0
    warnings = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "no space" in warnings[0]
    assert str(tmp_path) not in warnings[0]
    await ledger.flush()
    failures = ledger.stats().failures
    # Then it goes on: what comes now is in the journal again, and what came is in the file.
    await converse(ledger, 2, "after")
    assert sum(one.stat().st_size for one in journals(path)) > 0
    assert ledger.stats().failures == failures
    await ledger.close()
    assert [await number_of(path, name) for name in ("before", "during", "after")] == [1, 3, 2]


async def test_half_an_entry_is_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = await opened(path)
    await converse(ledger, 2)
    with no_space_beside(path):
        wires = [user("x" * 5000)]
        await ledger.commit("t", new_turn(wires, conversation="large"))
        for one in journals(path):
            whole = decoded(one.read_bytes())
            assert sum(len(encoded(entry, with_tools=False)) for entry in whole) == one.stat().st_size
    await ledger.close()


def test_tools_are_in_the_journal_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    wires = [user("one")]

    async def work() -> None:
        ledger = await opened(path)
        for number in range(50):
            await ledger.commit("t", new_turn(wires, conversation=f"{number}", tools=(dict(TOOLS[0]),)))

    killed(work)
    assert 20_000 < sum(one.stat().st_size for one in journals(path)) < 80_000

    async def tools_of() -> object:
        ledger = await opened(path)
        turns = [await ledger.latest("t", f"{number}") for number in range(50)]
        await ledger.close()
        return {repr(turn and turn.tools) for turn in turns}

    assert asyncio.run(tools_of()) == {repr(TOOLS)}


def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    blobs = (b"d" * 64, b"[1]", "[\u00e9]".encode())
    tools = (b"t" * 32, b"[]")
    columns = (7, "t", "c\u00e9", 3, 5, 1, 2, 9, b"c" * 32, tools[0], b"{}", 0, "p", *blobs)
    one = Addition(7, "t", 5, True, b"c" * 32, 4, tools, columns)
    bare = Addition(
        8, "t", None, False, b"c" * 32, 4, None, (8, *columns[1:4], None, *columns[5:9], None, *columns[10:])
    )
    reply = Answer(7, "t", b"r" * 32, b"n" * 32, 4, (7, b"r" * 32, *blobs))
    data = encoded(one, with_tools=True) + encoded(one, with_tools=False) + encoded(reply, with_tools=False)
    entries = decoded(data + encoded(bare, with_tools=False))
    assert numbered(entries) == [(7, False), (7, False), (7, True), (8, False)]
    assert entries == [one, one, reply, bare]


def test_a_journal_that_another_one_removed_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "ledger.db")
    assert not journal.is_there
    journal.open()
    assert journal.is_there
    journals(tmp_path / "ledger.db")[0].unlink()
    assert not journal.is_there
    journal.close(remove=True)
    assert journals(tmp_path / "ledger.db") == []
