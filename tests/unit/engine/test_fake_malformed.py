"""A body that is no chat gets an engine's error, whatever is wrong with it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from engine.asgi import call
from engine.fake import FakeConfig, FakeCore, create_app
from engine.fake.errors import Refused, is_object

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You look."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "go"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "looks",
                "parameters": {"type": "object", "properties": {"at": {"enum": [1]}}, "required": ["at"]},
            },
        }
    ],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "n": 1,
    "max_tokens": 4,
    "min_tokens": 1,
    "stop": ["end"],
    "stop_token_ids": [7],
    "temperature": 0.5,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 1,
    "chat_template_kwargs": {"add_generation_prompt": True},
    "cache_salt": "salt",
    "session_id": "s",
}
JSON: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.floats(allow_nan=False), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [at] if at else []
    inner: Iterable[tuple[Any, Any]] = value.items() if is_object(value) else ()
    if isinstance(value, list):
        inner = enumerate(cast("list[Any]", value))
    return found + [place for key, one in inner for place in places(one, (*at, key))]


def changed(at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The chat with another value at a place."""
    body = copy.deepcopy(CHAT)
    inner: Any = body
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return body


def test_the_chat_itself_is_answered() -> None:
    assert FakeCore().complete(CHAT).completion_tokens > 0


@pytest.mark.parametrize("echo", [True, False])
@given(st.sampled_from(places(CHAT)), JSON)
def test_any_value_at_any_place_is_answered_or_refused(echo: bool, at: tuple[Any, ...], value: Any) -> None:
    core = FakeCore(FakeConfig(echo=echo))
    with suppress(Refused):
        core.complete(changed(at, value))
    assert not core.has_work


WRONG: list[tuple[str, Any, str]] = [
    ("tools", ["look"], "body.tools"),
    ("tools", {"type": "function"}, "body.tools"),
    ("tools", [{"type": "function", "function": {"name": "look", "parameters": [1]}}], "body.tools"),
    ("messages", [{"role": "user", "content": 5}], "body.messages"),
    ("messages", [{"role": "user", "content": {"type": "text", "text": "hi"}}], "body.messages"),
    ("messages", [{"role": "user", "content": [{"type": ["text"]}]}], "body.messages"),
    ("messages", [{"role": "assistant", "tool_calls": "look"}], "body.messages"),
    ("messages", [{"role": "assistant", "tool_calls": ["look"]}], "body.messages"),
    ("stream_options", "include_usage", "body.stream_options"),
    ("temperature", "hot", "body.temperature"),
    ("stop", 5, "body.stop"),
    ("tool_choice", {"type": "function", "function": "look"}, "body.tool_choice"),
]


@pytest.mark.parametrize(("key", "value", "param"), WRONG)
async def test_what_is_wrong_gets_the_body_of_a_validation_error(key: str, value: Any, param: str) -> None:
    app = create_app()
    body = {"messages": [{"role": "user", "content": "go"}]} | {key: value}
    async with call(app, "POST", "/v1/chat/completions", headers={}, body=[to_json(body)]) as reply:
        status, answer = reply.status, from_json(await reply.read())
    await app.driver.stop()
    assert status == 400
    assert answer["error"]["type"] == "Bad Request"
    assert answer["error"]["param"] == param
