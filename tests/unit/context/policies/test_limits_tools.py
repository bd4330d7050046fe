"""What counts besides the messages' contents against the engine's limits: tools, images that wait, names, reasoning."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_core import to_json

from context.estimates import message_tokens
from context.plan import SentMessage
from context.policies.base import Limits, Request, Rules, Shaped, View
from context.policies.keep import KeepAll
from context.policies.limits import fit, tools_tokens
from context.tokens.estimator import Estimator
from context.tokens.texts import TextCounter
from context.tokens.visual import Fixed
from context.tokens.vocabulary import Vocabulary
from context.transcript import message_of
from tests.unit.context.policies.sessions import SYSTEM, calls, result, session, shots, user

TOOLS = to_json([{"type": "function", "function": {"name": "look", "description": "x" * 4000}}])
WORDS = Estimator(TextCounter(Vocabulary(len)), Fixed(10)).message_tokens


def view(limit: int, tools: bytes) -> View:
    wires: list[Any] = [user("one " * 50), {"role": "assistant", "content": "ok"}, user("two")]
    client = tuple(message_of(wire) for wire in wires)
    sent = tuple(SentMessage(one.wire, at) for at, one in enumerate(client))
    return View(client, sent, request=Request(limits=Limits(max_prompt_tokens=limit)), tools=tools)


def test_tools_count_against_the_engines_limit() -> None:
    room = 1000
    without, with_tools = view(room, b""), view(room, TOOLS)
    assert fit(Shaped(without.sent), without).sent == without.sent
    shrunk = fit(Shaped(with_tools.sent), with_tools).sent
    assert [one.wire["content"] for one in shrunk][-1] == "two"
    assert "one one" not in str(shrunk)


def test_room_is_half_of_what_the_tools_leave() -> None:
    """With large tools a history still has room, and is not cut to nothing in each turn."""
    tools, wires = TOOLS, list[Any]()
    for turn in range(30):
        wires += [user(f"{turn} " * 40), {"role": "assistant", "content": "ok"}]
    client = tuple(message_of(wire) for wire in [*wires, user("now")])
    sent = tuple(SentMessage(one.wire, at) for at, one in enumerate(client))
    seen = View(client, sent, request=Request(limits=Limits(max_prompt_tokens=2000)), tools=tools)
    left = sum(message_tokens(one.wire) for one in fit(Shaped(sent), seen).sent)
    room = int(2000 * 0.85) - tools_tokens(seen)
    assert 0.3 * room < left <= 0.55 * room


async def test_images_that_wait_for_their_group_count() -> None:
    policy, request = KeepAll(rules=Rules(tool_images="hoist")), Request(limits=Limits(max_images=2))
    async with session(policy, request, SYSTEM) as client:
        await client.ask(user("look", 0))
        await client.ask(user("look", 1), reply=calls("a", "b"))
        turn = await client.ask(result("a", 2), user("go on"))
    assert len(turn.plan.tail) == 1
    assert shots(turn) == []


@pytest.mark.parametrize("key", ["name", "reasoning_content", "reasoning"])
@pytest.mark.parametrize("estimate", [message_tokens, WORDS], ids=["rough", "vocabulary"])
def test_what_a_message_says_besides_its_content_counts(key: str, estimate: Any) -> None:
    bare = {"role": "assistant", "content": "yes"}
    assert estimate({**bare, key: "a long thought " * 10}) > estimate(bare) + 30
    assert estimate({**bare, key: None}) == estimate(bare)
