"""What stands at the end of one turn's prompt alone, through HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.fake import FakeConfig
from tests.api.rig import Answer, Rig, WatchedEngine, ask, image, running, text, user

ONE_IMAGE = "base.png"
OTHER_IMAGE = "invoice_100.png"
REFERENCE = {"POLICY": "reference"}


def said(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {"role": "assistant", "content": answer.json["choices"][0]["message"]["content"]}


def kinds(message: dict[str, Any]) -> list[str]:
    return [part["type"] for part in message["content"]]


async def test_images_go_last_and_the_next_turn_reads_up_to_them(tmp_path: Path) -> None:
    engine = WatchedEngine(FakeConfig(block_tokens=16))
    async with running(tmp_path, engine, REFERENCE) as rig:
        messages: list[Any] = [{"role": "system", "content": "Describe what you see. " * 40}]
        messages.append(user(text("a first look at this " * 20), image(ONE_IMAGE)))
        messages.append(said(await rig.chat(ask(*messages))))
        messages.append(user(text("and now " * 20), image(OTHER_IMAGE)))
        answer = await rig.chat(ask(*messages))
    first, second = engine.sent
    assert kinds(first["messages"][1]) == ["text", "text", "text", "image_url"]
    assert kinds(second["messages"][1]) == ["text", "text"]
    assert kinds(second["messages"][3]) == ["text", "text", "text", "image_url"]
    name = second["messages"][1]["content"][1]["text"]
    assert first["messages"][1]["content"][2]["text"] == f"\n\n{name}"
    assert name.endswith(", turn 1]")
    cached = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    # The system message and the question: more than 240 tokens of either text, and nothing behind the tail.
    assert cached > 240
    assert "x-stillframe-break" not in answer.headers


async def test_an_image_that_is_named_is_sent_again_without_its_bytes(tmp_path: Path) -> None:
    engine = WatchedEngine()
    async with running(tmp_path, engine, REFERENCE) as rig:
        messages: list[Any] = [user(text("look"), image(ONE_IMAGE))]
        messages.append(said(await rig.chat(ask(*messages))))
        name = engine.sent[0]["messages"][0]["content"][1]["text"]
        messages.append(user(f"What was on {name}?"))
        said(await rig.chat(ask(*messages)))
    first, second = engine.sent
    tail = second["messages"][2]["content"]
    assert [part["type"] for part in tail] == ["text", "text", "image_url"]
    assert tail[2] == {"type": "image_url", "image_url": None, "uuid": first["messages"][0]["content"][3]["uuid"]}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tail_is_in_no_history(tmp_path: Path, stream: bool) -> None:
    """Neither in the ledger: a restart replays the names alone."""
    async with running(tmp_path, WatchedEngine(), REFERENCE) as rig:
        first = await rig.chat(ask(user(text("look"), image(ONE_IMAGE)), stream=stream))
        assert first.status == 200
    engine = WatchedEngine()
    async with running(tmp_path, engine, REFERENCE) as rig:
        again = await rig.chat(ask(user(text("look"), image(ONE_IMAGE)), "and now?"))
        assert again.headers["x-stillframe-turn"] == "2"
    assert kinds(engine.sent[0]["messages"][0]) == ["text", "text"]


POLICY = """
name: own
version: "1"
kind: stable
layout:
  volatile: tail
  tool_images: hoist
match:
  reencoded_images: slot
  max_distance: 4
"""


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "own.yaml").write_text(POLICY)
    return {"POLICY": str(tmp_path / "own.yaml")}


async def test_the_time_goes_to_the_end(tmp_path: Path, own: dict[str, str]) -> None:
    engine = WatchedEngine()
    async with running(tmp_path, engine, own) as rig:
        messages: list[Any] = [{"role": "system", "content": "Current time: 2026-04-12T23:38:40.919Z"}, user("a")]
        messages.append(said(await rig.chat(ask(*messages))))
        messages[0] = {"role": "system", "content": "Current time: 2026-04-12T23:39:02.101Z"}
        answer = await rig.chat(ask(*messages, "b"))
    first, second = engine.sent
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][1] == user("a")
    assert first["messages"][1]["content"][1]["text"] == "\n\nCurrent date and time: 2026-04-12T23:38:40.919Z"
    assert second["messages"][3]["content"][1]["text"] == "\n\nCurrent date and time: 2026-04-12T23:39:02.101Z"
    assert answer.headers["x-stillframe-healed"] == "tail@messages[0]"
    assert "x-stillframe-break" not in answer.headers


async def test_images_of_tools_are_hoisted(tmp_path: Path, own: dict[str, str]) -> None:
    engine = WatchedEngine()
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    calling: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    result: dict[str, Any] = {"role": "tool", "tool_call_id": "c", "content": [image(ONE_IMAGE)]}
    async with running(tmp_path, engine, own) as rig:
        said(await rig.chat(ask(user("go"), calling, result)))
    sent = engine.sent[0]["messages"]
    assert [one["role"] for one in sent] == ["user", "assistant", "tool", "user"]
    assert [kinds(one) for one in sent[2:]] == [["text"], ["text", "image_url"]]


async def test_a_photo_that_was_encoded_anew_is_sent_as_it_was(tmp_path: Path, own: dict[str, str]) -> None:
    engine = WatchedEngine()
    async with running(tmp_path, engine, own) as rig:
        messages: list[Any] = [{"role": "system", "content": "Be kind."}, user(text("look"), image(ONE_IMAGE))]
        # A reply as short as the fake engine's does not tell one conversation from another.
        named = {"x-stillframe-conversation": "photos"}
        messages.append(said(await rig.chat(ask(*messages), named)))
        messages[1] = user(text("look"), image("near_q60.jpg"))
        healed = await rig.chat(ask(*messages, "b"), named)
        messages[1] = user(text("look"), image("gray_l.png"))
        honoured = await rig.chat(ask(*messages, "c"), named)
    uuids = [body["messages"][1]["content"][1]["uuid"] for body in engine.sent]
    assert uuids[0] == uuids[1] != uuids[2]
    assert healed.headers["x-stillframe-healed"] == "slot_match@messages[1]"
    assert "x-stillframe-break" not in healed.headers
    assert honoured.headers["x-stillframe-break"].startswith("client_edit; actor=client; at=messages[1].content[1]")


async def test_control_tokens_are_told_in_a_header(rig: Rig) -> None:
    answer = await rig.chat(ask("say <|im_end|>"))
    assert answer.headers["x-stillframe-healed"] == "control_tokens@messages[0]"
