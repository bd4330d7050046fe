"""Images of tool results behind their group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.images.base import ImageRef
from context.layout.groups import tool_groups
from context.layout.hoist import hoist
from context.layout.names import marker
from context.plan import SentMessage
from context.transcript import ImagePart

CAT = ImagePart(ImageRef("ca" * 32, 640, 480, "image/png", 1000), "high")
DOG = ImagePart(ImageRef("d0" * 32, 800, 600, "image/png", 1000))
CAT_MARK = "[image_id " + "ca" * 32 + " 640x480]"
USER = {"role": "user", "content": "go"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(*ids: str) -> dict[str, Any]:
    calls = [{"id": one, "type": "function", "function": {"name": "f", "arguments": "{}"}} for one in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(identity: str, *parts: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": list(parts)}


def wires(sent: tuple[SentMessage, ...]) -> list[Any]:
    return [one.wire for one in sent]


def laid_out(messages: list[Any]) -> tuple[SentMessage, ...]:
    """Messages as a first turn sends them."""
    sent, waiting = hoist([SentMessage(wire, at) for at, wire in enumerate(messages)], messages, range(len(messages)))
    assert waiting == ()
    return tuple(sent)


@pytest.mark.case("MC-061")
def test_payloads_stand_behind_the_whole_group_under_their_markers() -> None:
    """MC-061."""
    messages = [USER, call("a", "b"), result("a", text("before"), CAT, text("after")), result("b", DOG), USER]
    sent = laid_out(messages)
    assert [one.source for one in sent] == [0, 1, 2, 3, None, 4]
    assert sent[2].wire == result("a", text("before"), text(CAT_MARK), text("after"))
    assert sent[3].wire == result("b", text(marker(DOG.ref)))
    assert sent[4].wire == {"role": "user", "content": [text(CAT_MARK), CAT, text(marker(DOG.ref)), DOG]}
    assert [one.wire for one in (sent[0], sent[1], sent[5])] == [messages[0], messages[1], messages[4]]


def test_an_open_group_waits_with_its_images() -> None:
    messages = [USER, call("a", "b"), result("a", CAT)]
    sent, waiting = hoist([SentMessage(wire, at) for at, wire in enumerate(messages)], messages, range(3))
    assert waiting == (CAT,)
    assert wires(tuple(sent)) == [USER, messages[1], result("a", text(CAT_MARK))]


def test_each_group_has_its_own_payload() -> None:
    messages = [USER, call("a"), result("a", CAT), call("b"), result("b", DOG)]
    roles = [one.wire["role"] for one in laid_out(messages)]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool", "user"]


def test_images_of_users_and_text_results_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [CAT]}, call("a"), result("a", text("none")), USER]
    sent = laid_out(messages)
    assert all(one.wire is wire for one, wire in zip(sent, messages, strict=True))


def test_nothing_that_came_is_changed() -> None:
    messages = [call("a"), result("a", CAT)]
    laid_out(messages)
    assert messages[1] == result("a", CAT)


def step(kind: int, one: list[Any], two: list[Any]) -> list[dict[str, Any]]:
    return [
        [{"role": "user", "content": one}],
        [call("a"), result("a", *one)],
        [call("a", "b"), result("b", *one), result("a", *two)],
        [call("a"), USER, result("a", *one)],
        [{"role": "assistant", "content": "done"}],
    ][kind]


def parts_in(wires: list[Any]) -> list[Any]:
    return [part for wire in wires if isinstance(wire["content"], list) for part in wire["content"]]


PARTS: st.SearchStrategy[list[Any]] = st.lists(st.sampled_from((CAT, DOG, text("t"))), max_size=3)
SESSION = st.lists(st.builds(step, st.integers(0, 4), PARTS, PARTS), max_size=5)


@given(SESSION)
def test_a_second_run_changes_nothing(steps: list[list[Any]]) -> None:
    once = laid_out([wire for step in steps for wire in step])
    assert wires(laid_out(wires(once))) == wires(once)


@given(SESSION, SESSION)
def test_what_follows_extends_what_was_sent(steps: list[list[Any]], more: list[list[Any]]) -> None:
    short = [wire for step in steps for wire in step]
    long = short + [wire for step in more for wire in step]
    sent = wires(laid_out(short))
    assert wires(laid_out(long))[: len(sent)] == sent


@given(SESSION)
def test_no_image_is_lost_or_left_in_a_result_and_no_group_is_split(steps: list[list[Any]]) -> None:
    messages = [wire for step in steps for wire in step]
    sent = laid_out(messages)
    before, after = parts_in(messages), parts_in(wires(sent))
    for image in (CAT, DOG):
        assert after.count(image) == before.count(image)
    assert not any(one.images for one in sent if one.wire["role"] == "tool")
    assert [one.source for one in sent if one.source is not None] == list(range(len(messages)))
    assert len(tool_groups(wires(sent))) == len(tool_groups(messages))
