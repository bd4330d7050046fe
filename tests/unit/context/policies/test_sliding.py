"""Keep the last images, delete the others."""

from __future__ import annotations

from context.policies.base import Request
from context.policies.eviction import NOTHING_LEFT
from context.policies.keep import STABLE
from context.policies.sliding import Sliding
from tests.unit.context.policies.sessions import SYSTEM, brief, named, session, shot, shots, text, user


async def test_each_image_beyond_the_last_ones_is_a_break() -> None:
    async with session(Sliding(2), Request(), SYSTEM) as client:
        turns = await client.steps(0, 5)
    assert [shots(turn) for turn in turns] == [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert [brief(turn) for turn in turns] == [
        [],
        [],
        [("policy_eviction", "policy", 1)],
        [("policy_eviction", "policy", 3)],
        [("policy_eviction", "policy", 5)],
    ]
    assert turns[2].plan.sent[1].wire["content"] == [text("step 0")]
    # What was sent from that message on: it, its reply, the next step and that one's reply.
    estimate = Request().estimate
    assert turns[2].plan.breaks[0].lost_tokens == sum(estimate(one.wire) for one in turns[2].before[1:])


async def test_what_was_deleted_is_not_deleted_again() -> None:
    async with session(Sliding(2)) as client:
        await client.steps(0, 3)
        turn = await client.ask(user("and now?"))
    assert shots(turn) == [1, 2]
    assert not turn.plan.breaks


async def test_a_marker_may_stay() -> None:
    async with session(Sliding(1, marker=True)) as client:
        (_, turn) = await client.steps(0, 2)
    assert turn.plan.sent[0].wire["content"] == [named(0), text("step 0")]


async def test_a_message_of_nothing_but_images_stays() -> None:
    async with session(Sliding(1)) as client:
        await client.ask({"role": "user", "content": [shot(0)]})
        turn = await client.ask(user("next", 1))
    assert turn.plan.sent[0].wire["content"] == [text(NOTHING_LEFT)]


async def test_the_current_turn_and_pinned_images_stay() -> None:
    pins = frozenset((shot(0).ref.image_id,))
    async with session(Sliding(1), Request(pins=pins)) as client:
        await client.ask(user("first", 0, 1))
        turn = await client.ask(user("next", 2, 3, 4))
    assert shots(turn) == [0, 2, 3, 4]


async def test_a_first_request_with_a_long_history_breaks_nothing() -> None:
    history = [user("one", 0), {"role": "assistant", "content": "a"}, user("two", 1)]
    async with session(Sliding(1)) as client:
        turn = await client.ask(*history)
    assert shots(turn) == [1]
    assert not turn.plan.breaks


async def test_what_one_policy_deleted_does_not_come_back_under_the_next() -> None:
    async with session(Sliding(1)) as client:
        await client.steps(0, 3)
        client.policy = STABLE
        turn = await client.ask(user("next", 3))
    assert shots(turn) == [2, 3]
    assert not turn.plan.breaks
