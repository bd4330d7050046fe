"""What is counted: outcomes, tokens by disposition, images, what the engine did not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.fake import FakeConfig, Fault
from tests.api.rig import Rig, WatchedEngine, ask, image, running, text, user


async def _tokens(rig: Rig) -> dict[str, float]:
    dispositions = ("read", "write", "uncached")
    return {name: await rig.metric("stillframe_prompt_tokens_total", disposition=name) for name in dispositions}


async def test_tokens_sum_to_what_the_engine_counted(rig: Rig) -> None:
    shared = "the same words in front " * 20
    totals = {"prompt": 0, "read": 0, "write": 0, "completion": 0}
    for number in range(6):
        body = ask(user(text(shared), image(), text(f"{number} " * number)), max_tokens=3)
        if number % 2:
            answer = await rig.chat(body | {"stream": True, "stream_options": {"include_usage": True}})
            usage = answer.events[-2]["usage"]
        else:
            usage = (await rig.chat(body)).json["usage"]
        totals["prompt"] += usage["prompt_tokens"]
        totals["completion"] += usage["completion_tokens"]
        totals["read"] += usage["prompt_tokens_details"]["cached_tokens"]
        totals["write"] += usage["prompt_tokens_details"]["created_cache_tokens"]
    # Of a client that did not ask for usage as well.
    await rig.chat(ask(user(text(shared), image()), stream=True))
    counted = await _tokens(rig)
    core = rig.engine.app.core
    assert sum(counted.values()) == core.counters["prompt_tokens"] > totals["prompt"]
    assert counted["read"] == core.scheduler.hits > totals["read"] > 0
    assert counted["write"] >= totals["write"] > 0
    assert await rig.metric("stillframe_completion_tokens_total") == core.counters["generation_tokens"]
    assert await rig.metric("stillframe_visual_tokens_total") > 0
    assert await rig.metric("stillframe_unreported_requests_total") == 0
    assert await rig.outcomes() == {"completed": 7}
    assert await rig.metric("stillframe_encoder_images_total", event="run") == 1


@pytest.mark.case("MC-086")
async def test_what_is_not_reported_is_counted_as_such(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(FakeConfig(reports_cache=False))) as rig:
        for stream in (False, True):
            await rig.chat(ask("a", stream=stream))
        assert await _tokens(rig) == {"read": 0, "write": 0, "uncached": 0}
        assert await rig.metric("stillframe_unreported_requests_total") == 2
        assert await rig.metric("stillframe_completion_tokens_total") > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_outcomes_by_kind(rig: Rig, stream: bool) -> None:
    await rig.chat(ask("a", stream=stream))
    completed = rig.engine.app.core.counters["prompt_tokens"]
    rig.engine.inject(Fault("error", status=500))
    await rig.chat(ask("a", stream=stream))
    rig.engine.inject(Fault("error", status=400))
    await rig.chat(ask("a", stream=stream))
    rig.engine.inject(Fault("break"))
    await rig.chat(ask("a", stream=stream))
    await rig.chat(ask(user(image("bad_empty.png")), stream=stream))
    assert await rig.outcomes() == {"completed": 1, "failed": 2, "refused": 2}
    counts = [
        await rig.metric("stillframe_requests_total", outcome=name, stream=str(stream).lower())
        for name in ("completed", "failed", "refused")
    ]
    assert counts == [1, 2, 2]
    # Only a completed turn has tokens to count.
    assert sum((await _tokens(rig)).values()) == completed
    assert rig.engine.app.core.counters["prompt_tokens"] > completed
    assert await rig.metric("stillframe_total_seconds_count") == 5


async def test_refused_before_they_are_read(rig: Rig) -> None:
    await rig.chat(b"{")
    await rig.call("POST", "/v1/chat/completions", b"{}")
    assert await rig.outcomes() == {"refused": 2}
    assert await rig.metric("stillframe_first_byte_seconds_count") == 0


async def test_image_bytes_are_those_on_the_wire(rig: Rig) -> None:
    await rig.chat(ask(user(image())))
    shown = rig.engine.sent[0]["messages"][0]["content"][0]["image_url"]["url"]
    assert await rig.metric("stillframe_sent_image_bytes_total") == len(shown)
    await rig.chat(ask(user(image(), text("more"))))
    assert await rig.metric("stillframe_sent_image_bytes_total") == len(shown)
