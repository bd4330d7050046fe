"""Through a real server and real clients: the OpenAI library, and bytes on a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic_core import from_json, to_json

from engine.fake import FakeConfig, Fault
from tests.api.rig import CHAT, Rig, WatchedEngine, ask, data_url, image, serving, until, user
from tests.api.wire import Wire, head, post
from tests.unit.images.corpus import read

LIMITS = {"SERVER__MAX_BODY_BYTES": "1000000", "SERVER__INFLIGHT_BODY_BYTES": "1000000"}


@pytest.fixture
async def served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncGenerator[tuple[Rig, str, int]]:
    engine = WatchedEngine(FakeConfig(decode_seconds_per_token=0.001))
    with caplog.at_level(logging.WARNING):
        async with serving(tmp_path, engine, LIMITS) as started:
            yield started
    # Neither a failure of ours nor the server's complaint about an answer that we gave badly.
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_openai_client(served: tuple[Rig, str, int]) -> None:
    rig, host, port = served
    async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="k", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["stillframe-fake"]
        messages: Any = [user({"type": "text", "text": "what?"}, image())]
        first = await client.chat.completions.create(model="stillframe-fake", messages=messages, max_tokens=4)
        assert first.choices[0].message.content
        second = await client.chat.completions.create(model="stillframe-fake", messages=messages, max_tokens=4)
        assert second.usage is not None
        assert second.usage.prompt_tokens_details is not None
        assert second.usage.prompt_tokens_details.cached_tokens
        assert second.id != first.id
        stream = await client.chat.completions.create(
            model="stillframe-fake", messages=messages, max_tokens=4, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == first.choices[0].message.content
        stream = await client.chat.completions.create(
            model="stillframe-fake",
            messages=messages,
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        *_, last = [chunk async for chunk in stream]
        assert last.usage is not None
        assert (last.choices, last.usage.prompt_tokens) == ([], second.usage.prompt_tokens)
        bad: Any = [user(image("bad_trunc_half.png"))]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="stillframe-fake", messages=bad)
        assert (refused.value.code, refused.value.param) == ("truncated_image", "messages[0].content[0]")
        rig.engine.inject(Fault("error", status=500))
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="stillframe-fake", messages=messages)
        rig.engine.inject(Fault("break", after_chunks=2))
        stream = await client.chat.completions.create(model="stillframe-fake", messages=messages, stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            _ = [chunk async for chunk in stream]
    await rig.idle()


async def test_sync_openai_client(served: tuple[Rig, str, int]) -> None:
    _, host, port = served
    messages: Any = [user({"type": "text", "text": "what?"}, {"type": "input_image", "image_url": _url()})]

    def talk() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"http://{host}:{port}/v1/", api_key="k", max_retries=0) as client:
            whole = client.chat.completions.create(model="stillframe-fake", messages=messages, max_tokens=4)
            stream = client.chat.completions.create(
                model="stillframe-fake", messages=messages, max_tokens=4, stream=True
            )
            return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    whole, streamed = await asyncio.to_thread(talk)
    assert whole == streamed != ""


def _url() -> str:
    return data_url(read("base.png"))


async def test_an_openai_client_that_leaves(served: tuple[Rig, str, int]) -> None:
    rig, host, port = served
    async with openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="k", max_retries=0) as client:
        messages: Any = [user("a")]
        stream = await client.chat.completions.create(
            model="stillframe-fake",
            messages=messages,
            max_tokens=100_000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await anext(aiter(stream))
        assert rig.engine.app.driver.running == 1
        await asyncio.sleep(0.02)
        # Our server tells it; to wait for it would take a task of each request.
        assert "stillframe-disconnect" not in {task.get_name() for task in asyncio.all_tasks()}
        await stream.close()
        await rig.idle()
        assert await rig.outcomes() == {"aborted": 1}


async def test_keep_alive_and_head(served: tuple[Rig, str, int]) -> None:
    _, _, port = served
    wire = await Wire.open(port)
    for path in ("/health/live", "/v1/models", "/metrics"):
        await wire.send(head("HEAD", path))
        status, fields = await wire.head()
        assert status == 200
        assert int(fields["content-length"]) > 0
        assert "connection" not in fields
    # No body followed: the next answer starts where it should.
    await wire.send(post(to_json(ask("a"))))
    assert (await wire.whole())[0] == 200
    await wire.send(post(to_json(ask("a", stream=True))))
    status, fields, body = await wire.whole()
    assert (status, fields["transfer-encoding"]) == (200, "chunked")
    assert body.endswith(b"data: [DONE]\n\n")
    await wire.send(post(b"{"))
    status, fields, _ = await wire.whole()
    assert status == 400
    assert "connection" not in fields
    await wire.send(head("HEAD", "/nowhere"))
    assert (await wire.head())[0] == 404
    await wire.send(head("GET", "/health/live", "connection: close"))
    assert (await wire.whole())[1]["connection"] == "close"
    assert await wire.closed()
    await wire.hang_up()


async def test_broken_stream_is_well_formed_on_the_wire(served: tuple[Rig, str, int]) -> None:
    rig, _, port = served
    rig.engine.inject(Fault("break", after_chunks=3))
    wire = await Wire.open(port)
    await wire.send(post(to_json(ask("a", stream=True))))
    status, _, body = await wire.whole()
    assert status == 200
    assert b'"error"' in body
    assert body.endswith(b"data: [DONE]\n\n")
    await wire.send(head("GET", "/health/live"))
    assert (await wire.whole())[0] == 200
    await wire.hang_up()
    assert await rig.outcomes() == {"failed": 1}


async def test_expect_continue(served: tuple[Rig, str, int]) -> None:
    _, _, port = served
    body = to_json(ask("a"))
    wire = await Wire.open(port)
    await wire.send(post(body, "expect: 100-continue")[: -len(body)])
    assert (await wire.head())[0] == 100
    await wire.send(body)
    assert (await wire.whole())[0] == 200
    await wire.hang_up()
    # A body that would be refused is not asked for.
    wire = await Wire.open(port)
    length = "content-length: 99999999"
    await wire.send(head("POST", CHAT, "content-type: application/json", length, "expect: 100-continue"))
    status, fields, _ = await wire.whole()
    assert (status, fields["connection"]) == (413, "close")
    await wire.hang_up()


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.case("MC-076")
async def test_too_large_is_answered_while_the_client_still_sends(served: tuple[Rig, str, int], framing: str) -> None:
    rig, _, port = served
    wire = await Wire.open(port)
    piece = b"x" * 65_536
    kind = "content-type: application/json"
    if framing == "length":
        await wire.send(head("POST", CHAT, kind, f"content-length: {100 * len(piece)}"))
    else:
        await wire.send(head("POST", CHAT, kind, "transfer-encoding: chunked"))
        piece = b"%x\r\n%b\r\n" % (len(piece), piece)
    for _ in range(100):
        await wire.send(piece)
    status, fields, body = await wire.whole()
    assert (status, fields["connection"]) == (413, "close")
    assert from_json(body)["error"]["code"] == "request_too_large"
    if framing == "chunked":
        await wire.send(b"0\r\n\r\n")
    assert await wire.closed()
    await wire.hang_up()
    assert await rig.outcomes() == {"refused": 1}


@pytest.mark.parametrize("how", ["hang_up", "reset"])
@pytest.mark.parametrize("moment", ["head", "half a body", "body", "first byte"])
@pytest.mark.case("MC-093")
async def test_a_client_that_leaves(served: tuple[Rig, str, int], how: str, moment: str) -> None:
    rig, _, port = served
    wire = await Wire.open(port)
    request = post(to_json(ask("a", stream=True, max_tokens=100_000)))
    cut = {"head": request.index(b"\r\n\r\n") + 4, "half a body": len(request) - 5}.get(moment, len(request))
    if moment == "body":
        rig.engine.inject(Fault("hang"))
    await wire.send(request[:cut])
    if cut < len(request):
        await rig.has_running(1)
    else:
        await until(lambda: rig.engine.app.open_requests > 0)
    if moment == "first byte":
        await wire.head()
        await wire.reader.readuntil(b"\n\n")
    await (wire.hang_up() if how == "hang_up" else wire.reset())
    await rig.has_running(0)
    await rig.idle()
    assert await rig.outcomes() == {"aborted": 1}
    other = await Wire.open(port)
    await other.send(post(to_json(ask("a"))))
    assert (await other.whole())[0] == 200
    await other.hang_up()


async def test_a_client_that_leaves_on_the_end_mark(served: tuple[Rig, str, int]) -> None:
    rig, _, port = served
    for number in range(20):
        wire = await Wire.open(port)
        await wire.send(post(to_json(ask(f"{number}", stream=True, max_tokens=1))))
        await wire.reader.readuntil(b"data: [DONE]\n\n")
        await wire.reset()
    await rig.idle()
    await rig.has_running(0)
    assert await rig.outcomes() == {"completed": 20}


async def test_errors_on_the_wire_keep_their_outcome(served: tuple[Rig, str, int]) -> None:
    rig, _, port = served
    wire = await Wire.open(port)
    for _ in range(10):
        rig.engine.inject(Fault("error", status=400))
        await wire.send(post(to_json(ask("a"))))
        assert (await wire.whole())[0] == 400
    await wire.hang_up()
    assert await rig.outcomes() == {"refused": 10}


async def test_header_injection(served: tuple[Rig, str, int]) -> None:
    _, _, port = served
    wire = await Wire.open(port)
    await wire.send(post(to_json(ask("a")), "x-request-id: a b%0d%0ac", "x-stillframe-conversation: é\tx"))
    status, fields, _ = await wire.whole()
    assert status == 200
    # Ours, not the client's: it names the request towards the engine, where two must not share a name.
    assert fields["x-request-id"].isalnum()
    assert len(fields["x-request-id"]) == 24
    await wire.hang_up()


async def test_pipelined_requests(served: tuple[Rig, str, int]) -> None:
    _, _, port = served
    wire = await Wire.open(port)
    await wire.send(post(to_json(ask("a"))) + head("GET", "/health/live") + post(b"{"))
    assert [(await wire.whole())[0] for _ in range(3)] == [200, 200, 400]
    await wire.hang_up()
