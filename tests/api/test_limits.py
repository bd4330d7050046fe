"""The engine's limits through HTTP: a history that is too much for the engine makes no request fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.fake import FakeConfig
from tests.api.rig import Answer, Rig, WatchedEngine, ask, image, running, text, user

NAMES = ("base.png", "alpha.png")


async def turn(rig: Rig, history: list[Any], *parts: Any) -> Answer:
    history.append(user(*parts))
    answer = await rig.chat(ask(*history))
    assert answer.status == 200, answer.body
    history.append({"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]})
    return answer


def images(messages: list[Any]) -> int:
    return sum(
        part["type"] != "text" for one in messages if isinstance(one["content"], list) for part in one["content"]
    )


async def test_a_chat_of_more_images_than_the_engine_takes_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(FakeConfig(max_images_per_prompt=3))) as rig:
        history: list[Any] = []
        answers = [await turn(rig, history, image(NAMES[step % 2]), text(f"step {step}")) for step in range(4)]
        assert [images(body["messages"]) for body in rig.engine.sent] == [1, 2, 3, 1]
        assert "x-stillframe-break" not in answers[2].headers
        assert answers[3].headers["x-stillframe-break"].startswith("policy_eviction; actor=policy; at=messages[0]")
        following = await turn(rig, history, "and now?")
        before, now = rig.engine.sent[-2:]
        assert "x-stillframe-break" not in following.headers
        assert now["messages"][: len(before["messages"])] == before["messages"]


async def test_what_is_too_much_in_one_question_is_the_engines_to_refuse(tmp_path: Path) -> None:
    async with running(tmp_path, WatchedEngine(FakeConfig(max_images_per_prompt=1))) as rig:
        answer = await rig.chat(ask(user(image(), image(), text("both"))))
        assert answer.status == 400
        assert "At most 1 image" in answer.error["message"]


async def test_a_long_chat_stays_within_the_models_context(tmp_path: Path) -> None:
    config = FakeConfig(max_model_tokens=2048)
    async with running(tmp_path, WatchedEngine(config)) as rig:
        history: list[Any] = []
        answers = [await turn(rig, history, "word " * 300) for _ in range(12)]
        assert 0 < sum("x-stillframe-break" in answer.headers for answer in answers) < 6


async def test_observe_changes_nothing(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(max_images_per_prompt=1))
    async with running(tmp_path, engine, {"POLICY": "observe"}) as rig:
        history: list[Any] = []
        await turn(rig, history, image(), text("one"))
        history.append(user(image(NAMES[1])))
        assert (await rig.chat(ask(*history))).status == 400
