"""What a policy may never take away, and what images cost."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from context.conversations import Conversations
from context.estimates import message_tokens
from context.plan import PromptPlan
from context.policies.base import Limits, Policy, Request, Rules
from context.policies.batched import Batched
from context.policies.keep import KeepAll
from context.policies.quotas import count_images
from context.policies.sliding import Sliding
from context.policies.summary import Summary
from context.tokens.calibration import Calibration
from context.transcript import ImagePart
from tests.api.rig import Rig, running, url_image
from tests.cases.chats import (
    SHOTS,
    Chat,
    Context,
    Wire,
    encoded,
    extends,
    part,
    picture,
    result,
    says,
    spelled,
    system,
    user,
    user_of,
)
from tests.unit.images.server import Site

SHRINKING: list[Policy] = [
    Batched("turns", 3, 1),
    Batched("prompt_tokens", 300, 60),
    Batched("images", 2, 1),
    Sliding(1),
]
NAMES = ["turns", "prompt_tokens", "images", "sliding"]


def step(number: int) -> list[Wire]:
    """A user's wish, two calls at once, their results with pictures; the model's answer follows."""
    calls = [
        {"id": f"c{number}-{at}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for at in (0, 1)
    ]
    return [
        user(f"look at {number}, please, and say what is there in a few words"),
        {"role": "assistant", "content": None, "tool_calls": calls},
        result("left", 2 * number, identity=f"c{number}-0"),
        result("right", 2 * number + 1, identity=f"c{number}-1"),
    ]


@pytest.mark.case("MC-083")
@pytest.mark.parametrize("policy", SHRINKING, ids=NAMES)
async def test_a_call_and_its_results_go_or_stay_together(conversations: Conversations, policy: Policy) -> None:
    client = Context(conversations, policy)
    shrunk = False
    for number in range(6):
        turn = await client.ask(*step(number), reply="a door")
        wires = [one.wire for one in turn.plan.sent]
        called = [call["id"] for wire in wires for call in wire.get("tool_calls", ())]
        answered = [wire["tool_call_id"] for wire in wires if wire["role"] == "tool"]
        assert called == answered
        shrunk |= bool(turn.plan.breaks)
    assert shrunk


@pytest.mark.case("MC-085")
async def test_a_summary_never_takes_the_question(conversations: Conversations) -> None:
    client = Context(conversations, Summary("turns", 3, 1, max_tokens=50))
    asked: list[PromptPlan] = []
    for number in range(6):
        begun = await client.ask(user(f"question {number}"))
        asked.append(begun.plan)
        assert begun.plan.sent[-1].wire["content"] == f"question {number}"
    wished = [(number, plan.summary) for number, plan in enumerate(asked) if plan.summary is not None]
    assert wished
    for number, wish in wished:
        assert wish is not None
        # The last message is the instruction; what is to be summed up ends before the question.
        assert all(f"question {number}" not in str(message) for message in wish.messages)


@pytest.mark.case("MC-080")
@pytest.mark.parametrize("policy", [*SHRINKING, Summary("prompt_tokens", 10, 5, max_tokens=1)], ids=[*NAMES, "summary"])
async def test_a_fresh_image_is_never_taken_out(conversations: Conversations, policy: Policy) -> None:
    """However large it is, and whatever the engine takes."""
    client = Context(conversations, policy, Request(limits=Limits(max_images=1, max_prompt_tokens=100)))
    for shot in range(4):
        turn = await client.ask(user("what is it?", shot, 20 + shot))
        last = turn.plan.sent[-1]
        assert [image.ref.image_id for image in last.images] == [SHOTS[shot].image_id, SHOTS[20 + shot].image_id]
        assert turn.plan.summary is None or SHOTS[shot].image_id not in str(turn.plan.summary.messages)


def seen(ref: Any) -> Wire:
    return {"role": "user", "content": [ImagePart(ref)]}


@pytest.mark.case("MC-080")
def test_the_data_of_an_image_is_no_text() -> None:
    small, large = (replace(SHOTS[0], size_bytes=size) for size in (3_000, 3_000_000))
    assert message_tokens(seen(small)) == message_tokens(seen(large)) < 2_000


@pytest.mark.case("MC-081")
def test_a_larger_image_is_estimated_larger() -> None:
    small, large = (message_tokens(seen(replace(SHOTS[0], width=side, height=side))) for side in (64, 4096))
    assert 50 * small < large


@pytest.mark.case("MC-081")
def test_estimates_follow_what_the_engine_reports() -> None:
    """An engine whose images cost twice as much as the rule says."""
    learned = Calibration()
    for number in range(1, 31):
        learned.observe(100 * number, 1000 * (number % 4), 100 * number + 2000 * (number % 4) + 20)
    assert learned.factors.visual == pytest.approx(2.0, abs=0.1)  # pyright: ignore[reportUnknownMemberType]
    assert learned.factors.text == pytest.approx(1.0, abs=0.1)  # pyright: ignore[reportUnknownMemberType]


@pytest.mark.case("MC-061")
async def test_hoisted_images_stand_behind_the_whole_group_under_their_names(conversations: Conversations) -> None:
    client = Context(conversations, KeepAll("hoisting", rules=Rules(tool_images="hoist")))
    first = await client.ask(*step(1), reply="a door")
    roles = [one.wire["role"] for one in first.plan.sent]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    left, right, payload = first.plan.sent[2:]
    assert not left.images
    assert not right.images
    assert f"[image_id {SHOTS[2].image_id} 1280x800]" in str(left.wire["content"])
    assert "left" in str(left.wire["content"])
    assert [image.ref.image_id for image in payload.images] == [SHOTS[2].image_id, SHOTS[3].image_id]
    second = await client.ask(user("and?"))
    assert extends(second, first)


@pytest.mark.case("MC-033")
async def test_unique_images_and_occurrences_are_counted_apart(conversations: Conversations) -> None:
    plan = (await Context(conversations).ask(user("same?", 1, 1, 1), user("other?", 2))).plan
    counts = count_images(plan, (), message_tokens)
    assert (counts.images, counts.unique_images, counts.new_images) == (4, 2, 2)
    assert counts.visual_tokens == 4 * (
        message_tokens(seen(SHOTS[1])) - message_tokens({"role": "user", "content": []})
    )


@pytest.mark.case("MC-075")
async def test_a_body_that_is_too_large_is_told_the_limit(tmp_path: Any) -> None:
    limits = {"SERVER__MAX_BODY_BYTES": "30000", "SERVER__INFLIGHT_BODY_BYTES": "30000"}
    data = encoded(picture().resize((128, 128)), compress_level=0)
    async with running(tmp_path, environment=limits) as rig:
        answer = await Chat(rig).ask(user_of(part(data)))
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        assert "30,000" in answer.error["message"]


@pytest.mark.case("MC-075")
async def test_an_image_by_link_costs_no_bytes_of_the_body_and_is_fetched_once(rig: Rig, site: Site) -> None:
    site.changing = encoded(picture().resize((400, 400)), compress_level=0)
    chat = Chat(rig)
    for number in range(3):
        new = [url_image(site.url("/changing"))] if number == 0 else []
        assert (await chat.ask(user_of(says(f"turn {number}"), *new))).status == 200
    assert len(site.requests) == 1
    assert len(chat.sent[0]["content"]) == 2


@pytest.mark.case("MC-075")
async def test_images_that_a_client_leaves_out_may_still_be_sent(conversations: Conversations) -> None:
    """Their bytes are kept, so that a client need not send them again."""
    client = Context(conversations, Batched(), name="chat")
    turns = [await client.ask(user("look", 1)), await client.ask(user("well?"))]
    client.history[0] = {"role": "user", "content": [says("look")]}
    turns.append(await client.ask(user("so?")))
    turns.append(await client.ask(user("and?")))
    assert all(extends(later, earlier) for earlier, later in pairwise(turns))
    assert spelled(turns[-1].plan.sent)[0] == spelled(turns[0].plan.sent)[0]


@pytest.mark.case("MC-012", "MC-013")
async def test_a_text_without_times_is_sent_as_it_is_everywhere(conversations: Conversations) -> None:
    """Moving values out must not touch what does not change."""
    words = "Version 2.3 of 12 rules, made in 2026. " * 20
    for volatile in ("report", "freeze", "tail"):
        client = Context(conversations, KeepAll(volatile, rules=Rules(volatile=volatile)), tenant=volatile)
        turn = await client.ask(system(words), user("hi"))
        assert (turn.plan.sent[0].wire["content"], turn.plan.tail) == (words, ())
