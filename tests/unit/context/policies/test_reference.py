"""Names in the history, images at the tail."""

from __future__ import annotations

from typing import Any

import pytest

from context.conversations import Begun
from context.layout.tail import with_tail
from context.policies.base import Limits, Request, Rules
from context.policies.keep import STABLE
from context.policies.reference import Reference
from context.transcript import ImagePart
from tests.unit.context.policies.sessions import (
    SYSTEM,
    Session,
    Wire,
    brief,
    calls,
    result,
    same_start,
    session,
    shot,
    shots,
    text,
    user,
)


def numbered(*names: str) -> list[ImagePart]:
    """Images whose ids start with these letters."""
    return [ImagePart(type(shot(0).ref)(name.ljust(64, "0"), 1280, 800, "image/png", 9000)) for name in names]


def tail(begun: Begun) -> list[int]:
    """The screenshots at the tail, in order."""
    return [int(part.ref.image_id, 16) for part in begun.plan.tail if isinstance(part, ImagePart)]


def name(number: int, turn: int, chars: int = 16) -> Wire:
    return text(f"[image_id {shot(number).ref.image_id[:chars]} 1280x800, turn {turn}]")


WHOLE = Reference(id_chars=64)


async def test_the_history_holds_names_and_each_turn_extends_the_one_before() -> None:
    async with session(WHOLE, Request(), SYSTEM) as client:
        turns = await client.steps(1, 5)
    for number, turn in enumerate(turns, 1):
        assert tail(turn) == [number]
        assert shots(turn) == []
        assert not turn.plan.breaks
        assert same_start(turn) == len(turn.before)
        assert turn.plan.sent[-1].wire["content"] == [name(number, number, 64), text(f"step {number}")]
        assert turn.plan.tail == (name(number, number, 64), shot(number))


async def test_the_prompt_begins_with_the_one_before_up_to_its_tail() -> None:
    async with session(WHOLE) as client:
        first, second = await client.steps(1, 3)
    whole = with_tail(first.plan.sent, first.plan.tail)[-1].wire["content"]
    kept = second.plan.sent[0].wire["content"]
    assert whole[: len(kept)] == kept
    assert whole[len(kept) :] == [text("\n\n" + name(1, 1, 64)["text"]), shot(1)]


async def test_an_image_keeps_the_turn_in_which_it_first_came() -> None:
    async with session(WHOLE) as client:
        await client.ask(user("a", 1))
        await client.ask(user("b", 2))
        again = await client.ask(user("c", 1))
    assert again.plan.sent[-1].wire["content"][0] == name(1, 1, 64)
    assert again.plan.tail == (name(1, 1, 64), shot(1))


async def test_names_are_the_same_without_the_ledger() -> None:
    async with session(WHOLE) as client:
        turns = await client.steps(1, 5)
        history = client.history[:-1]
    async with session(WHOLE, Request(), *history) as cold:
        again = await cold.ask()
    assert [one.wire for one in again.plan.sent] == [one.wire for one in turns[-1].plan.sent]
    assert again.plan.tail == turns[-1].plan.tail


async def test_a_client_that_keeps_the_last_images_breaks_nothing() -> None:
    """What it cuts had been taken out before."""
    async with session(WHOLE) as client:
        await client.steps(1, 4)
        client.history[0] = user("step 1")
        client.history[0]["content"] = [text("step 1")]
        turn = await client.ask(user("step 4", 4), reply="did 4")
    assert brief(turn) == []
    assert same_start(turn) == len(turn.before)
    assert turn.plan.sent[-1].wire["content"][0] == name(4, 4, 64)


WORDS = ["what was on {id}?", "[image_id {id} 1280x800, turn 1] again", "see {id:.20}..."]


@pytest.mark.parametrize("words", WORDS)
async def test_an_image_that_is_named_is_shown_again_once(words: str) -> None:
    images = numbered("abcdef0123456789aa", "abcdef0123456789bb")
    async with session(WHOLE) as client:
        for image in images:
            await client.ask({"role": "user", "content": [image, text("look")]})
        asked = words.format(id=images[1].ref.image_id)
        turn = await client.ask(user(f"{asked} and {asked}"))
        assert [part for part in turn.plan.tail if isinstance(part, ImagePart)] == [images[1]]
        assert turn.plan.tail[0]["text"].endswith("turn 2]")
        later = await client.ask(user("thanks"))
        assert later.plan.tail == ()
        assert same_start(later) == len(later.before)


@pytest.mark.parametrize("words", ["abcdef0123456789", "abcdef01234", "00abcdef0123456789aa", "no name"])
async def test_what_names_no_one_image_shows_none(words: str) -> None:
    async with session(WHOLE) as client:
        for image in numbered("abcdef0123456789aa", "abcdef0123456789bb"):
            await client.ask({"role": "user", "content": [image, text("look")]})
        turn = await client.ask(user(words))
        assert turn.plan.tail == ()


async def test_images_come_in_the_order_in_which_they_were_named() -> None:
    ids = [shot(number).ref.image_id for number in range(4)]
    async with session(WHOLE) as client:
        await client.ask(user("look", 1))
        await client.ask(user("look", 2), reply=f"Show me {ids[1]} again.")
        turn = await client.ask(user(f"here: {ids[2]}", 3))
        assert tail(turn) == [1, 2, 3]
        off = Session(client.conversations, Reference(recall=False), history=client.history[:-2])
        assert tail(await off.ask(user(f"here: {ids[2]}", 3))) == [3]


async def test_a_call_may_name_an_image() -> None:
    call = calls("c")
    call["tool_calls"][0]["function"]["arguments"] = f'{{"look": "{shot(1).ref.image_id}"}}'
    async with session(WHOLE) as client:
        await client.ask(user("look", 1))
        await client.ask(user("on", 2), reply=call)
        turn = await client.ask(result("c"))
    assert tail(turn) == [1, 2]


async def test_images_of_tool_results_are_at_the_tail_of_their_step() -> None:
    async with session(WHOLE, Request(), SYSTEM) as client:
        await client.ask(user("book a table", 1), reply=calls("a", "b"))
        step = await client.ask(result("a", 2), result("b", 3), reply=calls("c"))
        assert tail(step) == [1, 2, 3]
        assert step.plan.sent[3].wire["content"] == [text("done"), name(2, 2, 64)]
        sent = with_tail(step.plan.sent, step.plan.tail)
        # Nothing may stand behind a result in its own message.
        assert [one.wire["role"] for one in sent[-2:]] == ["tool", "user"]
        next_step = await client.ask(result("c", 4))
        # The question's own image goes with every step, those of finished steps do not.
        assert tail(next_step) == [1, 4]
        assert same_start(next_step) == len(next_step.before)


async def test_hoisted_images_are_at_the_tail_alone() -> None:
    async with session(Reference(rules=Rules(tool_images="hoist"))) as client:
        await client.ask(user("go"), reply=calls("a"))
        step = await client.ask(result("a", 2))
    assert (tail(step), shots(step)) == ([2], [])
    assert [one.wire["role"] for one in step.plan.sent] == ["user", "assistant", "tool"]


async def test_images_of_earlier_turns_may_be_shown_longer() -> None:
    async with session(Reference(keep_turns=2)) as client:
        turns = await client.steps(1, 6)
    assert [tail(turn) for turn in turns] == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


async def test_the_engine_limit_leaves_this_turns_images() -> None:
    request = Request(limits=Limits(max_images=3))
    async with session(Reference(keep_turns=5), request) as client:
        await client.steps(1, 5)
        turn = await client.ask(user("two", 5, 6))
    assert tail(turn) == [4, 5, 6]
    assert not turn.plan.breaks


async def test_pinned_images_stay_where_they_are() -> None:
    request = Request(pins=frozenset({shot(1).ref.image_id}))
    async with session(WHOLE, request) as client:
        first = await client.ask(user("look", 1, 2))
        assert (shots(first), tail(first)) == ([1], [2])
        later = await client.ask(user("on"))
        assert (shots(later), tail(later)) == ([1], [])
        client.request = Request(pins=frozenset({shot(2).ref.image_id}))
        pinned_late = await client.ask(user("on"))
        assert tail(pinned_late) == [2]
        assert not pinned_late.plan.breaks


async def test_images_of_system_messages_stay_where_they_are() -> None:
    system: Wire = {"role": "system", "content": [shot(7), text("This is the logo.")]}
    async with session(WHOLE, Request(), system) as client:
        turn = await client.ask(user("hi"))
    assert turn.plan.sent[0].wire == system
    assert turn.plan.tail == ()


async def test_what_another_policy_sent_stays_as_it_was_sent() -> None:
    async with session(STABLE) as client:
        await client.steps(1, 3)
        client.policy = WHOLE
        turn = await client.ask(user("step 3", 3))
    assert shots(turn) == [1, 2]
    assert tail(turn) == [3]
    assert not turn.plan.breaks


async def test_a_regeneration_shows_the_same() -> None:
    async with session(WHOLE) as client:
        await client.steps(1, 3)
        client.history.pop()
        again = await client.ask(reply="did 2")
    assert tail(again) == [2]
    assert again.plan.sent[-1].wire["content"][0] == name(2, 2, 64)


async def test_short_names_that_two_images_share_are_whole() -> None:
    images = numbered("abcdef0123456789aa", "abcdef0123456789bb")
    async with session(Reference(id_chars=16)) as client:
        turn = await client.ask({"role": "user", "content": [*images, text("compare"), shot(3)]})
    named: list[Any] = [
        part["text"].split()[1] for part in turn.plan.sent[0].wire["content"] if part != text("compare")
    ]
    assert named == [images[0].ref.image_id, images[1].ref.image_id, shot(3).ref.image_id[:16]]


async def test_a_reply_that_the_client_has_begun_stays_last() -> None:
    async with session(WHOLE) as client:
        turn = await client.ask(user("draw", 1), {"role": "assistant", "content": "Here"}, reply=None)
    assert tail(turn) == [1]
    sent = with_tail(turn.plan.sent, turn.plan.tail)
    assert [one.wire["role"] for one in sent] == ["user", "assistant"]
    assert sent[0].wire["content"][-1] == shot(1)
