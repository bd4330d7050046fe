"""What a ledger gives back is what it was given, on a file and in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from context.images.base import ImageRef
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
from tests.contract.ledger_rigs import Rig, rig

__all__ = ["rig"]


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


@pytest.mark.parametrize("how", ["same", "respelled", "one respelled", "another reply", "shorter", "nothing"])
async def test_a_client_that_says_what_it_came_with_finds_the_same(rig: Rig, how: str) -> None:
    wires, parent = await converse(rig.ledger, 4)
    # The middle goes, so that what is kept is not what stands one after the other in the file.
    shorter = [*wires[:2], *wires[5:], user("five", 5)]
    kept = await answer(rig.ledger, await rig.ledger.commit("t", new_turn(shorter, parent)), shorter, "a")
    ledger = await rig.again()
    came: dict[str, list[Wire]] = {
        "same": [*shorter, assistant("a"), user("six")],
        "respelled": [dict(reversed(list(one.items()))) for one in (*shorter, assistant("a"))],
        "one respelled": [*shorter[:3], dict(reversed(list(shorter[3].items()))), *shorter[4:], assistant("a")],
        "another reply": [*shorter, assistant("b")],
        "shorter": list(shorter),
        "nothing": [],
    }
    found = await ledger.find("t", chain(came[how] or shorter), messages(came[how]))
    assert found is not None
    assert same(found.turn, kept)
    assert spelled(found.turn) == spelled(kept)


async def test_what_came_as_it_was_kept_is_not_held_twice(tmp_path: Path) -> None:
    rig = await Rig(tmp_path / "ledger.db").open()
    wires, _ = await converse(rig.ledger, 4)
    ledger = await rig.again()
    came = messages(wires)
    found = await ledger.find("t", chain(wires), came)
    assert found is not None
    assert [one is other for one, other in zip(found.turn.client, came, strict=True)] == [True] * len(came)
    assert all(one.wire is came[one.source or 0].wire for one in found.turn.sent)
    await ledger.close()
