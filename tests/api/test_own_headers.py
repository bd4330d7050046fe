"""Our own headers in more than one line: a list is joined, all else must be said once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from engine import asgi
from tests.api.rig import CHAT, JSON, Answer, Rig, ask, image, running, user

PIN = "x-stillframe-pin"


async def with_lines(rig: Rig, body: Any, *lines: tuple[str, str]) -> Answer:
    """Mappings hold a header once: lines are written by hand."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["headers"] += [(name.encode(), value.encode()) for name, value in lines]
        await rig.app(scope, receive, send)

    async with asgi.call(app, "POST", CHAT, headers=JSON, body=[to_json(body)]) as reply:
        return Answer(reply.status, reply.headers, await reply.read())


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("x-stillframe-policy", ("stable", "observe")),
        ("x-stillframe-conversation", ("one", "two")),
        ("x-stillframe-explain", ("0", "1")),
    ],
)
async def test_a_header_that_contradicts_itself_is_refused(rig: Rig, name: str, values: Sequence[str]) -> None:
    answer = await with_lines(rig, ask("a"), *((name, value) for value in values))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "repeated_header", name)
    assert rig.engine.wire == []
    same = await with_lines(rig, ask("a"), (name, values[1]), (name, f" {values[1]}"))
    assert same.status == 200


async def test_a_conversation_named_twice_is_refused_before_its_images_are_looked_at(rig: Rig) -> None:
    lines = [("x-stillframe-conversation", "one"), ("x-stillframe-conversation", "two")]
    answer = await with_lines(rig, ask(user({"type": "image_url", "image_url": 5})), *lines)
    assert answer.error["code"] == "repeated_header"


async def test_pins_in_several_lines_all_count(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('name: mine\nversion: "1"\nkind: batched\nbatched: {high: 2, low: 1}\n')
    reply = {"role": "assistant", "content": "seen"}
    messages = [user(image("base.png")), reply, user(image("flat_rgb.png")), reply, user(image("gray_l.png"))]
    explain = ("x-stillframe-explain", "1")
    async with running(tmp_path, environment={"POLICY": str(file)}) as rig:
        sent = (await with_lines(rig, ask(messages[0]), explain)).json["stillframe"]["sent"]
        first = sent[0]["images"][0]
    async with running(tmp_path / "other", environment={"POLICY": str(file)}) as rig:
        lines = [(PIN, "0" * 64), (PIN, first)]
        plan = (await with_lines(rig, ask(*messages), explain, *lines)).json["stillframe"]
        assert plan["sent"][0]["images"] == [first]


@pytest.mark.parametrize(
    ("lines", "told"),
    [(["a" * 64, "not one"], "item 2 is not"), ([",".join(["a" * 64] * 40)] * 2, "names 80 images")],
)
async def test_a_bad_pin_in_a_later_line_is_refused(rig: Rig, lines: list[str], told: str) -> None:
    answer = await with_lines(rig, ask("a"), *((PIN, line) for line in lines))
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "invalid_pin", PIN)
    assert told in answer.error["message"]
