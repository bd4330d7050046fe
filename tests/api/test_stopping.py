"""A gateway told to stop while requests run: after the grace they are cut off, and their clients are told so in
OpenAI's words; what the engine did for them ends, and their turns are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic_core import from_json, to_json

from engine.fake import FakeConfig, Fault
from metrics.records import queries
from metrics.records.queries import open_records
from metrics.records.record import TurnRecord
from tests.api.rig import Rig, WatchedEngine, ask, events, serving, until, user
from tests.api.wire import Wire, head, post

LONG: dict[str, Any] = {"max_tokens": 3_000, "ignore_eos": True}


@asynccontextmanager
async def _serving(folder: Path, grace: str = "0") -> AsyncGenerator[tuple[Rig, int]]:
    engine = WatchedEngine(FakeConfig(decode_seconds_per_token=0.005))
    async with serving(folder, engine, {"SERVER__SHUTDOWN_GRACE_SECONDS": grace}) as (rig, _, port):
        yield rig, port


async def _send(port: int, body: Any, cut: int = 0) -> Wire:
    """A chat on a connection of its own; without its last `cut` bytes."""
    wire, request = await Wire.open(port), post(to_json(body))
    await wire.send(request[: len(request) - cut])
    return wire


async def _cut_off(wire: Wire) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of the answer, and that the connection was closed behind it."""
    async with asyncio.timeout(5):
        answer = await wire.whole()
        assert await wire.closed()
    await wire.hang_up()
    return answer


def _kept(folder: Path) -> list[TurnRecord]:
    with open_records(folder / "ledger.db") as records:
        return queries.latest(records, limit=10)


def _is_told(error: Any) -> None:
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == ("server_error", "engine_unavailable", None)
    assert "stopping" in error["message"]
    assert "again" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_whose_answer_has_not_begun_gets_an_error_in_openais_words(tmp_path: Path, stream: bool) -> None:
    async with _serving(tmp_path) as (rig, port):
        rig.engine.inject(Fault("hang"))
        wire = await _send(port, ask("a", stream=stream))
        await until(lambda: rig.engine.app.open_requests > 0)
    status, headers, body = await _cut_off(wire)
    assert (status, headers["content-type"]) == (503, "application/json")
    assert int(headers["retry-after"]) > 0
    assert headers["connection"] == "close"
    assert len(headers["x-request-id"]) == 24
    _is_told(from_json(body)["error"])


async def test_the_engine_computes_no_further_and_the_turn_is_recorded(tmp_path: Path) -> None:
    async with _serving(tmp_path) as (rig, port):
        wire = await _send(port, ask("a", **LONG))
        served = rig.engine.app
        await until(lambda: served.driver.running > 0)
    assert (await _cut_off(wire))[0] == 503
    assert (served.open_requests, served.driver.running) == (0, 0)
    (record,) = _kept(tmp_path)
    assert (record.outcome, record.stream, record.prompt_tokens) == ("aborted", False, None)
    assert record.conversation


async def test_a_stream_that_has_begun_ends_with_an_error_event(tmp_path: Path) -> None:
    async with _serving(tmp_path) as (rig, port):
        wire = await _send(port, ask("a", stream=True, **LONG))
        served = rig.engine.app
        await until(lambda: served.driver.running > 0)
    status, _, body = await _cut_off(wire)
    assert status == 200
    *pieces, last, end = events(body)
    assert end == "[DONE]"
    assert set(last) == {"error"}
    _is_told(last["error"])
    assert pieces
    assert all("choices" in piece for piece in pieces)
    assert (served.open_requests, served.driver.running) == (0, 0)
    (record,) = _kept(tmp_path)
    assert (record.outcome, record.stream) == ("aborted", True)


async def test_an_openai_client_sees_an_error_and_no_answer_that_looks_whole(tmp_path: Path) -> None:
    messages: Any = [user("a")]
    async with _serving(tmp_path) as (rig, port):
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
        create: Any = client.chat.completions.create
        long = {"ignore_eos": True}
        ask_for: Any = {"model": "stillframe-fake", "messages": messages, "max_tokens": 3000, "extra_body": long}
        stream = await create(**ask_for, stream=True)
        whole: asyncio.Task[Any] = asyncio.create_task(create(**ask_for))
        await until(lambda: rig.engine.app.driver.running == 2)
    with pytest.raises(openai.InternalServerError) as refused:
        await whole
    assert (refused.value.status_code, refused.value.code) == (503, "engine_unavailable")
    with pytest.raises(openai.APIError, match="stopping"):
        _ = [chunk async for chunk in stream]
    await client.close()
    assert [one.outcome for one in _kept(tmp_path)] == ["aborted", "aborted"]


async def test_a_chat_whose_body_is_still_on_its_way_is_told_too(tmp_path: Path) -> None:
    async with _serving(tmp_path) as (rig, port):
        wire = await _send(port, ask("a"), cut=3)
        await rig.has_running(1)
    status, _, body = await _cut_off(wire)
    assert status == 503
    _is_told(from_json(body)["error"])
    assert rig.engine.wire == []


async def test_what_ends_within_the_grace_is_answered(tmp_path: Path) -> None:
    async with _serving(tmp_path, grace="5") as (rig, port):
        wire = await _send(port, ask("a", max_tokens=8))
        await until(lambda: rig.engine.app.driver.running > 0)
    status, _, body = await _cut_off(wire)
    assert status == 200
    assert from_json(body)["choices"][0]["message"]["content"]
    assert [one.outcome for one in _kept(tmp_path)] == ["completed"]


async def test_a_client_that_waits_at_another_path_is_told_as_well(tmp_path: Path) -> None:
    async with _serving(tmp_path) as (rig, port):
        wire = await Wire.open(port)
        # It waits two seconds for what is not reported.
        await wire.send(head("GET", "/admin/requests/nobodys", f"authorization: Bearer {rig.settings.admin_token}"))
    status, _, body = await _cut_off(wire)
    assert status == 503
    _is_told(from_json(body)["error"])
