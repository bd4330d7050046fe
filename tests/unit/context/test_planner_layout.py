"""What the planner makes of new messages and of volatile text, over a real ledger in memory."""

from __future__ import annotations

from typing import Any

import pytest

from context.conversations import Begun
from context.images.base import ImageRef
from context.layout.tail import with_tail
from context.plan import SentMessage
from context.policies.base import Request, Rules
from context.policies.keep import OBSERVE, STABLE, KeepAll
from tests.unit.context.policies.sessions import (
    Session,
    Wire,
    brief,
    calls,
    named,
    result,
    same_start,
    session,
    shot,
    shots,
    text,
    user,
)

FREEZE = KeepAll("freeze", rules=Rules(volatile="freeze"))
TAIL = KeepAll("tail", rules=Rules(volatile="tail"))
HOIST = KeepAll("hoist", rules=Rules(tool_images="hoist"))
PHRASE = "[current date and time: given at the end of this conversation]"


def clock(second: int, more: str = "Use tools.") -> Wire:
    return {"role": "system", "content": f"Be brief. Current time: 2026-04-12T23:38:{second:02}.919Z. {more}"}


def value(second: int) -> Wire:
    return text(f"Current date and time: 2026-04-12T23:38:{second:02}.919Z")


def healed(begun: Begun) -> set[tuple[str, int]]:
    return {(one.what, one.message) for one in begun.plan.healed}


async def tick(client: Session, second: int, question: str, **changes: str) -> Begun:
    """The next turn of a client that writes the time into its instructions."""
    client.history[0] = clock(second, **changes)
    return await client.ask(user(question))


async def test_frozen_text_keeps_its_first_value() -> None:
    async with session(FREEZE, Request(), clock(1)) as client:
        await client.ask(user("one"))
        for second in (2, 3):
            turn = await tick(client, second, f"at {second}")
            assert turn.plan.sent[0].wire == clock(1)
            assert not turn.plan.breaks
            assert not turn.plan.tail
            assert healed(turn) == {("frozen", 0)}
            assert same_start(turn) == len(turn.before)


async def test_an_edit_behind_frozen_text_breaks_where_it_is() -> None:
    async with session(FREEZE, Request(), clock(1)) as client:
        await client.ask(user("one"))
        await tick(client, 2, "two")
        turn = await tick(client, 3, "three", more="Use no tools.")
    assert turn.plan.sent[0].wire == clock(1, "Use no tools.")
    (broken,) = turn.plan.breaks
    assert (broken.cause, broken.message) == ("client_edit", 0)


async def test_values_go_to_the_tail_and_a_phrase_stays() -> None:
    async with session(TAIL, Request(), clock(1)) as client:
        first = await client.ask(user("one"))
        assert PHRASE in first.plan.sent[0].wire["content"]
        assert first.plan.tail == (value(1),)
        for second in (2, 3):
            turn = await tick(client, second, f"at {second}")
            assert turn.plan.sent[0].wire == first.plan.sent[0].wire
            assert turn.plan.tail == (value(second),)
            assert not turn.plan.breaks
            assert healed(turn) == {("tail", 0)}
            assert same_start(turn) == len(turn.before)
        again = await client.ask(user("within the same second"))
        assert again.plan.tail == (value(3),)


async def test_an_edit_beside_a_value_at_the_tail_is_honoured() -> None:
    async with session(TAIL, Request(), clock(1)) as client:
        await client.ask(user("one"))
        turn = await tick(client, 2, "two", more="Use no tools.")
    content = turn.plan.sent[0].wire["content"]
    assert PHRASE in content
    assert content.endswith("Use no tools.")
    assert brief(turn) == [("client_edit", "client", 0)]
    assert turn.plan.tail == (value(2),)


async def test_what_was_sent_with_its_value_stays_and_todays_is_at_the_tail() -> None:
    async with session(STABLE, Request(), clock(1)) as client:
        await client.ask(user("one"))
        client.policy = TAIL
        same = await client.ask(user("two"))
        assert same.plan.tail == ()
        turn = await tick(client, 2, "three")
    assert turn.plan.sent[0].wire == clock(1)
    assert turn.plan.tail == (value(2),)
    assert not turn.plan.breaks


@pytest.mark.parametrize("policy", [FREEZE, TAIL])
async def test_old_questions_that_are_written_anew_are_sent_as_they_were(policy: KeepAll) -> None:
    """MC-022: a template that is filled in again for the whole history."""
    async with session(policy) as client:
        await client.ask(user("It is now 2026-04-12T23:38:01Z. What day is it?"))
        client.history[0] = user("It is now 2026-04-12T23:39:02Z. What day is it?")
        turn = await client.ask(user("It is now 2026-04-12T23:39:02Z. And tomorrow?"))
    assert turn.plan.sent[0].wire["content"] == "It is now 2026-04-12T23:38:01Z. What day is it?"
    assert turn.plan.sent[2].wire["content"] == "It is now 2026-04-12T23:39:02Z. And tomorrow?"
    assert not turn.plan.breaks


async def test_values_of_other_roles_go_to_the_tail_where_the_policy_says() -> None:
    rules = Rules(volatile="tail", volatile_roles=frozenset(("user",)))
    async with session(KeepAll("all", rules=rules)) as client:
        turn = await client.ask(user("Current time: 2026-04-12T23:38:01.919Z"))
    assert turn.plan.sent[0].wire["content"] == f"Current time: {PHRASE}"
    assert turn.plan.tail == (value(1),)


async def test_a_question_asked_again_at_another_time_is_not_yesterdays() -> None:
    async with session(TAIL, Request(), {"role": "system", "content": "Be kind."}) as client:
        await client.ask(user("one"))
        await client.ask(user("now: 2026-04-12T23:38:01Z"))
        client.history[-2:] = []
        turn = await client.ask(user("now: 2026-04-12T23:39:02Z"))
    assert turn.plan.sent[-1].wire["content"] == "now: 2026-04-12T23:39:02Z"


async def test_report_says_where_and_sends_what_came() -> None:
    async with session(STABLE, Request(), clock(1)) as client:
        await client.ask(user("one"))
        turn = await tick(client, 2, "two")
    assert turn.plan.sent[0].wire == clock(2)
    assert brief(turn) == [("volatile_text", "client", 0)]


async def test_images_of_results_stand_behind_a_group_that_began_before() -> None:
    async with session(HOIST) as client:
        await client.ask(user("go"), reply=calls("a", "b"))
        turn = await client.ask(result("a", 1), result("b", 2), reply="done")
        assert turn.plan.sent[2].wire["content"] == [text("done"), named(1)]
        assert turn.plan.sent[4].wire == {"role": "user", "content": [named(1), shot(1), named(2), shot(2)]}
        assert [one.origin for one in turn.plan.sent] == [*["client"] * 4, "hoisted"]
        later = await client.ask(user("thanks"))
        assert same_start(later) == len(later.before)
        assert shots(later) == [1, 2]


async def test_images_of_an_open_group_are_at_the_tail_until_it_is_whole() -> None:
    async with session(HOIST) as client:
        await client.ask(user("go"), reply=calls("a", "b"))
        waiting = await client.ask(result("a", 1), reply=None)
        assert (shots(waiting), waiting.plan.tail) == ([], (shot(1),))
        whole = await client.ask(result("b", 2))
    assert whole.plan.tail == ()
    assert whole.plan.sent[-1].wire["content"] == [named(1), shot(1), named(2), shot(2)]
    assert not whole.plan.breaks


async def test_a_result_that_was_edited_brings_its_group_new_images() -> None:
    async with session(HOIST) as client:
        await client.ask(user("go"), reply=calls("a"))
        await client.ask(result("a", 1), reply="done")
        client.history[2] = result("a", 3)
        turn = await client.ask(user("thanks"))
    assert shots(turn) == [3]
    assert brief(turn) == [("client_edit", "client", 2)]


def alike(one: ImageRef, two: ImageRef) -> bool:
    return abs(int(one.image_id, 16) - int(two.image_id, 16)) == 1


async def test_a_photo_that_was_encoded_anew_is_sent_as_it_was() -> None:
    async with session(STABLE, Request(slot_match=alike)) as client:
        await client.ask(user("look", 1))
        client.history[0] = user("look", 2)
        turn = await client.ask(user("on", 9))
        assert shots(turn) == [1, 9]
        assert healed(turn) == {("slot_match", 0)}
        assert not turn.plan.breaks
        client.history[0] = user("look", 7)
        other = await client.ask(user("on"))
        assert shots(other) == [7, 9]
        assert brief(other) == [("client_edit", "client", 0)]


async def test_no_photo_stands_for_another_unless_the_policy_says_so() -> None:
    async with session(STABLE) as client:
        await client.ask(user("look", 1))
        client.history[0] = user("look", 2)
        assert brief(await client.ask(user("on"))) == [("client_edit", "client", 0)]


async def test_control_tokens_that_were_broken_up_are_told() -> None:
    async with session(STABLE) as client:
        turn = await client.ask(user("say <|im_end|>"))
        assert healed(turn) == {("control_tokens", 0)}
        later = await client.ask(user("on"))
        assert healed(later) == set()
        assert same_start(later) == len(later.before)
    async with session(OBSERVE) as client:
        assert healed(await client.ask(user("say <|im_end|>"))) == set()


async def test_another_unicode_form_is_named() -> None:
    async with session(STABLE) as client:
        await client.ask(user("caf\u00e9"))
        client.history[0] = user("cafe\u0301")
        turn = await client.ask(user("on"))
    (broken,) = turn.plan.breaks
    assert broken.cause == "client_edit"
    assert "Unicode form" in broken.detail
    assert turn.plan.sent[0].wire["content"] == "cafe\u0301"


LAST: list[tuple[list[Wire], list[Wire]]] = [
    ([user("hi")], [{"role": "user", "content": [text("hi"), text("\n\nnow"), shot(1)]}]),
    ([{"role": "user", "content": [shot(2)]}], [{"role": "user", "content": [shot(2), text("\n\nnow"), shot(1)]}]),
    ([{"role": "user", "content": ""}], [{"role": "user", "content": [text(""), text("\n\nnow"), shot(1)]}]),
    ([result("a")], [result("a"), {"role": "user", "content": [text("now"), shot(1)]}]),
    (
        [user("hi"), {"role": "assistant", "content": "He"}],
        [
            {"role": "user", "content": [text("hi"), text("\n\nnow"), shot(1)]},
            {"role": "assistant", "content": "He"},
        ],
    ),
]


@pytest.mark.parametrize(("sent", "whole"), LAST)
def test_a_tail_stands_behind_everything(sent: list[Wire], whole: list[Wire]) -> None:
    ones = [SentMessage(wire, index) for index, wire in enumerate(sent)]
    given: list[Any] = [dict(wire) for wire in sent]
    assert [one.wire for one in with_tail(ones, [text("now"), shot(1)])] == whole
    assert sent == given
    assert with_tail(ones, ()) == tuple(ones)


def test_a_tail_that_begins_with_an_image_needs_no_empty_line() -> None:
    made = with_tail([SentMessage(user("hi"), 0)], [shot(1)])
    assert made[0].wire["content"] == [text("hi"), shot(1)]
    assert made[0].source == 0
