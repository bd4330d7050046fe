"""One policy goes on where another one was in force: between any two, at any point of a conversation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import permutations
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from context.conversations import Begun
from context.layout.names import as_name
from context.layout.tail import with_tail
from context.plan import Cause
from context.policies.base import Limits, Policy, Request, Rules
from context.policies.batched import Batched
from context.policies.choice import load_policy
from context.policies.document import PRESETS
from context.policies.keep import OBSERVE, STABLE, KeepAll
from context.policies.reference import Reference
from context.policies.sliding import Sliding
from context.transcript import ImagePart, parts_of
from tests.unit.context.policies.every import POLICIES
from tests.unit.context.policies.sessions import (
    SYSTEM,
    Session,
    asked_now,
    brief,
    calls,
    result,
    same_start,
    session,
    shot,
    shots,
    spelled,
    user,
)
from tests.unit.context.policies.test_policy_properties import (
    TURN,
    check_order,
    check_tool_groups,
    summarized,
    take_turn,
)

EXAMPLES = 5000 if os.environ.get("STILLFRAME_LONG") == "1" else 200
PRESET: Mapping[str, Policy] = {name: load_policy(name) for name in PRESETS}
NOON, ONE = (f"The time is 2026-11-30T{hour}:00:00Z." for hour in (12, 13))
HOIST = KeepAll("hoist", rules=Rules(tool_images="hoist"))


def check_current(begun: Begun) -> None:
    """Each message of the current turn is sent, and each of its images is shown: a name never stands for one that is
    not."""
    messages = begun.transcript.messages
    shown = [image for one in with_tail(begun.plan.sent, begun.plan.tail) for image in one.images]
    ids = {image.ref.image_id for image in shown}
    sent = {one.source: one for one in begun.plan.sent}
    for at in asked_now(messages):
        assert {image.ref.image_id for _, image in messages[at].images} <= ids
        assert _said(sent[at].wire) == _said(messages[at].wire)


def _said(wire: Mapping[str, Any]) -> list[str]:
    texts = [part["text"] for part in parts_of(wire) if not isinstance(part, ImagePart)]
    return [text for text in texts if not as_name(text)]


def check_break(begun: Begun) -> None:
    """What is sent extends what was sent, or there is one break, with its cause, where they first differ."""
    plan, same = begun.plan, same_start(begun)
    assert plan.replayed == same
    if same in (len(begun.before), len(plan.sent)):
        assert not plan.breaks
    elif not plan.breaks:
        behind = next(one.source for one in plan.sent[same:] if one.source is not None)
        assert all(message.role != "assistant" for message in begun.transcript.messages[behind:])
    else:
        (broken,) = plan.breaks
        assert broken.cause in get_args(Cause)
        sources = [one.source for one in plan.sent[same:] if one.source is not None]
        assert broken.message <= sources[0]


@pytest.mark.timeout(3600 if EXAMPLES > 200 else 300)
@pytest.mark.parametrize("among", ["presets", "all"])
@settings(max_examples=EXAMPLES)
@given(limited=st.booleans(), turns=st.lists(st.tuples(TURN, st.integers(0, 99)), min_size=2, max_size=8))
async def test_each_turn_may_have_another_policy(among: str, limited: bool, turns: list[Any]) -> None:
    known: list[Policy] = list((PRESET if among == "presets" else POLICIES).values())
    request = Request(limits=Limits(max_images=5, max_prompt_tokens=9000) if limited else Limits())
    async with session(STABLE, request, SYSTEM) as one, session(STABLE, request, SYSTEM) as two:
        one.summarize = two.summarize = summarized
        for number, (turn, which) in enumerate(turns):
            one.policy = two.policy = known[which % len(known)]
            begun, again = await take_turn(one, number, *turn), await take_turn(two, number, *turn)
            assert spelled(begun.plan.sent) == spelled(again.plan.sent)
            check_current(begun)
            check_break(begun)
            check_order(begun)
            if known[which % len(known)] not in (OBSERVE, PRESET["observe"]):
                check_tool_groups(begun)


async def question(client: Session) -> None:
    await client.steps(0, 3)
    await client.ask(user("what is this?", 7), reply=None)


async def step(client: Session) -> None:
    await client.steps(0, 3)
    await client.ask(user("what is this?", 7), reply=calls("a", "b"))


async def open_group(client: Session) -> None:
    await step(client)
    await client.ask(result("a", 8), user("never mind b"), reply=None)


@pytest.mark.parametrize(("before", "after"), list(permutations(PRESETS, 2)))
@pytest.mark.parametrize("point", [question, step, open_group])
async def test_a_switch_in_the_middle_of_a_question_shows_its_images(point: Any, before: str, after: str) -> None:
    request = Request()
    async with session(PRESET[before], request, SYSTEM) as client:
        await point(client)
        client.policy = PRESET[after]
        new = [result("a", 8), result("b")] if point is step else []
        begun = await client.ask(*new, reply="a cat")
        check_current(begun)
        check_break(begun)
        following = await client.ask(user("and now?"))
    check_break(following)
    # Only `sliding`, which keeps three images, is to break what the new policy itself has sent.
    assert not following.plan.breaks or after == "sliding"


async def test_the_break_of_a_switch_names_the_policy_that_was_in_force() -> None:
    async with session(Reference(), Request(), SYSTEM) as client:
        await client.ask(user("what is this?", 7), reply=calls("a"))
        client.policy = STABLE
        begun = await client.ask(result("a"))
        assert brief(begun) == [("policy_eviction", "policy", 1)]
        assert begun.plan.breaks[0].detail == "the policy in force before, reference, had sent it in another way"
        assert begun.plan.epoch == 1
        following = await client.ask(user("and now?"))
    assert not following.plan.breaks


async def test_what_came_before_the_question_stays_named_after_a_switch() -> None:
    async with session(Reference(), Request(), SYSTEM) as client:
        await client.steps(0, 2)
        client.policy = STABLE
        begun = await client.ask(user("next", 2))
    assert shots(begun) == [2]
    assert not begun.plan.breaks


@pytest.mark.parametrize("volatile", ["report", "freeze"])
async def test_a_value_at_the_tail_comes_back_to_its_place(volatile: Any) -> None:
    system = {"role": "system", "content": NOON}
    async with session(KeepAll("tail", rules=Rules(volatile="tail")), Request(), system) as client:
        await client.ask(user("hi"))
        client.policy = KeepAll("other", rules=Rules(volatile=volatile))
        begun = await client.ask(user("what time is it?"))
    assert begun.plan.sent[0].wire["content"] == NOON
    assert brief(begun) == [("policy_eviction", "policy", 0)]


async def test_a_frozen_value_is_todays_again() -> None:
    system = {"role": "system", "content": NOON}
    async with session(KeepAll("frozen", rules=Rules(volatile="freeze")), Request(), system) as client:
        await client.ask(user("hi"))
        client.history[0] = {"role": "system", "content": ONE}
        frozen = await client.ask(user("and?"))
        client.policy = STABLE
        begun = await client.ask(user("what time is it?"))
    assert frozen.plan.sent[0].wire["content"] == NOON
    assert begun.plan.sent[0].wire["content"] == ONE


async def test_what_the_client_has_cut_is_sent_no_more_without_deferral() -> None:
    async with session(Batched("images", 9, 1, name="waits"), Request(), SYSTEM) as client:
        await client.steps(0, 3)
        client.history[1] = user("step 0")
        del client.history[3:5]
        waits = await client.ask(user("go on", 3), reply="x" * 200)
        client.policy = STABLE
        begun = await client.ask(user("next", 4))
    assert shots(waits) == [0, 1, 2, 3]
    assert shots(begun) == [2, 3, 4]
    assert [one.origin for one in begun.plan.sent] == ["client"] * len(begun.plan.sent)


@pytest.mark.parametrize("marker", [True, False])
async def test_what_was_evicted_stays_out_when_its_message_is_sent_anew(marker: bool) -> None:
    rules = Rules(volatile="tail", volatile_roles=frozenset(("user",)))
    async with session(Sliding(1, marker=marker, rules=rules), Request(), SYSTEM) as client:
        for number in range(3):
            await client.ask(user(NOON, number))
        client.policy = STABLE
        begun = await client.ask(user("next"))
    assert shots(begun) == [2]
    assert [_said(one.wire)[0] for one in begun.plan.sent[1::2]] == [NOON, NOON, NOON, "next"]


async def test_images_of_an_open_group_are_shown_in_each_turn_until_it_is_closed() -> None:
    async with session(HOIST, Request(), SYSTEM) as client:
        await client.ask(user("go"), reply=calls("a", "b"))
        first = await client.ask(result("a", 5), user("b takes long"), reply="well")
        client.history.pop()
        again = await client.ask(reply="well")
        later = await client.ask(user("and now?"))
        for turn in (first, again, later):
            assert turn.plan.tail == (shot(5),)
        check_break(later)


async def test_observe_sends_what_the_client_has_whatever_was_in_force() -> None:
    async with session(Reference(), Request(), SYSTEM) as client:
        await client.steps(0, 3)
        client.policy = OBSERVE
        begun = await client.ask(user("next", 3))
    assert shots(begun) == [0, 1, 2, 3]
    assert brief(begun) == [("policy_eviction", "policy", 1)]
