"""What a ledger forgets by age, on a file and in memory, and what newer turns need of it."""

from __future__ import annotations

from context.plan import Turn
from tests.contract.ledger_chats import (
    Wire,
    answer,
    assistant,
    at,
    chain,
    converse,
    new_turn,
    same,
    system,
    user,
)
from tests.contract.ledger_rigs import DAY, Rig, rig

__all__ = ["rig"]


async def test_a_window_that_drops_the_middle_each_turn(rig: Rig) -> None:
    turn: Turn | None = None
    wires: list[Wire] = []
    for number in range(200):
        # A message stays as it was first seen, however many turns ago that was.
        first = system() if not number else {"content": "You are kind.", "role": "system"}
        wires = [first, *(user(f"message {one}") for one in range(max(1, number - 5), number + 1))]
        turn = await rig.ledger.commit("t", new_turn(wires, turn))
        rig.clock.now += DAY
    assert turn is not None
    assert list(turn.client[0].wire) == ["role", "content"]
    # What a turn is based on does not reach back for ever.
    await rig.ledger.prune(rig.clock.now)
    assert rig.ledger.stats().turns < 60
    ledger = await rig.again()
    found = await ledger.find("t", chain(wires))
    assert found is not None
    assert same(found.turn, turn)


async def test_pruning_by_age_keeps_what_newer_turns_are_based_on(rig: Rig) -> None:
    old, _ = await converse(rig.ledger, 4, "old")
    going_on, trunk = await converse(rig.ledger, 4, "going on")
    rig.clock.now += 20 * DAY
    request = [*going_on, user("still here")]
    kept = await rig.ledger.commit("t", new_turn(request, trunk, conversation="going on"))
    rig.clock.now += 20 * DAY
    ledger = await rig.again()
    assert await ledger.prune(rig.clock.now) == 4
    for _ in range(2):
        assert await ledger.find("t", chain(old)) is None
        assert await ledger.latest("t", "old") is None
        found = await ledger.find("t", chain(request))
        assert found is not None
        assert same(found.turn, kept)
        assert at(await ledger.find("t", chain(going_on))) == (trunk.id, len(going_on), True)
        ledger = await rig.again()
    rig.clock.now += 20 * DAY
    assert await rig.ledger.prune(rig.clock.now) == 5
    assert await rig.ledger.find("t", chain(request)) is None
    assert await rig.ledger.prune(rig.clock.now) == 0


async def test_a_pruned_turn_does_not_take_a_newer_ones_place(rig: Rig) -> None:
    wires = [system(), user("one")]
    await rig.ledger.commit("t", new_turn(wires))
    rig.clock.now += 20 * DAY
    newer = await rig.ledger.commit("t", new_turn(wires))
    rig.clock.now += 20 * DAY
    assert await rig.ledger.prune(rig.clock.now) == 1
    ledger = await rig.again()
    assert at(await ledger.find("t", chain(wires))) == (newer.id, 2, False)


async def test_a_turn_goes_on_from_one_that_was_pruned(rig: Rig) -> None:
    wires, trunk = await converse(rig.ledger, 2)
    rig.clock.now += 31 * DAY
    await rig.ledger.prune(rig.clock.now)
    request = [*wires, user("on")]
    kept = await rig.ledger.commit("t", new_turn(request, trunk))
    kept = await answer(rig.ledger, kept, request, "x")
    ledger = await rig.again()
    found = await ledger.find("t", chain([*request, assistant("x"), user("and on")]))
    assert found is not None
    assert same(found.turn, kept)
    assert len(found.turn.client) == len(request) + 1
