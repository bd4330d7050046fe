"""The engine's limits, kept under every policy that replays."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from context.plan import SentMessage
from context.policies.base import Limits, Request, Shaped, View
from context.policies.batched import Batched
from context.policies.keep import OBSERVE, STABLE
from context.policies.limits import fit
from context.transcript import message_of
from tests.unit.context.policies.sessions import (
    SYSTEM,
    brief,
    calls,
    named,
    result,
    same_start,
    session,
    shot,
    shots,
    user,
)

FOUR = Request(limits=Limits(max_images=4))


async def test_more_images_than_the_engine_takes_go_down_to_half_in_one_batch() -> None:
    async with session(STABLE, FOUR, SYSTEM) as client:
        turns = await client.steps(0, 8)
    assert [len(shots(turn)) for turn in turns] == [1, 2, 3, 4, 2, 3, 4, 2]
    assert [brief(turn) for turn in turns if turn.plan.breaks] == [
        [("policy_eviction", "policy", 1)],
        [("policy_eviction", "policy", 7)],
    ]
    assert turns[4].plan.sent[1].wire["content"][0] == named(0)
    assert all(same_start(turn) == len(turn.before) for turn in turns[5:7])


async def test_a_first_request_beyond_the_limit_goes_on() -> None:
    history = [one for step in range(9) for one in (user("look", step), {"role": "assistant", "content": "ok"})]
    async with session(STABLE, FOUR) as client:
        turn = await client.ask(*history, user("now", 9))
        assert shots(turn) == [8, 9]
        assert not turn.plan.breaks
        again = await client.ask(user("and now?"))
    assert same_start(again) == len(again.before)


async def test_observe_leaves_it_to_the_engine() -> None:
    async with session(OBSERVE, FOUR) as client:
        turns = await client.steps(0, 6)
    assert shots(turns[-1]) == list(range(6))


async def test_the_current_turn_is_sent_even_if_it_is_too_much() -> None:
    async with session(STABLE, FOUR) as client:
        await client.steps(0, 2)
        turn = await client.ask(user("all of these", 2, 3, 4, 5, 6))
    assert shots(turn) == [2, 3, 4, 5, 6]


async def test_the_finished_steps_of_an_agent_make_room() -> None:
    async with session(STABLE, FOUR) as client:
        await client.ask(user("go"), reply=calls("c0"))
        turns = [await client.ask(result(f"c{step}", step), reply=calls(f"c{step + 1}")) for step in range(6)]
    assert [len(shots(turn)) for turn in turns] == [1, 2, 3, 4, 2, 3]


async def test_pinned_images_go_last_but_they_go() -> None:
    pins = frozenset(shot(number).ref.image_id for number in (0, 1, 2))
    async with session(STABLE, replace(FOUR, pins=pins)) as client:
        turns = await client.steps(0, 5)
        assert shots(turns[4]) == [0, 1, 2, 4]
        full = await client.ask(user("two more", 5, 6))
    assert shots(full) == [1, 2, 5, 6]


async def test_a_policy_is_kept_within_the_limits_too() -> None:
    async with session(Batched("images", 20, 3), FOUR) as client:
        turns = await client.steps(0, 6)
    assert [len(shots(turn)) for turn in turns] == [1, 2, 3, 4, 2, 3]


async def test_tokens_cost_images_and_then_whole_turns() -> None:
    estimate = Request().estimate
    request = Request(limits=Limits(max_prompt_tokens=4000))
    async with session(STABLE, request, SYSTEM) as client:
        turns = await client.steps(0, 3)
        assert [shots(turn) for turn in turns] == [[0], [0, 1], [2]]
        assert [one.origin for one in turns[2].plan.sent].count("marker") == 0
        long = [await client.ask(user("word " * 500), reply=f"reply {number}") for number in range(8)]
    sizes = [sum(estimate(one.wire) for one in turn.plan.sent) for turn in long]
    assert max(sizes) <= 3400
    assert long[-1].plan.sent[1].origin == "marker"
    # The next prompts have room: not every turn breaks.
    assert sum(size < before for before, size in pairwise(sizes)) <= 3


def test_images_of_the_tail_count() -> None:
    sent = [SentMessage(one, at) for at, one in enumerate([user("a", 0, 1), user("b", 2), {**SYSTEM}, user("now")])]
    sent[2] = SentMessage({"role": "assistant", "content": "ok"}, 2)
    view = View(tuple(message_of(one.wire) for one in sent), tuple(sent), request=FOUR)
    within, above = Shaped(view.sent, tail=(shot(5),)), Shaped(view.sent, tail=(shot(5), shot(6)))
    assert fit(within, view) == within
    shaped = fit(above, view)
    assert shaped.tail == above.tail
    assert [len(one.images) for one in shaped.sent] == [0, 0, 0, 0]


def test_state_and_a_break_further_in_front_stay() -> None:
    view = View((), (), request=FOUR)
    shaped = Shaped((), state={"a": 1})
    assert fit(shaped, view) == shaped
