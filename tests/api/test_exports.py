"""What leaves a running gateway beside its answers: exports of its turns, traces, and counts of what it healed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.export_command import kept_images
from context.errors import ConfigError
from metrics.exports.tokens import EngineTokens
from metrics.exports.turns import recorded_turns
from metrics.exports.write import write
from tests.api.rig import ADMIN, JSON, Rig, blobs, image, running
from tests.unit.images.corpus import image_id
from tests.unit.metrics.exports.collector import attributes, collector

_TRACE, _PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def _body(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"model": "stillframe-fake", "messages": list(messages)}


async def _converse(rig: Rig) -> list[Any]:
    """Two turns with an image; what the engine says that each took."""
    first = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image()]}
    one = await rig.chat(_body(first))
    reply = one.json["choices"][0]["message"]
    two = await rig.chat(
        _body(first, {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": "And?"})
    )
    return [one.json["usage"], two.json["usage"]]


async def test_token_ids_by_the_engine_are_those_of_the_prompt(tmp_path: Path) -> None:
    async def tokenize(body: Any) -> list[int]:
        answer = await rig.call("POST", "/engine/tokenize", json.dumps(body).encode(), {**JSON, **ADMIN})
        assert answer.status == 200, answer.body
        return answer.json["tokens"]

    async with running(tmp_path) as rig:
        usage = await _converse(rig)
    visual = usage[0]["prompt_tokens_details"]["multimodal_tokens"]["image"]
    file = tmp_path / "tokens.jsonl"
    async with running(tmp_path) as rig, kept_images(rig.settings) as load:
        tokens = EngineTokens(tokenize, load, lambda width, height: visual, "stillframe-fake")
        with recorded_turns(tmp_path / "ledger.db") as turns:
            made = await write(turns, "token_ids", file, tokens)
    assert (made.turns, made.unplaced) == (2, 0)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["input_length"] for line in lines] == [one["prompt_tokens"] for one in usage]
    spans = [span for span in lines[1]["spans"] if span["type"] == "image"]
    assert [(span["image_id"], span["end"] - span["start"]) for span in spans] == [(image_id("base.png"), visual)]


async def test_an_image_that_is_no_longer_kept_is_said(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await _converse(rig)
        settings = rig.settings
    for blob in blobs(tmp_path):
        blob.unlink()
    with recorded_turns(tmp_path / "ledger.db") as turns:
        [image, *_] = next(turns).images
    async with kept_images(settings) as load:
        with pytest.raises(ConfigError, match="no longer kept"):
            await load(image, "default")


async def test_bodies_have_their_usage_and_no_image_bytes(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        usage = await _converse(rig)
        sent = rig.engine.wire[0]
    file = tmp_path / "turns.jsonl"
    with recorded_turns(tmp_path / "ledger.db", "default") as turns:
        await write(turns, "openai", file, None)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["usage"]["prompt_tokens"] for line in lines] == [one["prompt_tokens"] for one in usage]
    assert [line["usage"]["prompt_tokens_details"]["cached_tokens"] for line in lines] == [
        one["prompt_tokens_details"]["cached_tokens"] for one in usage
    ]
    assert [line["outcome"] for line in lines] == ["completed"] * 2
    assert lines[0]["reply"]["role"] == "assistant"
    assert b"base64" in sent
    assert "base64" not in file.read_text()


async def test_a_turn_goes_to_the_collector_within_its_clients_trace(tmp_path: Path) -> None:
    with collector() as made:
        async with running(tmp_path, environment={"OTEL__ENDPOINT": made.url}) as rig:
            answer = await rig.chat(
                _body({"role": "user", "content": "Hello, who is there?"}),
                {"traceparent": f"00-{_TRACE}-{_PARENT}-01"},
            )
        [span] = made.spans
    found = attributes(span)
    assert span.trace_id.hex() == _TRACE
    assert span.parent_span_id.hex() == _PARENT
    assert found["stillframe.request_id"] == answer.headers["x-request-id"]
    assert found["gen_ai.conversation.id"] == answer.headers["x-stillframe-conversation"]
    assert found["gen_ai.usage.input_tokens"] == answer.json["usage"]["prompt_tokens"]
    assert found["gen_ai.provider.name"] == "stillframe_fake"
    assert not [body for body in made.bodies if b"who is there" in body]


async def test_what_is_healed_is_counted(rig: Rig) -> None:
    first = {"role": "user", "content": "Hello"}
    one = await rig.chat(_body(first))
    reply = {"role": "assistant", "content": one.json["choices"][0]["message"]["content"]}
    spelled = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    await rig.chat(_body(spelled, reply, {"role": "user", "content": "And?"}))
    assert await rig.metric("stillframe_healed_total", what="content_form") == 1
