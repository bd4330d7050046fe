"""What an engine says of a turn, and what a client sees of it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from engine.fake import FakeConfig
from metrics.usage import Usage, read_usage
from tests.api.rig import Rig, WatchedEngine, ask, running

WORDS = "tell me about the picture " * 20


@pytest.mark.case("MC-086")
async def test_no_figure_is_no_zero(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "app.gateway"):
        async with running(tmp_path, WatchedEngine(FakeConfig(reports_cache=False))) as rig:
            for _ in range(2):
                assert (await rig.chat(ask(WORDS))).status == 200
            await rig.idle()
            assert await rig.metric("stillframe_unreported_requests_total") == 2
            # Neither read nor computed: nobody knows.
            for name in ("read", "write", "uncached"):
                assert await rig.metric("stillframe_prompt_tokens_total", disposition=name) == 0
    told = [record.getMessage() for record in caplog.records if record.name == "app.gateway"]
    # Once, with the flag that mends it.
    assert len(told) == 1
    assert "--enable-prompt-tokens-details" in told[0]


@pytest.mark.case("MC-086")
async def test_a_zero_is_a_zero(rig: Rig) -> None:
    assert (await rig.chat(ask(WORDS))).status == 200
    await rig.idle()
    assert await rig.metric("stillframe_unreported_requests_total") == 0
    assert await rig.metric("stillframe_prompt_tokens_total", disposition="write") > 0
    assert read_usage({"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}).read_tokens == 0
    assert read_usage({"prompt_tokens": 9, "prompt_tokens_details": None}).read_tokens is None


def usage(**details: int) -> dict[str, Any]:
    return {"prompt_tokens": 150_383, "completion_tokens": 5, "prompt_tokens_details": details}


@pytest.mark.case("MC-088")
def test_reads_and_writes_of_vllm() -> None:
    derived = read_usage(usage(cached_tokens=149_936))
    assert derived == Usage(150_383, 5, 149_936, 447, 0, True)
    assert round((derived.read_tokens or 0) / (derived.prompt_tokens or 1), 3) == 0.997
    told = read_usage(usage(cached_tokens=149_936, created_cache_tokens=432))
    assert (told.write_tokens, told.uncached_tokens, told.write_derived) == (432, 15, False)


@pytest.mark.case("MC-089", "MC-090")
@pytest.mark.parametrize("wants", [False, True])
async def test_usage_of_a_stream_is_counted_and_shown_to_who_asked(rig: Rig, wants: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if wants else {}
    answer = await rig.chat(ask(WORDS, stream=True, **options))
    assert rig.engine.sent[-1]["stream_options"]["include_usage"] is True
    events = [event for event in answer.events if event != "[DONE]"]
    # A client that reads choices[0] of every event finds it, unless it asked for the event without one.
    assert [bool(event["choices"]) for event in events].count(False) == int(wants)
    assert any(event.get("usage") for event in events) is wants
    await rig.idle()
    assert await rig.metric("stillframe_prompt_tokens_total", disposition="write") > 0


@pytest.mark.case("MC-092")
async def test_streamed_or_not_the_figures_are_the_same(tmp_path: Path) -> None:
    found: list[list[float]] = []
    for stream in (False, True):
        async with running(tmp_path / str(stream)) as rig:
            for _ in range(2):
                assert (await rig.chat(ask(WORDS, stream=stream))).status == 200
            await rig.idle()
            names = ("read", "write", "uncached")
            found.append([await rig.metric("stillframe_prompt_tokens_total", disposition=name) for name in names])
    assert found[0] == found[1]
    assert found[0][0] > 0
