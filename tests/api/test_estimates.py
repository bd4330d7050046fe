"""Estimates through HTTP: the shipped vocabulary, corrected by what the engine reports, and the settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.settings import load
from context.errors import ConfigError
from context.tokens.vocabulary import shipped
from tests.api.rig import Rig, ask, image, running, text, user

# Long words: one token each for Qwen, and several for the fake engine.
WORDS = " ".join(f"information technology international {number} development" for number in range(40))


async def explained(rig: Rig, *messages: Any) -> tuple[int, int, Any]:
    """What was estimated of a prompt, what the engine counted, and the reply."""
    answer = await rig.chat(ask(*messages), {"x-stillframe-explain": "1"})
    assert answer.status == 200, answer.body
    reply = answer.json["choices"][0]["message"]["content"]
    return answer.json["stillframe"]["estimates"]["prompt_tokens"], answer.json["usage"]["prompt_tokens"], reply


async def loaded(rig: Rig) -> None:
    """Wait, at most some seconds, for the vocabulary, which is loaded beside the engine."""
    words = "internationalization " * 20
    async with asyncio.timeout(20):
        while (await explained(rig, words))[0] != 5 + shipped().count(words):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0)


async def test_estimates_come_close_to_what_the_engine_counts(rig: Rig) -> None:
    await loaded(rig)
    messages: list[Any] = []
    errors: list[float] = []
    for turn in range(8):
        messages.append(user(text(f"turn {turn}: {WORDS}")))
        estimated, counted, reply = await explained(rig, *messages)
        messages.append({"role": "assistant", "content": reply})
        errors.append(abs(estimated / counted - 1))
    assert errors[0] > 0.15
    assert errors[-1] < 0.05


async def test_tools_are_of_the_estimate(tmp_path: Path) -> None:
    """They stand in the prompt as the messages do; here they are most of it."""
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": f"look_{number}", "description": WORDS, "parameters": {}}}
        for number in range(4)
    ]
    async with running(tmp_path) as rig:
        await loaded(rig)
        errors: list[float] = []
        for turn in range(6):
            answer = await rig.chat(ask(f"turn {turn}", tools=tools), {"x-stillframe-explain": "1"})
            told = answer.json["stillframe"]["estimates"]["prompt_tokens"]
            errors.append(abs(told / answer.json["usage"]["prompt_tokens"] - 1))
    assert errors[-1] < 0.1


async def test_the_number_for_every_image_may_be_told(tmp_path: Path) -> None:
    told = {"ESTIMATES__VISUAL_FAMILY": "fixed", "ESTIMATES__IMAGE_TOKENS": "5000"}
    async with running(tmp_path, environment=told) as rig:
        estimated, counted, _ = await explained(rig, user(image()))
        assert counted < 1000
        assert 5000 < estimated < 5020


def test_a_family_that_there_is_not_stops_the_start() -> None:
    with pytest.raises(ConfigError, match=r"estimates\.visual_family.*'auto'.*'qwen2-vl'"):
        load(environment={"STILLFRAME_ESTIMATES__VISUAL_FAMILY": "clip"})
    with pytest.raises(ConfigError, match=r"estimates\.image_tokens"):
        load(environment={"STILLFRAME_ESTIMATES__IMAGE_TOKENS": "0"})
