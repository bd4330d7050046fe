"""What /metrics says of the engine's KV cache, and of images that an engine did not show to its model."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic_core import to_json

from engine.fake import FakeConfig
from metrics.records import queries
from metrics.records.queries import open_records
from tests.api.rig import ADMIN, Rig, WatchedEngine, answers_with, ask, image, running, text, user

LONG = "the same words in front " * 40


async def _kv(rig: Rig) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample of the KV cache, by name and label values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    exposition = (await rig.get("/metrics")).body.decode()
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name.startswith("stillframe_kv_") and not sample.name.endswith("_created"):
                found.setdefault(sample.name.removeprefix("stillframe_kv_"), {})[tuple(sample.labels.values())] = (
                    sample.value
                )
    return found


async def test_what_the_engine_holds_and_evicts_is_told_by_modality(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(block_tokens=16, num_blocks=65, max_model_tokens=900))
    async with running(tmp_path, engine) as rig:
        answer = await rig.chat(ask(user(image(), text(LONG))))
        before = await _kv(rig)
        for number in range(6):
            assert (await rig.chat(ask(f"{number} {LONG}"))).status == 200
        after = await _kv(rig)
    visual = answer.json["usage"]["prompt_tokens_details"]["multimodal_tokens"]["image"]
    held = before["resident_tokens"]
    total = answer.json["usage"]["total_tokens"] - 1
    assert held["image",] == visual
    assert held["image",] + held["text",] == total // 16 * 16
    assert sum(before["resident_blocks"].values()) == total // 16
    assert before["resident_blocks"]["image",] + before["resident_blocks"]["mixed",] >= visual // 16
    assert set(before["evicted_tokens_total"].values()) == {0}
    # The picture's conversation was the first to go; it was used by one.
    assert after["evicted_tokens_total"]["image", "one"] == visual
    assert after["evicted_tokens_total"]["text", "one"] > 0
    gone = after["evicted_blocks_total"]
    assert gone["image",] + gone["mixed",] == before["resident_blocks"]["image",] + before["resident_blocks"]["mixed",]
    assert after["resident_tokens"]["image",] == 0
    assert after["resident_tokens"]["text",] <= 64 * 16
    assert after["event_gaps_total"][()] == 0


def _answer(**usage: Any) -> Any:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a cat"}}
    return answers_with(200, to_json({"object": "chat.completion", "choices": [choice], "usage": usage}))


async def _reached(rig: Rig, count: int) -> None:
    """Wait, at most two seconds, for the alarms; a record is made when the engine's events have had their time."""
    async with asyncio.timeout(2.0):
        while await rig.metric("stillframe_unseen_image_requests_total") != count:  # noqa: ASYNC110 - nothing tells when
            await asyncio.sleep(0.01)


@pytest.mark.case("MC-043")
@pytest.mark.parametrize(
    ("usage", "is_unseen"),
    [
        ({"prompt_tokens": 12}, True),
        ({"prompt_tokens": 12 + 24}, False),
        ({"prompt_tokens": 400}, False),
        # What the engine says of it goes before estimates.
        ({"prompt_tokens": 400, "prompt_tokens_details": {"multimodal_tokens": {"image": 0}}}, True),
        ({"prompt_tokens": 12, "prompt_tokens_details": {"multimodal_tokens": {"image": 9}}}, False),
        ({}, False),
    ],
)
async def test_an_image_that_an_upstream_dropped_raises_an_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, usage: dict[str, int], is_unseen: bool
) -> None:
    engine = WatchedEngine(answer=_answer(completion_tokens=2, **usage))
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path, engine, {"ESTIMATES__VISUAL_FAMILY": "qwen2.5-vl"}) as rig:
            for _ in range(3):
                assert (await rig.chat(ask(user(text("What is it?"), image())))).status == 200
            await rig.chat(ask("No picture at all."))
            await _reached(rig, 3 if is_unseen else 0)
    told = [one.message for one in caplog.records if "cannot have shown them" in one.message]
    assert len(told) == is_unseen
    with open_records(tmp_path / "ledger.db") as records:
        assert [one.unseen_images for one in queries.latest(records)] == [False] + 3 * [is_unseen]


@pytest.mark.case("MC-043")
@pytest.mark.parametrize(("visual", "is_unseen"), [(0, True), (24, False)])
async def test_a_dropped_image_is_noticed_behind_a_long_history(tmp_path: Path, visual: int, is_unseen: bool) -> None:
    """By what the prompt has grown by, where prompts are known to grow: the whole says nothing beside so much text."""
    engine = WatchedEngine()
    async with running(tmp_path, engine, {"ESTIMATES__VISUAL_FAMILY": "qwen2.5-vl"}) as rig:
        async with asyncio.timeout(2.0):
            while (await rig.get("/admin/state", ADMIN)).json["template"]["extends"] is None:  # noqa: ASYNC110 - as it is
                await asyncio.sleep(0)
        history: list[Any] = [user(f"{LONG} {LONG} {LONG} {LONG}")]
        for number, prompt in enumerate((700, 716, 732 + visual)):
            engine.answer = _answer(completion_tokens=3, prompt_tokens=prompt)
            assert (await rig.chat(ask(*history))).status == 200
            parts = [image()] if number == 1 else []
            history += [{"role": "assistant", "content": "a cat"}, user(text("And what is this here?"), *parts)]
        await _reached(rig, int(is_unseen))
    with open_records(tmp_path / "ledger.db") as records:
        assert [one.unseen_images for one in queries.latest(records)] == [is_unseen, False, False]
