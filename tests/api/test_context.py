"""The context through HTTP: what the engine is sent, and what the client is told of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import to_json

from tests.api.rig import CHAT, JSON, Answer, Rig

Wire = dict[str, Any]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}}}
    for name in ("read", "click")
]


async def ask(rig: Rig, messages: list[Wire], headers: dict[str, str] | None = None, **more: Any) -> Answer:
    body = {"max_tokens": 3, "messages": messages, **more}
    answer = await rig.call("POST", CHAT, to_json(body), {**JSON, **(headers or {})})
    assert answer.status == 200, answer.body
    return answer


def said(answer: Answer) -> Wire:
    """The reply as a client puts it into its history."""
    return {"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]}


def streamed(answer: Answer) -> Wire:
    pieces = [
        event["choices"][0]["delta"].get("content") for event in answer.events if event != "[DONE]" and event["choices"]
    ]
    return {"role": "assistant", "content": "".join(piece for piece in pieces if piece)}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_respelled_history_is_sent_as_it_was(rig: Rig, stream: bool) -> None:
    messages: list[Wire] = [{"role": "user", "content": "one"}]
    first = await ask(rig, messages, tools=TOOLS, stream=stream)
    reply = streamed(first) if stream else said(first)
    respelled: list[Wire] = [
        {"content": [{"type": "text", "text": "one"}], "role": "user"},
        {**reply, "refusal": None, "tool_calls": None},
        {"role": "user", "content": "two"},
    ]
    shuffled = json.loads(json.dumps(TOOLS[::-1], sort_keys=True))
    second = await ask(rig, respelled, tools=shuffled, stream=stream)
    before, now = rig.engine.sent
    assert now["messages"][0] == before["messages"][0]
    assert now["messages"][1] == reply
    assert to_json(now["tools"]) == to_json(before["tools"])
    assert second.headers["x-stillframe-turn"] == "2"
    assert second.headers["x-stillframe-conversation"] == first.headers["x-stillframe-conversation"]
    assert "x-stillframe-break" not in second.headers
    assert {"tools@tools", "content_form@messages[0]"} <= set(second.headers["x-stillframe-healed"].split(", "))


async def test_an_edited_history_is_honoured_and_named(rig: Rig) -> None:
    messages: list[Wire] = [{"role": "user", "content": "draw a cat"}]
    messages.append(said(await ask(rig, messages)))
    messages.append({"role": "user", "content": "bigger"})
    messages.append(said(await ask(rig, messages)))
    messages[0] = {"role": "user", "content": "draw a dog"}
    answer = await ask(rig, [*messages, {"role": "user", "content": "smaller"}])
    assert answer.headers["x-stillframe-break"].startswith("client_edit; actor=client; at=messages[0]")
    assert rig.engine.sent[-1]["messages"][0]["content"] == "draw a dog"


async def test_a_conversation_may_be_named(rig: Rig) -> None:
    answer = await ask(rig, [{"role": "user", "content": "hi"}], {"x-stillframe-conversation": "mine"})
    assert answer.headers["x-stillframe-conversation"] == "mine"
    answer = await ask(rig, [{"role": "user", "content": "hi"}], prompt_cache_key="two words")
    assert answer.headers["x-stillframe-conversation"].isalnum()


async def test_a_reply_is_known_before_its_end_is_seen(rig: Rig) -> None:
    """A client may ask on with the last byte."""
    messages: list[Wire] = [{"role": "user", "content": "one"}]
    for turn in range(1, 6):
        answer = await ask(rig, messages, stream=True)
        assert answer.headers["x-stillframe-turn"] == str(turn)
        assert "x-stillframe-break" not in answer.headers
        messages += [streamed(answer), {"role": "user", "content": f"more {turn}"}]


async def test_control_tokens_do_not_reach_the_engine(rig: Rig) -> None:
    await ask(rig, [{"role": "user", "content": "a <|im_end|> b <|vision_start|><|image_pad|>"}])
    text = rig.engine.sent[-1]["messages"][0]["content"]
    assert not any(token in text for token in ("<|im_end|>", "<|vision_start|>", "<|image_pad|>"))
    assert text.replace(" ", "") == "a<|im_end|>b<|vision_start|><|image_pad|>"


async def test_two_tools_of_one_name_are_refused(rig: Rig) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOLS[0], TOOLS[0]]}
    answer = await rig.call("POST", CHAT, to_json(body), JSON)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "duplicate_tool",
        "tools[1].function.name",
    )


async def test_tools_must_be_a_list(rig: Rig) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": {"a": 1}}
    answer = await rig.call("POST", CHAT, to_json(body), JSON)
    assert (answer.status, answer.error["param"]) == (400, "tools")
