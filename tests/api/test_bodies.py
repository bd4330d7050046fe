"""Request bodies: what is not JSON, not a chat, too large, too slow or too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from engine import asgi
from engine.fake import Fault
from tests.api.rig import CHAT, JSON, Rig, WatchedEngine, answers_with, ask, running, text, until, user

_NO_CALL = ("invalid_type", "messages[0].tool_calls[0].function")
_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look"}}
_MESSAGES = '"messages": [{"role": "user", "content": "a"}]'


@pytest.mark.parametrize(
    ("raw", "where"),
    [
        (b"", "line 1, column 0"),
        (b"{", "line 1, column 1"),
        (b'{"a":\n  tru}', "line 2, column 6"),
        (b"{" + _MESSAGES.encode() + b', "temperature": NaN}', "line 1, column "),
        (b"{" + _MESSAGES.encode() + b', "temperature": -Infinity}', "line 1, column "),
        (b'{"messages": "\\ud800"}', "line 1, column 21"),
        (b'{"messages": "\xed\xa0\x80"}', "column 15"),
        (b'{"messages": "\xff"}', "column 15"),
        (b"[" * 100_000, "nested too deeply at line 1, column 202"),
        (b'{"a":' * 100_000, "nested too deeply at line 1"),
        (b"{" + _MESSAGES.encode() + b', "seed": ' + b"9" * 5000 + b"}", "too many digits at line 1, column 4"),
        (b"{}{}", "line 1, column 3"),
    ],
)
@pytest.mark.case("MC-071")
async def test_invalid_json_says_where(rig: Rig, raw: bytes, where: str) -> None:
    answer = await rig.chat(raw)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (400, "invalid_json", "invalid_request_error")
    assert where in answer.error["message"]
    assert len(answer.body) < 400


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400 + ".5"])
async def test_numbers_that_overflow(rig: Rig, number: str) -> None:
    for place in (f'"temperature": {number}', f'"metadata": {{"a": [1, {{"b": {number}}}]}}'):
        answer = await rig.chat(f"{{{_MESSAGES}, {place}}}".encode())
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")
    assert rig.engine.wire == []


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_byte_order_mark_is_skipped(rig: Rig, size: int) -> None:
    assert (await rig.chat(b"\xef\xbb\xbf" + to_json(ask("a" * size, max_tokens=1)))).status == 200
    twice = await rig.chat(b"\xef\xbb\xbf" * 2 + to_json(ask("a")))
    assert (twice.status, twice.error["code"]) == (400, "invalid_json")


async def test_odd_but_valid_json(rig: Rig) -> None:
    raw = (
        f'{{"messages": 1, {_MESSAGES}, "big": 123456789012345678901234567890, "z": "\\u0000\\ud83d\\ude00"}}'.encode()
    )
    assert (await rig.chat(raw)).status == 200
    (sent,) = rig.engine.sent
    # Of equal keys the last one counts, as in every JSON reader that clients use.
    assert sent["messages"] == [{"role": "user", "content": "a"}]
    assert (sent["big"], sent["z"]) == (123456789012345678901234567890, "\0\N{GRINNING FACE}")
    deep: Any = {}
    for _ in range(150):
        deep = {"a": deep}
    assert (await rig.chat(ask("a", metadata=deep))).status == 200
    assert rig.engine.sent[-1]["metadata"] == deep


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (1, "invalid_body", None),
        ([], "invalid_body", None),
        (None, "invalid_body", None),
        ({}, "invalid_messages", "messages"),
        ({"messages": []}, "invalid_messages", "messages"),
        ({"messages": {}}, "invalid_messages", "messages"),
        ({"messages": [1]}, "invalid_message", "messages[0]"),
        ({"messages": [{"role": "user", "content": "a"}, {"content": "a"}]}, "invalid_message", "messages[1]"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "invalid_message", "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_content", "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "invalid_content", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [None]}]}, "invalid_content_part", "messages[0].content[0]"),
        (ask("a", model=5), "invalid_type", "model"),
        (ask("a", stream="true"), "invalid_type", "stream"),
        (ask("a", stream=1), "invalid_type", "stream"),
        (ask({"role": "assistant", "tool_calls": True}), "invalid_type", "messages[0].tool_calls"),
        (ask({"role": "assistant", "tool_calls": [5]}), "invalid_type", "messages[0].tool_calls[0]"),
        (ask({"role": "assistant", "tool_calls": [{"id": []}]}), "invalid_type", "messages[0].tool_calls[0].id"),
        (ask({"role": "assistant", "tool_calls": [{"function": "f"}]}), *_NO_CALL),
        (ask({"role": "assistant", "tool_calls": [{"function": ["f"]}]}), *_NO_CALL),
        (ask("a", {"role": "tool", "tool_call_id": {}}), "invalid_type", "messages[1].tool_call_id"),
        (ask("a", tools={}), "invalid_type", "tools"),
        (ask("a", tools=[None]), "invalid_tool", "tools[0]"),
        (ask("a", tools=["x"]), "invalid_tool", "tools[0]"),
        (ask("a", tools=[_TOOL, 5]), "invalid_tool", "tools[1]"),
        (ask("a", functions="f"), "invalid_type", "functions"),
        (ask("a", functions=[_TOOL["function"], []]), "invalid_tool", "functions[1]"),
        (ask("a", stream=True, stream_options=[]), "invalid_type", "stream_options"),
        (ask("a", stream=True, stream_options={"include_usage": "no"}), "invalid_type", "stream_options.include_usage"),
    ],
)
@pytest.mark.parametrize("policy", ["stable", "observe"])
async def test_wrong_types_name_their_place(rig: Rig, body: Any, code: str, param: str | None, policy: str) -> None:
    answer = await rig.chat(body, {"x-stillframe-policy": policy})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
    assert rig.engine.wire == []


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_FUNCTIONS = st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "arguments", "parameters"), _VALUES))
_PARTS = _VALUES | st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url", "input_image", "refusal", "file", "input_text"])},
    optional=dict.fromkeys(("text", "image_url", "refusal", "uuid", "detail"), _VALUES),
)
_CALLS = _VALUES | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("id", "type"), _VALUES) | {"function": _VALUES | _FUNCTIONS}
)
_MESSAGE = _VALUES | st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | _VALUES},
    optional={
        "content": st.lists(_PARTS, max_size=3) | _VALUES,
        "tool_calls": _VALUES | st.lists(_CALLS, max_size=2),
        "name": _VALUES,
    },
)
_BODIES = _VALUES | st.fixed_dictionaries(
    {"messages": st.lists(_MESSAGE, max_size=4) | _VALUES},
    optional=dict.fromkeys(
        ("model", "stream", "stream_options", "n", "tools", "max_tokens", "vllm_xargs", "documents", "metadata"),
        _VALUES | st.lists(_CALLS, max_size=2),
    ),
)


@pytest.fixture
async def strict(tmp_path: Path) -> AsyncGenerator[Rig]:
    # The engine answers everything with an error: what reaches it is its own to judge.
    async with running(tmp_path) as rig:
        yield rig


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_BODIES)
async def test_no_json_gives_a_failure_of_ours(strict: Rig, body: Any) -> None:
    strict.engine.inject(Fault("error", status=418))
    answer = await strict.chat(body)
    strict.engine.app.faults.clear()
    assert answer.status in (400, 418), answer.body
    assert answer.error["message"]


_REPLY = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}'


@pytest.fixture
async def willing(tmp_path: Path) -> AsyncGenerator[Rig]:
    # The engine takes everything: what the gateway makes of it afterwards is on trial.
    async with running(tmp_path, WatchedEngine(answer=answers_with(200, _REPLY))) as rig:
        yield rig


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_BODIES, policy=st.sampled_from(["observe", "stable", "reference"]))
async def test_nor_does_it_when_the_engine_takes_it(willing: Rig, body: Any, policy: str) -> None:
    answer = await willing.chat(body, {"x-stillframe-policy": policy, "x-stillframe-explain": "1"})
    assert answer.status in (200, 400), answer.body


@pytest.mark.parametrize(
    ("messages", "code", "param", "setting"),
    [
        (["a"] * 4, "too_many_messages", "messages", "server.max_messages"),
        ([None] * 4, "too_many_messages", "messages", "server.max_messages"),
        (["a", user(*[text("b")] * 5)], "too_many_parts", "messages[1].content", "server.max_parts"),
        ([user(*[text("b")] * 2)] * 3, "too_many_parts", "messages[2].content", "server.max_parts"),
        ([user(None, None), user(None, None, None)], "too_many_parts", "messages[1].content", "server.max_parts"),
        ([{"role": "user", "content": [0] * 71}], "too_many_values", None, "server.max_parts"),
    ],
)
async def test_a_request_has_a_size_besides_its_bytes(
    tmp_path: Path, messages: list[Any], code: str, param: str | None, setting: str
) -> None:
    limits = {"SERVER__MAX_MESSAGES": "3", "SERVER__MAX_PARTS": "4"}
    async with running(tmp_path, environment=limits) as rig:
        answer = await rig.chat(ask(*messages))
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
        assert setting in answer.error["message"]
        assert rig.engine.wire == []
        most = ask("a", user(text("a"), text("b")), user(text("c"), text("," * 1000)))
        assert (await rig.chat(most)).status == 200


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=200))
async def test_no_bytes_give_a_failure_of_ours(strict: Rig, raw: bytes) -> None:
    assert (await strict.chat(raw)).status == 400


@pytest.mark.case("MC-075", "MC-076")
async def test_declared_and_undeclared_size(tmp_path: Path) -> None:
    limits = {"SERVER__MAX_BODY_BYTES": "2000", "SERVER__INFLIGHT_BODY_BYTES": "2000"}
    async with running(tmp_path, environment=limits) as rig:
        small, large = to_json(ask("a")), to_json(ask("a" * 3000))
        chunked = {**JSON, "content-length": "", "transfer-encoding": "chunked"}
        for headers in (JSON, chunked, {**JSON, "content-length": "\xb2"}):
            assert (await rig.call("POST", CHAT, small, headers)).status == 200
            answer = await rig.call("POST", CHAT, large, headers)
            assert (answer.status, answer.error["code"]) == (413, "request_too_large")
            assert answer.headers["connection"] == "close"
            assert "2,000" in answer.error["message"]
        exact = to_json(ask("a", user="x"))
        exact = exact.replace(b'"x"', b'"' + b"x" * (2000 - len(exact) + 1) + b'"')
        assert len(exact) == 2000
        assert (await rig.call("POST", CHAT, exact, JSON)).status == 200


async def test_slow_body(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"SERVER__BODY_TIMEOUT_SECONDS": "0.05"}) as rig:
        sent: list[Any] = []

        async def receive() -> Any:
            if not sent:
                sent.append(1)
                return {"type": "http.request", "body": b"{", "more_body": True}
            return await asyncio.Event().wait()

        async def slow(scope: Any, _: asgi.Receive, send: asgi.SendMessage) -> None:
            await rig.app(scope, receive, send)

        async with asgi.call(slow, "POST", CHAT, headers=JSON) as reply:
            body = await reply.read()
        assert (reply.status, reply.headers["connection"]) == (408, "close")
        assert b'"request_timeout"' in body
        assert await rig.outcomes() == {"refused": 1}
        await rig.idle()


async def test_too_many_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"SERVER__MAX_CONCURRENT_REQUESTS": "2"}) as rig:
        for _ in range(2):
            rig.engine.inject(Fault("hang"))
        hanging = [asyncio.create_task(rig.chat(ask("a"))) for _ in range(2)]
        await until(lambda: rig.engine.app.open_requests == 2)
        answer = await rig.chat(ask("a"))
        assert (answer.status, answer.error["code"]) == (429, "too_many_requests")
        assert int(answer.headers["retry-after"]) > 0
        assert await rig.metric("stillframe_running_requests") == 2
        # Other routes still answer.
        assert (await rig.get("/v1/models")).status == 200
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        assert (await rig.chat(ask("a"))).status == 200
