"""Which turn a ledger finds: one contract for the ledger on a file and the one in memory."""

from __future__ import annotations

import asyncio

from tests.contract.ledger_chats import (
    Wire,
    answer,
    assistant,
    at,
    chain,
    converse,
    messages,
    new_turn,
    same,
    system,
    user,
)
from tests.contract.ledger_rigs import DAY, Rig, rig

__all__ = ["rig"]


async def test_the_next_turn_is_found_at_the_reply(rig: Rig) -> None:
    first = [system(), user("one", 1)]
    turn = await rig.ledger.commit("t", new_turn(first))
    turn = await answer(rig.ledger, turn, first, "answer")
    ledger = await rig.again()
    found = await ledger.find("t", chain([*first, assistant("answer"), user("two", 2)]))
    assert at(found) == (turn.id, 3, True)
    assert found is not None
    assert same(found.turn, turn)
    assert found.turn.replied
    assert [message.role for message in found.turn.client] == ["system", "user", "assistant"]
    assert [one.source for one in found.turn.sent] == [0, 1, 2]


async def test_a_turn_is_found_before_its_reply(rig: Rig) -> None:
    wires = [system(), user("one")]
    turn = await rig.ledger.commit("t", new_turn(wires))
    ledger = await rig.again()
    found = await ledger.find("t", chain([*wires, assistant("as the client has it"), user("two")]))
    assert at(found) == (turn.id, 2, False)
    assert found is not None
    assert not found.turn.replied
    assert len(found.turn.client) == len(found.turn.sent) == 2


async def test_a_turn_is_found_while_it_is_being_written(rig: Rig) -> None:
    wires = [system(), user("one")]
    writing = asyncio.create_task(rig.ledger.commit("t", new_turn(wires)))
    await asyncio.sleep(0)
    found = await rig.ledger.find("t", chain([*wires, user("two")]))
    assert at(found) == ((await writing).id, 2, False)


async def test_a_regeneration_is_found_at_the_request_and_then_wins(rig: Rig) -> None:
    wires = [system(), user("one")]
    first = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(wires)), wires, "a")
    found = await rig.ledger.find("t", chain(wires))
    assert at(found) == (first.id, 2, False)
    second = await rig.ledger.commit("t", new_turn(wires, first, sent=[system(), user("one")]))
    second = await answer(rig.ledger, second, wires, "b")
    ledger = await rig.again()
    assert at(await ledger.find("t", chain(wires))) == (second.id, 2, False)
    assert at(await ledger.find("t", chain([*wires, assistant("b"), user("two")]))) == (second.id, 3, True)
    # The one before stays a parent to go on from.
    older = await ledger.find("t", chain([*wires, assistant("a"), user("two")]))
    assert at(older) == (first.id, 3, True)
    assert older is not None
    assert same(older.turn, first)


async def test_a_late_reply_of_an_older_turn_does_not_win(rig: Rig) -> None:
    wires = [system(), user("one")]
    first = await rig.ledger.commit("t", new_turn(wires))
    second = await rig.ledger.commit("t", new_turn(wires))
    await answer(rig.ledger, second, wires, "same")
    await answer(rig.ledger, first, wires, "same")
    ledger = await rig.again()
    assert at(await ledger.find("t", chain([*wires, assistant("same"), user("two")]))) == (second.id, 3, True)


async def test_branches_go_their_own_ways(rig: Rig) -> None:
    wires, trunk = await converse(rig.ledger, 3)
    left = [*wires, user("left")]
    right = [*wires, user("right", 9)]
    one = await rig.ledger.commit("t", new_turn(left, trunk))
    two = await rig.ledger.commit("t", new_turn(right, trunk))
    one = await answer(rig.ledger, one, left, "l")
    two = await answer(rig.ledger, two, right, "r")
    ledger = await rig.again()
    for branch, reply, turn in ((left, "l", one), (right, "r", two)):
        found = await ledger.find("t", chain([*branch, assistant(reply), user("on")]))
        assert at(found) == (turn.id, len(branch) + 1, True)
        assert found is not None
        assert same(found.turn, turn)


async def test_parallel_turns_of_one_conversation(rig: Rig) -> None:
    wires, trunk = await converse(rig.ledger, 2)
    requests = [[*wires, user(f"way {number}")] for number in range(20)]
    turns = await asyncio.gather(*(rig.ledger.commit("t", new_turn(one, trunk)) for one in requests))
    await asyncio.gather(
        *(answer(rig.ledger, turn, one, "x") for turn, one in zip(turns, requests, strict=True)),
        *(rig.ledger.find("t", chain([*one, assistant("x")])) for one in requests),
    )
    ledger = await rig.again()
    for turn, one in zip(turns, requests, strict=True):
        assert at(await ledger.find("t", chain([*one, assistant("x"), user("on")]))) == (turn.id, len(one) + 1, True)


async def test_the_longest_known_prefix_is_found(rig: Rig) -> None:
    wires, last = await converse(rig.ledger, 40)
    ledger = await rig.again()
    longer = [*wires, user("a"), assistant("unseen"), user("b")]
    assert at(await ledger.find("t", chain(longer))) == (last.id, len(wires), True)
    edited = [*wires[:21], user("edited"), *wires[22:]]
    found = await ledger.find("t", chain(edited))
    assert found is not None
    assert (found.length, found.at_reply, found.turn.number) == (21, True, 10)
    assert await ledger.find("t", chain([system("another"), *wires[1:]])) is None
    assert await ledger.find("t", chain([system()])) is None
    assert await ledger.find("t", ()) is None


async def test_tenants_share_nothing_even_where_their_chains_are_equal(rig: Rig) -> None:
    wires = [system(), user("one")]
    digests = chain(wires)
    theirs = await rig.ledger.commit("t", new_turn(wires))
    ledger = await rig.again()
    assert await ledger.find("other", digests) is None
    assert await ledger.latest("other", "c") is None
    # One who names another tenant's turn gets a turn of its own, and does not touch the other's.
    more: list[Wire] = [{"content": "You are kind.", "role": "system"}, user("one"), user("two")]
    mine = await ledger.commit("other", new_turn(more, theirs))
    assert list(mine.client[0].wire) == ["content", "role"]
    await answer(ledger, theirs, wires, "x", "other")
    ledger = await rig.again()
    found = await ledger.find("other", chain(more))
    assert found is not None
    assert same(found.turn, mine)
    assert at(await ledger.find("t", chain(more))) == (theirs.id, 2, False)
    kept = await ledger.latest("t", "c")
    assert kept is not None
    assert not kept.replied


async def test_the_latest_turn_of_a_conversation(rig: Rig) -> None:
    assert await rig.ledger.latest("t", "c") is None
    _, turn = await converse(rig.ledger, 5)
    await converse(rig.ledger, 2, "another")
    ledger = await rig.again()
    latest = await ledger.latest("t", "c")
    assert latest is not None
    assert same(latest, turn)


async def test_a_turn_is_found_by_its_reply_alone(rig: Rig) -> None:
    first = [system(), user("one")]
    await answer(rig.ledger, await rig.ledger.commit("t", new_turn(first)), first, "said")
    rig.clock.now += 20 * DAY
    second = [system("another"), user("two"), assistant("x"), user("three")]
    newer = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(second)), second, "said")
    said = messages([assistant("said")])[0].digest
    ledger = await rig.again()
    found = await ledger.answered("t", said)
    assert found is not None
    assert same(found, newer)
    assert await ledger.answered("other", said) is None
    assert await ledger.answered("t", chain(second)[-1]) is None
    rig.clock.now += 20 * DAY
    await ledger.prune(rig.clock.now)
    assert await ledger.answered("t", said) == newer
    rig.clock.now += 20 * DAY
    await ledger.prune(rig.clock.now)
    ledger = await rig.again()
    assert await ledger.answered("t", said) is None


async def test_the_first_reply_stays(rig: Rig) -> None:
    wires = [user("one")]
    turn = await rig.ledger.commit("t", new_turn(wires))
    first = await answer(rig.ledger, turn, wires, "first")
    assert await answer(rig.ledger, turn, wires, "second") == first
    assert await answer(rig.ledger, first, wires, "third") == first
    ledger = await rig.again()
    assert await ledger.latest("t", "c") == first


async def test_stats(rig: Rig) -> None:
    wires, _ = await converse(rig.ledger, 3)
    ledger = await rig.again()
    await ledger.find("t", chain([*wires, user("a")]))
    await ledger.find("t", chain([*wires, user("a")]))
    await ledger.find("t", chain([user("never")]))
    stats = ledger.stats()
    assert (stats.turns, stats.failures) == (3, 0)
    assert stats.memory_bytes > 0
    if rig.path is not None:
        assert (stats.hits, stats.store_hits, stats.misses) == (1, 1, 1)
        assert stats.file_bytes >= rig.path.stat().st_size > 0
