"""One batch at a high water, instead of an image a turn."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from context.conversations import Begun
from context.layout.names import marker
from context.plan import SentMessage
from context.policies.base import Request, View
from context.policies.batched import Batched, BreakEven
from context.policies.eviction import Draft
from context.transcript import ImagePart, message_of
from tests.unit.context.policies.sessions import (
    SYSTEM,
    Wire,
    brief,
    calls,
    named,
    result,
    same_start,
    session,
    shot,
    shots,
    spelled,
    text,
    user,
)

IMAGES = Batched("images", 4, 2)
HONOURED = Batched("images", 4, 2, defer_client_deletions=False)


def extends(later: Begun) -> bool:
    return same_start(later) == len(later.before)


def without_images(wire: Wire, placeholder: str | None = None) -> Wire:
    parts = [part for part in wire["content"] if not isinstance(part, ImagePart)]
    return {**wire, "content": [*([text(placeholder)] if placeholder else []), *parts]}


async def test_nothing_goes_up_to_the_high_water_and_then_a_batch_at_once() -> None:
    async with session(IMAGES, Request(), SYSTEM) as client:
        turns = await client.steps(0, 9)
    assert [shots(turn) for turn in turns[:4]] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [shots(turn) for turn in turns[4:]] == [[3, 4], [3, 4, 5], [3, 4, 5, 6], [6, 7], [6, 7, 8]]
    assert [brief(turn) for turn in turns if turn.plan.breaks] == [
        [("policy_eviction", "policy", 1)],
        [("policy_eviction", "policy", 7)],
    ]
    assert all(extends(later) for _, later in pairwise(turns) if not later.plan.breaks)
    assert turns[4].plan.sent[1].wire["content"] == [named(0), text("step 0")]
    assert [turn.plan.epoch for turn in turns[3:]] == [0, 1, 1, 1, 2, 2]


async def test_equal_views_give_equal_results_and_nothing_goes_twice() -> None:
    async with session(IMAGES) as client:
        await client.steps(0, 5)
        again = await client.ask(user("and now?"))
    assert extends(again)
    view = View(again.transcript.messages, again.plan.sent, again.before)
    assert IMAGES.shape(view) == IMAGES.shape(view)
    assert IMAGES.shape(view).sent == again.plan.sent


async def test_an_image_in_an_open_group_or_the_current_turn_or_a_system_message_stays() -> None:
    system = {"role": "system", "content": [text("Look."), shot(9)]}
    history = [user("go", 0), calls("a", "b"), result("a", 1), user("wait", 2), {"role": "assistant", "content": "?"}]
    async with session(Batched("images", 3, 0), Request(), system) as client:
        turn = await client.ask(*history, user("look here", 3), user("and here", 4))
    assert shots(turn) == [9, 1, 3, 4]


async def test_pinned_images_stay_and_do_not_count() -> None:
    pins = frozenset((shot(2).ref.image_id,))
    async with session(replace(IMAGES, pin_first_images=1), Request(pins=pins)) as client:
        turns = await client.steps(0, 7)
    assert shots(turns[5]) == [0, 1, 2, 3, 4, 5]
    assert shots(turns[6]) == [0, 2, 5, 6]
    # The first image of the conversation stays the first one when a marker stands for another before it.
    assert brief(turns[6]) == [("policy_eviction", "policy", 2)]


async def test_visual_tokens_are_what_images_take() -> None:
    one = Draft(View((), ())).image_tokens
    each = next(map(one, Draft(View((), (SentMessage(user("a", 0), 0),))).images()))
    async with session(Batched("visual_tokens", 3 * each, 2 * each)) as client:
        turns = await client.steps(0, 4)
    assert [shots(turn) for turn in turns[2:]] == [[0, 1, 2], [2, 3]]


async def test_whole_turns_go_and_one_marker_names_their_images() -> None:
    async with session(Batched("turns", 4, 2), Request(), SYSTEM) as client:
        turns = await client.steps(0, 9)
    first, second = turns[4], turns[7]
    assert [one.origin for one in first.plan.sent] == ["client", "marker", "client", "client", "client"]
    assert [one.source for one in first.plan.sent] == [0, None, 7, 8, 9]
    words = first.plan.sent[1].wire["content"]
    assert [marker(shot(number).ref) in words for number in range(5)] == [True, True, True, False, False]
    assert brief(first) == [("policy_eviction", "policy", 1)]
    assert extends(turns[5])
    assert turns[6].plan.sent[1] == first.plan.sent[1]
    # The next batch makes one marker of both.
    assert [one.origin for one in second.plan.sent].count("marker") == 1
    assert [marker(shot(number).ref) in second.plan.sent[1].wire["content"] for number in range(8)] == [True] * 6 + [
        False
    ] * 2
    assert brief(second) == [("policy_eviction", "policy", 7)]


async def test_a_tool_group_goes_or_stays_whole() -> None:
    async with session(Batched("turns", 2, 1)) as client:
        await client.ask(user("go"), reply=calls("a", "b"))
        await client.ask(result("a", 0), result("b"), reply="done")
        await client.ask(user("more"))
        turn = await client.ask(user("and more"))
    assert [one.wire["role"] for one in turn.plan.sent] == ["user", "user"]
    assert marker(shot(0).ref) in turn.plan.sent[0].wire["content"]


async def test_finished_steps_within_one_question_are_history() -> None:
    async with session(Batched("images", 3, 1)) as client:
        await client.ask(user("go", 0), reply=calls("c0"))
        turns = [await client.ask(result(f"c{step}", step + 1), reply=calls(f"c{step + 1}")) for step in range(4)]
    # The question keeps its image.
    assert [shots(turn) for turn in turns] == [[0, 1], [0, 1, 2], [0, 3], [0, 3, 4]]


async def test_a_turn_with_a_pinned_image_keeps_that_message() -> None:
    async with session(Batched("turns", 2, 1, pin_first_images=1)) as client:
        turns = await client.steps(0, 3)
    assert [one.source for one in turns[2].plan.sent] == [0, None, 4]
    assert shots(turns[2]) == [0, 2]


async def test_prompt_tokens_cost_images_first_and_then_turns() -> None:
    estimate = Request().estimate
    async with session(Batched("prompt_tokens", 3000, 1700)) as client:
        turns = await client.steps(0, 3)
        assert [shots(turn) for turn in turns] == [[0], [0, 1], [2]]
        assert [one.source for one in turns[2].plan.sent] == [0, 1, 2, 3, 4]
        long = [await client.ask(user("word " * 1000)), await client.ask(user("word " * 1000))][1]
    assert long.plan.sent[0].origin == "marker"
    assert sum(estimate(one.wire) for one in long.plan.sent) <= 1700


async def test_what_the_client_deletes_is_sent_until_the_next_batch() -> None:
    async with session(IMAGES) as client:
        turns: list[Begun] = []
        for number in range(5):
            if number >= 2:
                oldest = 2 * (number - 2)
                client.history[oldest] = without_images(client.history[oldest], "[gone]" if number == 3 else None)
            turns.append(await client.ask(user(f"step {number}", number)))
    assert [shots(turn) for turn in turns] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [3, 4]]
    assert all(extends(turn) for turn in turns[:4])
    assert [report.cause for report in turns[2].plan.reports] == ["client_window"]
    assert brief(turns[4]) == [("policy_eviction", "policy", 0)]
    # What stood in its place in the client's history is never sent.
    assert b"[gone]" not in b"".join(spelled(turns[4].plan.sent))


async def test_whole_messages_that_the_client_deletes_go_with_the_next_batch() -> None:
    async with session(IMAGES, Request(), SYSTEM) as client:
        await client.steps(0, 4)
        del client.history[1:3]
        turn = await client.ask(user("no image"))
        assert extends(turn)
        assert [one.origin for one in turn.plan.sent[:4]] == ["client", "stale", "stale", "client"]
        batch = await client.ask(user("step 5", 5))
    assert shots(batch) == [3, 5]
    assert [one.source for one in batch.plan.sent] == list(range(10))
    assert brief(batch) == [("policy_eviction", "policy", 1)]


async def test_all_that_the_client_has_cut_goes_even_if_less_would_do() -> None:
    async with session(Batched("images", 4, 4)) as client:
        await client.steps(0, 4)
        for at in (0, 2, 4):
            client.history[at] = without_images(client.history[at])
        turn = await client.ask(user("step 4", 4))
    assert shots(turn) == [3, 4]


async def test_without_deferral_a_deletion_is_honoured_at_once() -> None:
    async with session(HONOURED) as client:
        await client.steps(0, 2)
        client.history[0] = without_images(client.history[0])
        turn = await client.ask(user("step 2", 2))
    assert shots(turn) == [1, 2]
    assert brief(turn) == [("client_window", "client", 0)]


async def test_an_image_that_the_client_cuts_from_what_it_asks_is_not_sent() -> None:
    async with session(IMAGES) as client:
        await client.ask(user("one"))
        await client.ask(user("look", 0, 1))
        client.history.pop()
        client.history[2] = user("look", 1)
        turn = await client.ask()
    assert shots(turn) == [1]


async def test_an_image_of_which_another_copy_is_cut_stays() -> None:
    async with session(Batched("images", 4, 3)) as client:
        await client.ask(user("same", 7, 7))
        await client.steps(1, 3)
        client.history[0] = user("same", 7)
        turn = await client.ask(user("step 3", 3))
    assert [len(one.images) for one in turn.plan.sent] == [0, 0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("images", "left"), [(1, [0, 1]), (2, [1, 2])])
async def test_a_break_by_the_client_is_used_when_half_of_the_way_is_passed(images: int, left: list[int]) -> None:
    async with session(IMAGES, Request(), SYSTEM) as client:
        await client.steps(0, images)
        client.history[0] = {"role": "system", "content": "Another prompt."}
        turn = await client.ask(user("next", images))
    assert shots(turn) == left
    # Three images are half of the way from 2 to 4.
    assert brief(turn) == [("client_edit", "client", 0)]


async def test_a_break_behind_the_oldest_image_is_not_used() -> None:
    async with session(IMAGES) as client:
        await client.steps(0, 3)
        client.history[3] = {"role": "assistant", "content": "edited"}
        turn = await client.ask(user("next", 3))
    assert shots(turn) == [0, 1, 2, 3]
    assert brief(turn) == [("client_edit", "client", 3)]


async def test_what_was_cut_behind_a_break_goes_for_nothing() -> None:
    async with session(IMAGES, Request(), SYSTEM) as client:
        await client.steps(0, 1)
        client.history[1] = without_images(client.history[1])
        assert shots(await client.ask(user("next"))) == [0]
        client.history[0] = {"role": "system", "content": "Another prompt."}
        turn = await client.ask(user("more"))
    assert shots(turn) == []
    assert brief(turn) == [("client_edit", "client", 0)]


def seen(images: int, number: int) -> View:
    """Steps with an image each that were sent before, and a new one."""
    wires = [one for step in range(images) for one in (user("look", step), {"role": "assistant", "content": "ok"})]
    sent = [SentMessage(wire, at) for at, wire in enumerate([*wires, user("now", images)])]
    client = tuple(message_of(one.wire) for one in sent)
    return View(client, tuple(sent), tuple(sent[:-1]), number=number)


def test_break_even_is_where_what_is_saved_is_worth_the_rewrite() -> None:
    view = seen(4, number=10)
    before = sum(view.request.estimate(one.wire) for one in view.sent)
    batch = Batched("images", 4, 2).shape(view).sent
    after = [view.request.estimate(one.wire) for one in batch]
    saved, rewritten = before - sum(after), sum(after[:-1])
    # saved * 1 * coming > rewritten * (11 - 1)
    needed = 10 * rewritten / saved
    early = Batched("images", 100, 2, break_even=BreakEven(10 + needed + 0.01, 1, 11))
    late = Batched("images", 100, 2, break_even=BreakEven(10 + needed - 0.01, 1, 11))
    assert early.shape(view).sent == batch
    assert late.shape(view).sent == view.sent
    broken = early.shape(view).broken
    assert broken is not None
    assert broken.message == 0


def test_break_even_leaves_the_high_water_in_force() -> None:
    never = BreakEven(0, 1, 11)
    view = seen(4, number=1)
    assert Batched("images", 4, 2, break_even=never).shape(view).sent == Batched("images", 4, 2).shape(view).sent
    assert Batched("images", 5, 2, break_even=never).shape(view).sent == view.sent


def test_what_is_rewritten_anyway_costs_nothing() -> None:
    """A client that broke the prefix at its beginning has paid for the batch."""
    view = replace(seen(4, number=1), broken_at=0)
    prices = BreakEven(2, 1, 1_000_000)
    assert Batched("images", 100, 2, break_even=prices).shape(view).sent != view.sent
    assert Batched("images", 100, 2, break_even=prices).shape(replace(view, broken_at=None)).sent == view.sent


def test_no_more_than_64_images_are_named() -> None:
    batch = Batched("turns", 10, 1)
    view = seen(70, number=71)
    shaped = batch.shape(view)
    words = shaped.sent[0].wire["content"]
    assert (marker(shot(5).ref) in words, marker(shot(6).ref) in words) == (False, True)
    assert words.count("[image_id ") == 64
    assert "Older images" in words
