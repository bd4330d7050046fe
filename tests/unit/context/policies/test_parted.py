"""What a client cuts and is sent on: a call with its result, neither without the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from context.policies.base import Request, Rules
from context.policies.batched import Batched
from tests.unit.context.policies.sessions import SYSTEM, Wire, calls, old_call, old_result, result, session, user

PATIENT = Batched("images", 20, 3)
HOISTING = Batched("images", 20, 3, rules=Rules(tool_images="hoist"))


def call_with(identity: str | None) -> Wire:
    return {**calls("a"), "tool_calls": [{**calls("a")["tool_calls"][0], "id": identity}]}


PAIRS: dict[str, tuple[Wire, Wire]] = {
    "tool": (calls("a"), result("a", 1)),
    "own ids": (calls("a"), result("theirs", 1)),
    "no id": (call_with(None), {**result("", 1), "tool_call_id": None}),
    "empty id": (call_with(""), result("", 1)),
    "older form": (old_call("f"), old_result("f", 1)),
}


async def stale_after(pair: Sequence[Wire], *cuts: int, policy: Batched = PATIENT) -> list[str]:
    """Roles of what is sent though the client has cut it: in each turn one message of a history that has a call with
    its result before, too."""
    async with session(policy, Request(), SYSTEM) as client:
        await client.ask(user("one"), reply=old_call("e") if "function_call" in pair[0] else calls("e"))
        await client.ask(old_result("e") if "function_call" in pair[0] else result("e"), reply="first")
        await client.ask(user("two"), reply=pair[0])
        await client.ask(pair[1], reply="second")
        begun = await client.ask(user("three"), reply="third")
        for at in cuts:
            del client.history[at]
            begun = await client.ask(user(f"less {at}"), reply="ok")
    return [one.wire["role"] for one in begun.plan.sent if one.origin in ("stale", "hoisted")]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("policy", [PATIENT, HOISTING], ids=["pass", "hoist"])
async def test_a_result_without_its_call_is_sent_no_more(name: str, policy: Batched) -> None:
    """The call is cut first, then the result."""
    assert await stale_after(PAIRS[name], 6, 6, policy=policy) == []


@pytest.mark.parametrize("name", PAIRS)
async def test_a_result_whose_call_is_left_is_sent_on(name: str) -> None:
    assert await stale_after(PAIRS[name], 7) == [PAIRS[name][1]["role"]]


@pytest.mark.parametrize("name", PAIRS)
async def test_a_call_that_is_cut_with_its_result_is_sent_on_with_it(name: str) -> None:
    call, answer = PAIRS[name]
    async with session(PATIENT, Request(), SYSTEM) as client:
        await client.ask(user("one"), reply=call)
        await client.ask(answer, reply="first")
        await client.ask(user("two"))
        del client.history[1:4]
        begun = await client.ask(user("three"))
    stale = [one.wire["role"] for one in begun.plan.sent if one.origin == "stale"]
    assert stale == ["user", "assistant", answer["role"]]


async def test_calls_in_the_older_form_that_stand_together_have_their_results_behind_them() -> None:
    history = [user("go"), old_call("f"), old_call("g"), old_result("f", 1), old_result("g", 2)]
    async with session(PATIENT, Request(), SYSTEM) as client:
        await client.ask(*history, reply="done")
        await client.ask(user("two"))
        del client.history[1:6]
        begun = await client.ask(user("three"))
    assert [one.wire["role"] for one in begun.plan.sent if one.origin == "stale"] == [one["role"] for one in history]
