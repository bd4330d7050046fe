"""What is asked now stays whole: everything behind the model's last reply, with the tool group that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from context.conversations import Begun
from context.layout.tail import with_tail
from context.plan import SummaryRequest
from context.policies.base import Limits, Policy, Request, Rules
from context.policies.batched import Batched
from context.policies.keep import STABLE
from context.policies.sliding import Sliding
from context.policies.summary import Summary
from context.transcript import ImagePart, parts_of
from tests.unit.context.policies.every import POLICIES
from tests.unit.context.policies.sessions import (
    SYSTEM,
    Wire,
    asked_now,
    calls,
    old_call,
    old_result,
    result,
    session,
    shots,
    user,
)

# Any image and any history is more than this engine takes.
TIGHT = Request(limits=Limits(max_images=0, max_prompt_tokens=20))
REMINDER: Wire = {"role": "developer", "content": "Be brief."}
LONG = "word " * 14_000


def said(words: str) -> Wire:
    return {"role": "assistant", "content": words}


OLD = [SYSTEM, user("old", 90, 91), said("seen")]
# What follows `OLD`, and which of it is asked now.
SHAPES: Mapping[str, tuple[list[Wire], list[int]]] = {
    "words behind results": ([user("read"), calls("a"), result("a", 1, 2), user("sum it up")], [1, 2, 3]),
    "parallel calls": (
        [user("read"), calls("a", "b"), result("a", 1), result("b", 2, 3), user("now"), user("well?")],
        [1, 2, 3, 4, 5],
    ),
    "older form": ([user("read"), old_call("f"), old_result("f", 1, 2), user("sum it up")], [1, 2, 3]),
    "reminder": ([user("look", 1, 2), REMINDER, user("well?")], [0, 1, 2]),
    "reminder in a loop": (
        [user("look", 1, 2), REMINDER, user("go"), calls("a"), result("a", 3), calls("b"), result("b", 4)],
        [0, 1, 2, 5, 6],
    ),
    "words in a loop": (
        [user("go", 1), calls("a"), result("a", 2), calls("b"), result("b", 3), user("hurry")],
        [3, 4, 5],
    ),
    "begun reply": ([user("go"), calls("a"), result("a", 1), calls("b"), result("b", 2), said("It")], [0, 3, 4, 5]),
    "begun behind words": ([user("go"), calls("a"), result("a", 1), user("and this", 2), said("It")], [1, 2, 3, 4]),
    "late result": ([user("go"), calls("a", "b"), result("a", 1), said("b?"), result("b", 2)], [0, 1, 2, 3, 4]),
    "reply in two messages": ([user("go"), said("I look."), calls("a"), result("a", 1), user("so")], [1, 2, 3, 4]),
}


async def summarized(_: SummaryRequest, __: str) -> str | None:
    return "what they said"


def texts(wire: Mapping[str, object]) -> list[str]:
    return [part["text"] for part in parts_of(wire) if not isinstance(part, ImagePart)]


async def first(policy: Policy, request: Request, *messages: Wire) -> Begun:
    """The plan of a conversation's first request."""
    async with session(policy, request) as client:
        client.summarize = summarized
        return await client.ask(*messages)


@pytest.mark.parametrize("request_", [Request(), TIGHT], ids=["free", "tight"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", POLICIES)
async def test_what_is_asked_now_is_sent_whole(name: str, shape: str, request_: Request) -> None:
    new, current = SHAPES[shape]
    begun = await first(POLICIES[name], request_, *OLD, *new)
    assert {at - len(OLD) for at in asked_now(begun.transcript.messages)} <= {*current}
    sent = {one.source: one for one in begun.plan.sent}
    shown = {part.ref.image_id for one in with_tail(begun.plan.sent, begun.plan.tail) for part in one.images}
    for at in current:
        images = [part for part in parts_of(new[at]) if isinstance(part, ImagePart)]
        assert {part.ref.image_id for part in images} <= shown
        # Images may stand elsewhere, with a name in their place.
        assert set(texts(new[at])) <= set(texts(sent[at + len(OLD)].wire))


@pytest.mark.parametrize(
    ("shape", "left"),
    [
        ("words behind results", [1, 2]),
        ("reminder in a loop", [1, 2, 4]),
        ("words in a loop", [3]),
        ("begun reply", [2]),
    ],
)
async def test_what_an_agent_has_finished_makes_room(shape: str, left: list[int]) -> None:
    assert shots(await first(STABLE, TIGHT, *OLD, *SHAPES[shape][0])) == left


@pytest.mark.parametrize(
    "policy", [Batched("prompt_tokens", 16_000, 6_000), Summary("prompt_tokens", 16_000, 6_000), STABLE]
)
async def test_a_long_result_that_was_never_answered_stays(policy: Policy) -> None:
    limited = Request(limits=Limits(max_prompt_tokens=8_000))
    history = [SYSTEM, user("read"), calls("a"), {**result("a"), "content": LONG}, user("Now sum it up.")]
    async with session(policy, limited if policy is STABLE else Request()) as client:
        client.summarize = summarized
        begun = await client.ask(*history, reply="It says word.")
        assert [one.wire for one in begun.plan.sent if one.source in (2, 3, 4)] == history[2:]
        later = await client.ask(user("Thank you."))
    # It was answered: from now on it is history.
    assert LONG not in [one.wire.get("content") for one in later.plan.sent]


async def test_a_long_document_in_front_of_a_reminder_stays() -> None:
    history = [SYSTEM, user(LONG), REMINDER, user("What does it say?")]
    begun = await first(Batched("prompt_tokens", 16_000, 6_000), Request(), *history)
    assert [one.wire for one in begun.plan.sent] == history


@pytest.mark.parametrize("policy", [Sliding(3), Batched("images", 20, 3)])
async def test_fresh_screenshots_stay_and_older_ones_go_for_them(policy: Policy) -> None:
    old = [one for number in range(18) for one in (user(f"step {number}", number), said("ok"))]
    fresh = [calls("a", "b", "c", "d"), *(result(call, 20 + at) for at, call in enumerate("abcd"))]
    begun = await first(policy, Request(), SYSTEM, *old, user("look around"), *fresh, user("Which one?"))
    assert shots(begun) == [20, 21, 22, 23]


async def test_images_behind_the_results_of_the_last_step_stay() -> None:
    policy = Batched("images", 2, 0, rules=Rules(tool_images="hoist"))
    begun = await first(policy, Request(), *OLD, user("go"), calls("a"), result("a", 1, 2), user("so?"))
    assert shots(begun) == [1, 2]
    assert [one.origin for one in begun.plan.sent][-2:] == ["hoisted", "client"]
