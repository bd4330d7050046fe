"""The ledger's file is shared, its owner's alone, and bounded."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

from context.ledger import Ledger
from tests.contract.ledger_chats import answer, assistant, at, chain, converse, new_turn, same, user
from tests.contract.ledger_rigs import opened


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
