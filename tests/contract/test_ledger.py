"""One contract for the ledger on a file and the one in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from context.images.base import ImageRef
from context.ledger import Ledger, LedgerLimits
from context.plan import SentMessage, Turn
from context.transcript import ImagePart
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
    spelled,
    system,
    user,
)

DAY = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A ledger and how to open it once more: `again` empties the memory, where there is a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.clock = path, Clock()
        self.limits = LedgerLimits()
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    async def open(self) -> Rig:
        self._ledger = await Ledger.open(self.path, self.limits, clock=self.clock, retry_seconds=0)
        return self

    async def again(self) -> Ledger:
        if self.path is not None:
            await self.ledger.close()
            await self.open()
        return self.ledger


@pytest_asyncio.fixture(params=["file", "memory"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Rig]:
    made = await Rig(tmp_path / "new" / "ledger.db" if request.param == "file" else None).open()
    yield made
    assert made.ledger.stats().failures == 0
    await made.ledger.close()


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


async def test_every_turn_of_a_conversation_comes_back_as_it_was(rig: Rig) -> None:
    wires: list[Wire] = [system()]
    kept: Turn | None = None
    all_kept: list[tuple[list[Wire], Turn]] = []
    for number in range(12):
        wires.append(user(f"question {number}", number))
        kept = await rig.ledger.commit("t", new_turn(wires, kept, state={"turn": number}, epoch=number, policy="p@1"))
        kept = await answer(rig.ledger, kept, wires, f"answer {number}")
        wires.append(assistant(f"answer {number}"))
        all_kept.append((list(wires), kept))
    ledger = await rig.again()
    for whole, turn in reversed(all_kept):
        found = await ledger.find("t", chain([*whole, user("other")]))
        assert at(found) == (turn.id, len(whole), True)
        assert found is not None
        assert same(found.turn, turn)
        assert found.turn.number == len(whole) // 2
        assert found.turn.state == {"turn": found.turn.number - 1}


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


async def test_a_message_stays_as_it_was_first_seen(rig: Rig) -> None:
    first = [system(), {"role": "user", "content": "one"}]
    turn = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(first)), first, "a")
    otherwise = [system(), {"content": [{"type": "text", "text": "one"}], "role": "user"}, assistant("a"), user("two")]
    found = await rig.ledger.find("t", chain(otherwise))
    assert at(found) == (turn.id, 3, True)
    after = await rig.ledger.commit("t", new_turn(otherwise, turn))
    assert after.client[1].wire == first[1]
    ledger = await rig.again()
    found = await ledger.find("t", chain(otherwise))
    assert found is not None
    assert same(found.turn, after)


async def test_what_is_sent_otherwise_is_kept_byte_for_byte(rig: Rig) -> None:
    wires, parent = await converse(rig.ledger, 3)
    request = [*wires, user("four", 4)]
    # The same keys in another order, a part that is gone, and one that the gateway put in.
    sent: list[Wire] = [{"content": "You are kind.", "role": "system"}, *request[1:3], request[-1]]
    new = new_turn(request, parent, sent=sent)
    summary = SentMessage({"role": "user", "content": "[summary]"}, None)
    sources = (SentMessage(sent[0], 0), summary, *(SentMessage(wire, 3) for wire in sent[1:]))
    kept = await rig.ledger.commit("t", replace(new, sent=sources))
    ledger = await rig.again()
    found = await ledger.find("t", chain(request))
    assert found is not None
    assert same(found.turn, kept)
    assert spelled(found.turn)[len(request) :][: len(sources)] == [repr(one) for one in sources]
    assert list(found.turn.sent[0].wire) == ["content", "role"]


async def test_keys_come_back_in_the_order_in_which_they_were_sent(rig: Rig) -> None:
    await rig.ledger.commit("t", new_turn([system()], sent=[{"content": "You are kind.", "role": "system"}]))
    ledger = await rig.again()
    found = await ledger.find("t", chain([system()]))
    assert found is not None
    assert list(found.turn.client[0].wire) == ["role", "content"]
    assert list(found.turn.sent[0].wire) == ["content", "role"]


async def test_images_come_back_as_references(rig: Rig) -> None:
    part = ImagePart(ImageRef("7" * 64, 320, 200, "image/png", 1007))
    exact = replace(part, detail="high")
    wires: list[Wire] = [{"role": "user", "content": [exact, {"type": "text", "text": "this"}, part]}]
    await rig.ledger.commit("t", new_turn(wires))
    ledger = await rig.again()
    found = await ledger.find("t", chain(wires))
    assert found is not None
    assert found.turn.sent[0].images == (exact, part)
    assert [image for _, image in found.turn.client[0].images] == [exact, part]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "\x00",
            "a\x00b",
            "\u2028\u2029",
            "\U0001f9ea" * 3,
            "e\u0301 and \u00e9",
            "[1,2]",
            '"\\u0041\\',
            "\ufeff",
        ),
        *("'; DROP TABLE turns; --", "\ud83d", "\uffff\ufffe", "x" * 2_000_000),
    ],
)
async def test_odd_texts(rig: Rig, text: str) -> None:
    client = messages([user("plain")])
    kept = await rig.ledger.commit("t", new_turn([user("plain")], sent=[{"role": "user", "content": text}]))
    ledger = await rig.again()
    found = await ledger.find("t", chain([user("plain")]))
    assert found is not None
    assert found.turn.client == client
    assert same(found.turn, kept)
    assert found.turn.sent[0].wire["content"] == text


@pytest.mark.parametrize("value", [0, -1, 2**70, 1.0, -0.0, 1e22, 5e-324, float("inf"), True, None, [], {}, [[1]]])
async def test_odd_values(rig: Rig, value: object) -> None:
    wires: list[Wire] = [{"role": "user", "content": "x", "extra": value}]
    kept = await rig.ledger.commit("t", new_turn(wires, state={"value": value}, tools=({"b": value, "a": [value]},)))
    ledger = await rig.again()
    found = await ledger.find("t", chain(wires))
    assert found is not None
    assert same(found.turn, kept)
    assert repr(found.turn.client[0].wire["extra"]) == repr(value)


async def test_tools_come_back_as_they_were_sent(rig: Rig) -> None:
    one: tuple[Wire, ...] = ({"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}},)
    two: tuple[Wire, ...] = ({"type": "function", "function": {"parameters": {"a": 2, "b": 1}, "name": "f"}},)
    wires = [user("one")]
    turn = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(wires, tools=one)), wires, "a")
    more = [*wires, assistant("a"), user("two")]
    await rig.ledger.commit("t", new_turn(more, turn, tools=two))
    none = [*wires, assistant("a"), user("three")]
    await rig.ledger.commit("t", new_turn(none, turn, tools=None))
    ledger = await rig.again()
    for request, tools in ((wires, one), (more, two), (none, None)):
        found = await ledger.find("t", chain(request))
        assert found is not None
        assert repr(found.turn.tools) == repr(tools)


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
