"""What clients are told when the engine fails, and what they are never told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic_core import to_json

from engine import asgi
from engine.fake import Fault
from tests.api.rig import Rig, WatchedEngine, answers_with, ask, blobs, events, image, running, streams, text, user

LEAKS = (b"Traceback", b"/srv/", b".py", b"0x7f", b"sk-", b"hunter2", b"<html", b"site-packages", b"Error(")


@pytest.mark.parametrize(
    ("status", "expected", "code"),
    [
        (500, 502, "engine_error"),
        (502, 502, "engine_error"),
        (503, 503, "engine_error"),
        (504, 504, "engine_error"),
        (400, 400, "invalid_value"),
        (404, 404, "model_not_found"),
        (429, 429, "invalid_value"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_status(rig: Rig, status: int, expected: int, code: str, stream: bool) -> None:
    rig.engine.inject(Fault("error", status=status))
    answer = await rig.chat(ask("a", stream=stream))
    assert (answer.status, answer.error["code"]) == (expected, code)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert await rig.outcomes() == {"refused" if expected < 500 else "failed": 1}
    await rig.idle()


@pytest.mark.parametrize("status", [201, 204, 302, 600])
async def test_an_answer_that_makes_no_sense_is_the_engines_fault(tmp_path: Path, status: int) -> None:
    headers = ((b"location", b"http://elsewhere/"), (b"content-type", b"application/json"))
    async with running(tmp_path, WatchedEngine(answer=answers_with(status, b"{}", headers))) as rig:
        answer = await rig.chat(ask("a"))
    assert (answer.status, answer.error["type"]) == (502, "server_error")
    assert "location" not in answer.headers


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"<html><body>nginx /srv/app/x.py</body></html>",
        b"[1, 2]",
        b"null",
        b'"Traceback (most recent call last)"',
        b"\xff\xfe",
        to_json({"error": {"message": "Traceback (most recent call last):\n File /srv/app/x.py", "code": 1}}),
        to_json({"error": {"message": {"detail": "/srv/app/secret"}, "param": ["/srv/a"], "code": {"x": "/srv/b"}}}),
        to_json({"error": {"message": "ok", "param": "/srv/app/x", "code": "/srv/app/x.py"}}),
        to_json({"error": "cannot open /srv/models/a"}),
        to_json({"message": "KeyError('sk-abcdefghijkl')", "object": "error"}),
        to_json({"detail": [{"loc": ["body"], "msg": "/srv/app/x.py"}]}),
        to_json({"error": {"message": "Incorrect API key provided: sk-abcde*****wxyz"}}),
        to_json({"error": {"message": "upstream http://user:hunter2@10.0.0.1/ refused"}}),
        to_json({"error": {"message": "<foo.Bar object at 0x7f0011223344>"}}),
        to_json({"error": {"message": "Authorization: Bearer hunter2hunter2"}}),
        to_json({"error": {"message": "x" * 100_000}}),
        to_json({"error": {"message": "1 validation error for Chat\nFor further information visit x"}}),
    ],
)
async def test_no_leaks(tmp_path: Path, status: int, body: bytes) -> None:
    async with running(tmp_path, WatchedEngine(answer=answers_with(status, body))) as rig:
        answer = await rig.chat(ask("a"))
    assert answer.status in (status, 502)
    assert answer.error["message"]
    assert len(answer.body) < 2000
    assert not [leak for leak in LEAKS if leak in answer.body]


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_not_the_clients_is_not_the_clients_fault(tmp_path: Path, status: int) -> None:
    refusal = answers_with(status, to_json({"error": {"message": "Incorrect API key."}}))
    async with running(tmp_path, WatchedEngine(answer=refusal), {"UPSTREAMS__API_KEY": "ours"}) as rig:
        assert (await rig.chat(ask("a"), {"authorization": "Bearer theirs"})).status == 502
    async with running(tmp_path, WatchedEngine(answer=refusal)) as rig:
        assert (await rig.chat(ask("a"), {"authorization": "Bearer theirs"})).status == status


async def test_retry_after_of_the_engine_goes_on(tmp_path: Path) -> None:
    for value, expected in ((b"7", "7"), (b"x\tevil", None)):
        busy = answers_with(429, b"{}", ((b"retry-after", value),))
        async with running(tmp_path, WatchedEngine(answer=busy)) as rig:
            answer = await rig.chat(ask("a"))
        assert (answer.status, answer.headers.get("retry-after")) == (429, expected)


@pytest.mark.parametrize("body", [b"", b"<html>", b"{"])
async def test_an_answer_that_is_not_json(tmp_path: Path, body: bytes) -> None:
    async with running(tmp_path, WatchedEngine(answer=answers_with(200, body))) as rig:
        answer = await rig.chat(ask("a"))
        assert (answer.status, answer.error["code"]) == (502, "engine_protocol_error")
        assert await rig.outcomes() == {"failed": 1}


@pytest.mark.parametrize("stream", [False, True])
async def test_engine_breaks_before_it_answers(rig: Rig, stream: bool) -> None:
    rig.engine.inject(Fault("fail"))
    answer = await rig.chat(ask("a", stream=stream))
    assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert (await rig.chat(ask("a"))).status == 200
    assert await rig.outcomes() == {"failed": 1, "completed": 1}


async def test_engine_breaks_in_the_middle_of_a_whole_answer(rig: Rig) -> None:
    rig.engine.inject(Fault("break"))
    answer = await rig.chat(ask("a"))
    assert (answer.status, answer.error["code"]) == (502, "engine_protocol_error")


async def test_engine_breaks_in_the_middle_of_a_stream(rig: Rig) -> None:
    rig.engine.inject(Fault("break", after_chunks=3))
    answer = await rig.chat(ask("a", stream=True))
    assert not answer.broken
    *before, error, done = answer.events
    assert len(before) == 3
    assert error["error"]["code"] == "engine_protocol_error"
    assert done == "[DONE]"
    assert await rig.outcomes() == {"failed": 1}
    await rig.idle()


async def test_engine_crashes_in_the_middle_of_a_stream(rig: Rig) -> None:
    raw = to_json(ask("a", stream=True, max_tokens=1000))
    headers = {"content-type": "application/json"}
    async with asgi.call(rig.app, "POST", "/v1/chat/completions", headers=headers, body=[raw]) as reply:
        chunks = [await anext(reply.chunks)]
        rig.engine.app.driver.crash()
        chunks += [chunk async for chunk in reply.chunks]
    *_, error, done = events(b"".join(chunks))
    assert error["error"]["type"] == "server_error"
    assert "stack trace" not in error["error"]["message"]
    assert done == "[DONE]"
    assert (await rig.get("/health/ready")).status == 503


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error": {"message": "at /srv/app/x.py", "code": 400}}\n\n',
        b'event: error\r\ndata: {"error":\r\ndata: {"message": "/srv/app/x.py"}}\r\n\r\n',
        b'data: {"error": "/srv/app/x.py"}\n\ndata: [DONE]\n\n',
    ],
)
async def test_error_event_of_the_engine(tmp_path: Path, event: bytes) -> None:
    engine = WatchedEngine(answer=streams(b'data: {"choices":[]}\n\n', event))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask("a", stream=True))
        assert b"/srv" not in answer.body
        assert b'"code":"engine_error"' in answer.body
        assert answer.body.endswith(b"\n\ndata: [DONE]\n\n")
        assert answer.body.count(b"[DONE]") == 1
        assert await rig.outcomes() == {"failed": 1}


async def test_stream_that_ends_without_its_end_mark_is_broken(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(answer=streams(b'data: {"choices":[]}\n\ndata: {"cho'))) as rig:
        answer = await rig.chat(ask("a", stream=True))
        assert await rig.outcomes() == {"failed": 1}
    assert b'"code":"engine_protocol_error"' in answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_what_comes_after_the_end_mark_changes_nothing(tmp_path: Path) -> None:
    engine = WatchedEngine(answer=streams(b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n", breaks=True))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask("a", stream=True))
        assert answer.events == [{"choices": []}, "[DONE]"]
        assert await rig.outcomes() == {"completed": 1}


async def test_starting_and_crashed_engine(tmp_path: Path) -> None:
    class Slow(WatchedEngine):
        """Starts when it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.go = asyncio.Event()

        async def start(self) -> None:
            await self.go.wait()
            await super().start()

    engine = Slow()
    async with running(tmp_path, engine, wait=False) as rig:
        ready = await rig.get("/health/ready")
        assert (ready.status, ready.json["status"]) == (503, "starting")
        assert (await rig.get("/health/live")).status == 200
        answer = await rig.chat(ask(user(image(), text("a"))))
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert await rig.metric("stillframe_engine_ready") == 0
        engine.go.set()
        await engine.started.wait()
        assert (await rig.get("/health/ready")).json == {"status": "ready", "reason": ""}
        assert (await rig.chat(ask("a"))).status == 200
        engine.inject(Fault("crash"))
        crashed = await rig.chat(ask("a"))
        assert (crashed.status, crashed.error["type"]) == (503, "server_error")
        assert int(crashed.headers["retry-after"]) > 0
        assert (await rig.get("/health/ready")).json["status"] == "crashed"
        assert (await rig.chat(ask("a", stream=True))).status == 503


async def test_engine_that_cannot_start_is_said_to_have_failed(tmp_path: Path) -> None:
    from context.errors import EngineUnavailable

    class Broken(WatchedEngine):
        """Cannot start."""

        async def start(self) -> None:
            self.started.set()
            raise EngineUnavailable("no memory")

    async with running(tmp_path, Broken()) as rig:
        assert (await rig.get("/health/ready")).status == 503
        assert (await rig.chat(ask("a"))).status == 503


async def test_a_store_that_cannot_be_read_is_our_fault(tmp_path: Path) -> None:
    """The image's bytes lie in a folder that has become a file."""
    async with running(tmp_path, environment={"IMAGES__PAYLOAD_CACHE_BYTES": "0"}) as rig:
        assert (await rig.chat(ask(user(image())))).status == 200
        (blob,) = blobs(tmp_path)
        blob.unlink()
        blob.mkdir()
        await rig.engine.reset_caches()
        answer = await rig.chat(ask(user(image())))
        assert answer.status in (400, 500)
        assert answer.error["message"]
        assert str(tmp_path).encode() not in answer.body
        assert answer.headers["x-request-id"]
