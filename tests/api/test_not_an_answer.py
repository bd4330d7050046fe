"""An engine that says an error with the status 200: the client gets our words, and the turn has failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from tests.api.rig import Answer, Rig, WatchedEngine, answers_with, ask, running, streams

LEAK = "RuntimeError: CUDA error at /opt/vllm/worker.py line 3 0x7fffdeadbeef"
RAW = LEAK.encode()
DONE = b"data: [DONE]\n\n"
PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"part"},"finish_reason":null}]}\n\n'
SAID: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": "part"}}
USAGE = {"prompt_tokens": 9, "completion_tokens": 1}
OURS = {
    "message": "The engine failed to answer this request.",
    "type": "server_error",
    "param": None,
    "code": "engine_error",
}


def data(value: Any) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"


def no_leak(answer: Answer) -> None:
    for word in (b"CUDA", b"/opt", b"worker", b"0x7f", b"RuntimeError"):
        assert word not in answer.body


async def goes_on(rig: Rig, reply: str) -> Answer:
    """The next turn of a client that took the reply for the model's."""
    rig.engine.answer = None
    return await rig.chat(ask("a", {"role": "assistant", "content": reply}, "b"), {"x-stillframe-explain": "1"})


@pytest.mark.parametrize("explain", ["0", "1"])
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": LEAK}},
        {"error": LEAK, "choices": [{**SAID, "finish_reason": "stop"}]},
        {"object": "error", "message": LEAK, "choices": []},
        {"object": "error", "message": LEAK},
        {"choices": [{**SAID, "finish_reason": "error", "error": {"message": LEAK}}]},
        {"choices": [SAID, {**SAID, "index": 1, "finish_reason": "stop", "error": {"message": LEAK}}]},
        {"choices": [LEAK]},
        {"choices": {"message": LEAK}},
        {"choices": None},
        {"detail": LEAK},
        {},
    ],
)
async def test_a_whole_answer_that_is_none(tmp_path: Path, body: Any, explain: str) -> None:
    engine = WatchedEngine(answer=answers_with(200, to_json({**body, "usage": USAGE})))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask("a"), {"x-stillframe-explain": explain})
        assert (answer.status, answer.error) == (502, OURS)
        no_leak(answer)
        assert await rig.outcomes() == {"failed": 1}
        told = (await goes_on(rig, "part")).json["stillframe"]
        assert [one["source"] for one in told["sent"]].count("engine") == 0


@pytest.mark.parametrize(
    "body",
    [
        {"error": None, "choices": [{**SAID, "finish_reason": "stop", "error": None}]},
        {"choices": [{**SAID, "finish_reason": "stop"}], "prompt_filter_results": []},
    ],
)
async def test_a_whole_answer_that_names_no_error(tmp_path: Path, body: Any) -> None:
    async with running(tmp_path, WatchedEngine(answer=answers_with(200, to_json(body)))) as rig:
        answer = await rig.chat(ask("a"))
        assert (answer.status, answer.json) == (200, body)
        assert await rig.outcomes() == {"completed": 1}


@pytest.mark.parametrize("rest", [b"", PIECE + DONE, b"data: " + RAW + b"\n\n" + DONE], ids=["end", "more", "again"])
@pytest.mark.parametrize(
    "event",
    [
        data({"object": "error", "message": LEAK}),
        data({"object": "error", "message": LEAK, "usage": USAGE}),
        b"event: error\n" + data({"message": LEAK}),
        b"event: error\n" + PIECE,
        b"event:error\n\n",
        data({"detail": LEAK}),
        data({"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"message": LEAK}}]}),
        data({"choices": LEAK}),
        data({"choices": [LEAK], "usage": None}),
        data([LEAK]),
        data({}),
        data({"usage": None}),
        b"data: " + RAW + b"\n\n",
        b"data: {" + RAW + b"\n\n",
        b"data: " + RAW + b"\ndata: and more\n\n",
        b"\xef\xbb\xbfdata: " + RAW + b"\n\n",
    ],
)
async def test_an_event_that_is_no_piece_of_an_answer(tmp_path: Path, event: bytes, rest: bytes) -> None:
    async with running(tmp_path, WatchedEngine(answer=streams(PIECE, event, rest))) as rig:
        answer = await rig.chat(ask("a", stream=True))
        no_leak(answer)
        assert answer.body.startswith(PIECE)
        assert answer.body.removeprefix(PIECE).removeprefix(b"event: error\n") == data({"error": OURS}) + DONE
        assert await rig.outcomes() == {"failed": 1}
        told = (await goes_on(rig, "part")).json["stillframe"]
        assert [one["source"] for one in told["sent"]].count("engine") == 0


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (b": " + RAW + b"\n\n", b":\n\n"),
        (b": OPENROUTER PROCESSING\n\n", b":\n\n"),
        (b": " + RAW + b"\n" + PIECE, PIECE),
        (RAW + b"\n\n", b":\n\n"),
        (RAW + b"\n" + PIECE, PIECE),
        (b"data:\n\n", b":\n\n"),
        (b"event: " + RAW + b"\nid: worker.py\nretry: " + RAW + b"\n" + PIECE, PIECE),
        (b"event: message\nid: 7\nretry: 3000\n" + PIECE, b"event: message\nid: 7\nretry: 3000\n" + PIECE),
        (b"retry: 3000\n\n", b"retry: 3000\n\n"),
        (b"\xef\xbb\xbf" + PIECE, PIECE),
        (b"data: " + RAW, None),
        (RAW, None),
    ],
)
async def test_what_is_no_data_has_no_words(tmp_path: Path, event: bytes, shown: bytes | None) -> None:
    """None: it is the last line of a stream that then breaks off."""
    last = PIECE.replace(b"null", b'"stop"')
    rest = last + DONE if shown is not None else b""
    async with running(tmp_path, WatchedEngine(answer=streams(event, rest))) as rig:
        answer = await rig.chat(ask("a", stream=True))
        no_leak(answer)
        if shown is None:
            assert answer.body.count(b"\n\n") == 2
            assert b"engine_protocol_error" in answer.body
            assert answer.body.endswith(DONE)
        else:
            assert answer.body == shown + last + DONE
        assert await rig.outcomes() == {"completed" if shown is not None else "failed": 1}


@pytest.mark.parametrize("rest", [data({"detail": LEAK}), b"data: " + RAW + b"\n\n", RAW, b": " + RAW + b"\n\n"])
@pytest.mark.parametrize("joined", [False, True])
async def test_what_comes_behind_the_end_mark_is_not_the_clients(tmp_path: Path, rest: bytes, joined: bool) -> None:
    chunks = [PIECE + DONE + rest] if joined else [PIECE, DONE, rest]
    async with running(tmp_path, WatchedEngine(answer=streams(*chunks))) as rig:
        assert (await rig.chat(ask("a", stream=True))).body == PIECE + DONE
        assert await rig.outcomes() == {"completed": 1}


@pytest.mark.parametrize(
    "event",
    [
        # Azure, the first of its events.
        {"choices": [], "id": "", "model": "", "prompt_filter_results": [{"prompt_index": 0}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}, "error": None}], "error": None},
        {"choices": [{"index": 0, "delta": {"content": "error"}, "finish_reason": "error"}]},
        # Azure, where its filter could not be asked.
        {"choices": [{"index": 0, "delta": {}, "content_filter_results": {"error": {"code": "content_filter_error"}}}]},
        {"choices": [{"index": 0, "delta": {}, "logprobs": {"content": [{"token": "error", "logprob": -1.0}]}}]},
    ],
)
async def test_what_engines_stream_goes_on(tmp_path: Path, event: Any) -> None:
    async with running(tmp_path, WatchedEngine(answer=streams(data(event), DONE))) as rig:
        assert (await rig.chat(ask("a", stream=True))).body == data(event) + DONE
        assert await rig.outcomes() == {"completed": 1}


async def test_usage_may_come_without_choices(tmp_path: Path) -> None:
    engine = WatchedEngine(answer=streams(PIECE, data({"usage": USAGE}), DONE))
    async with running(tmp_path, engine) as rig:
        assert (await rig.chat(ask("a", stream=True))).body == PIECE + DONE
        asked = await rig.chat(ask("a", stream=True, stream_options={"include_usage": True}))
        assert asked.body == PIECE + data({"usage": USAGE}) + DONE
        assert await rig.outcomes() == {"completed": 2}
