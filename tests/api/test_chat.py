"""Chat completions: what goes to the engine, and what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.fake import FakeConfig
from tests.api.rig import Rig, WatchedEngine, answers_with, ask, running, streams, user

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


async def test_whole_answer(rig: Rig) -> None:
    answer = await rig.chat(ask("hello"))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["choices"][0]["message"]["content"]
    details = answer.json["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == 0
    assert answer.headers["x-request-id"] in answer.json["id"]
    assert answer.headers["x-stillframe-policy"] == "stable"
    assert int(answer.headers["content-length"]) == len(answer.body)


async def test_default_model_stands_in(rig: Rig) -> None:
    await rig.chat(ask("a"))
    await rig.chat(ask("a", model=None))
    assert [body["model"] for body in rig.engine.sent] == ["stillframe-fake"] * 2
    answer = await rig.chat(ask("a", model="other"))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "other" in answer.error["message"]


async def test_parameters_go_on_as_they_came(rig: Rig) -> None:
    given = {
        "temperature": 0.25,
        "top_p": 0.5,
        "seed": 7,
        "stop": ["zz"],
        "logit_bias": {"5": 1.5},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "metadata": {"a": [1, None, True, {"b": 2.5}]},
        "never_heard_of": "x",
        "priority": 0,
        "user": "u",
        "vllm_xargs": {"mine": 1, "kv_transfer_params": ["x"], "ec_transfer_params": ["x"]}
        | {"kv_cache_report_mode": "full"},
    }
    messages = [{"role": "user", "content": "a", "name": "n", "extra": {"k": 1}}]
    assert (await rig.chat({"messages": messages, "max_tokens": 1, **given})).status == 200
    (sent,) = rig.engine.sent
    assert sent.pop("cache_salt")
    assert sent.pop("session_id")
    expected = given | {"messages": messages, "max_tokens": 1, "model": "stillframe-fake", "vllm_xargs": {"mine": 1}}
    assert sent == expected


async def test_extra_keys_of_a_text_part_are_kept(rig: Rig) -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    await rig.chat(ask(user(part), user({"type": "input_text", "text": "b"})))
    contents = [message["content"] for message in rig.engine.sent[0]["messages"]]
    assert contents == [[part], [{"type": "text", "text": "b"}]]


@pytest.mark.parametrize("key", ["image_url", "image_embeds", "video_url", "input_audio", "image_pil"])
async def test_a_text_part_cannot_smuggle_media(rig: Rig, key: str) -> None:
    """vLLM takes a part that has a uuid by its other keys, whatever its type says."""
    part = {"type": "text", "text": "a", "uuid": "0" * 64, key: "http://169.254.169.254/secret"}
    assert (await rig.chat(ask(user(part)))).status == 200
    assert rig.engine.sent[0]["messages"][0]["content"] == [{"type": "text", "text": "a"}]


async def test_client_keys_that_could_cross_tenants_are_dropped(rig: Rig) -> None:
    dropped: dict[str, Any] = {
        "cache_salt": "mine",
        "mm_processor_kwargs": {"min_pixels": 1},
        "media_io_kwargs": {"image": {}},
        "kv_transfer_params": {"remote_block_ids": [1]},
        "ec_transfer_params": {},
        "request_id": "mine",
    }
    assert (await rig.chat(ask("a", **dropped))).status == 200
    (sent,) = rig.engine.sent
    assert not sent.keys() & (dropped.keys() - {"cache_salt"})
    assert sent["cache_salt"] != "mine"
    assert len(sent["cache_salt"]) == 64


async def test_n_and_logprobs(rig: Rig) -> None:
    answer = await rig.chat(ask("a", n=3, logprobs=True, top_logprobs=2))
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2]
    assert len(answer.json["choices"][2]["logprobs"]["content"][0]["top_logprobs"]) == 2
    streamed = await rig.chat(ask("a", n=3, stream=True, logprobs=True))
    indexes = {choice["index"] for event in streamed.events[:-1] for choice in event["choices"]}
    assert indexes == {0, 1, 2}


async def test_tools(rig: Rig) -> None:
    answer = await rig.chat(ask("a", tools=[TOOL], tool_choice="required", max_tokens=64))
    (call,) = answer.json["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    messages = [
        user("a"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done"},
    ]
    assert (await rig.chat(ask(*messages, tools=[TOOL]))).status == 200
    assert rig.engine.sent[-1]["messages"] == messages


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}, "absent"])
@pytest.mark.case("MC-089", "MC-090")
async def test_usage_is_stripped_unless_asked_for(rig: Rig, options: Any) -> None:
    extra: dict[str, Any] = {} if options == "absent" else {"stream_options": options}
    plain = (await rig.chat(ask("a", stream=True, seed=1, **extra))).events
    asked = (await rig.chat(ask("a", stream=True, seed=1, stream_options={"include_usage": True}))).events
    assert plain[-1] == asked[-1] == "[DONE]"
    assert asked[-2]["choices"] == []
    assert asked[-2]["usage"]["prompt_tokens"] > 0
    assert all("usage" not in event for event in plain[:-1])
    # Nothing else differs: the same events in the same order.
    assert [_content(event) for event in plain[:-1]] == [_content(event) for event in asked[:-2]]
    assert all(body["stream_options"]["include_usage"] is True for body in rig.engine.sent)


def _content(event: Any) -> Any:
    return {key: value for key, value in event.items() if key not in ("id", "created")}


async def test_other_stream_options_go_on(rig: Rig) -> None:
    options = {"include_usage": False, "continuous_usage_stats": True, "new": 1}
    answer = await rig.chat(ask("a", stream=True, stream_options=options))
    assert rig.engine.sent[0]["stream_options"] == options | {"include_usage": True}
    assert all("usage" not in event for event in answer.events[:-1])
    asked = await rig.chat(ask("a", stream=True, stream_options=options | {"include_usage": True}))
    assert all("usage" in event for event in asked.events[:-1])


async def test_stream_options_without_stream_are_the_engines_to_judge(rig: Rig) -> None:
    answer = await rig.chat(ask("a", stream_options={"include_usage": True}))
    assert (answer.status, answer.error["param"]) == (400, "stream_options")


@pytest.mark.parametrize("options", [[], {"include_usage": "no"}])
@pytest.mark.parametrize("stream", [None, False])
async def test_whatever_they_are(rig: Rig, options: Any, stream: bool | None) -> None:
    await rig.chat(ask("a", stream=stream, stream_options=options))
    assert rig.engine.sent[0]["stream_options"] == options


async def test_stream_headers(rig: Rig) -> None:
    answer = await rig.chat(ask("a", stream=True))
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]


async def test_context_length_message_survives(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(max_model_tokens=64))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask("word " * 500))
    assert answer.status == 400
    assert "maximum context length is 64 tokens" in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"


async def test_streamed_answer_of_an_engine_that_does_not_stream(tmp_path: Path) -> None:
    engine = WatchedEngine(answer=answers_with(200, b'{"choices":[]}'))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask("a", stream=True))
    assert (answer.headers["content-type"], answer.json) == ("application/json", {"choices": []})


async def test_chunks_are_relayed_as_they_are(tmp_path: Path) -> None:
    first, second = b'data: {"choices":[{"delta":{"content":"\\u00e9  x"}}]}\n\n', b": ping\n\n"
    engine = WatchedEngine(answer=streams(first, second, b"data: [DONE]\n\n"))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask("a", stream=True))
    # A comment keeps the connection alive; its words are the engine's.
    assert answer.body == first + b":\n\ndata: [DONE]\n\n"
