"""In what two messages of one meaning are spelled differently."""

from __future__ import annotations

from typing import Any

import pytest

from context.alignment import heals
from context.images.base import ImageRef
from context.transcript import ImagePart, message_of
from tests.unit.context.transcripts import image, ref, text


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "click", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function, **more}]}


HI = {"role": "user", "content": "hi"}
PARTS = {"role": "user", "content": [text("hi")]}
MARKED = {**text("hi"), "cache_control": {"type": "ephemeral"}}
SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "a string and parts": (HI, PARTS, ("content_form",)),
    "null and nothing": ({"role": "user", "content": None}, {"role": "user"}, ("content_form",)),
    "empty string and empty list": (
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        ("content_form",),
    ),
    "null and empty string": (call("{}"), {**call("{}"), "content": ""}, ("content_form",)),
    "detail": (
        {"role": "user", "content": [image("a")]},
        {"role": "user", "content": [image("a", "auto")]},
        ("image_detail",),
    ),
    "key order of arguments": (call('{"a":1,"b":2}'), call('{"b":2,"a":1}'), ("arguments",)),
    "index of a call": (call("{}"), call("{}", index=0), ("call_keys",)),
    "null key": (HI, {**HI, "name": None}, ("null_keys",)),
    "null key of a part": (PARTS, {"role": "user", "content": [{**text("hi"), "annotations": None}]}, ("null_keys",)),
    "cache_control": (PARTS, {"role": "user", "content": [MARKED]}, ("cache_control",)),
    "string without and parts with cache_control": (
        HI,
        {"role": "user", "content": [MARKED]},
        ("content_form", "cache_control"),
    ),
    "key order": (
        {"role": "user", "content": "a", "name": "b"},
        {"name": "b", "content": "a", "role": "user"},
        ("key_order",),
    ),
    "key order of a part": (PARTS, {"role": "user", "content": [{"text": "hi", "type": "text"}]}, ("key_order",)),
    "key order deep in a key": (
        {**HI, "extra": [{"a": 1, "b": {"c": 1, "d": 2}}]},
        {**HI, "extra": [{"a": 1, "b": {"d": 2, "c": 1}}]},
        ("key_order",),
    ),
    "a number": ({**HI, "extra": 1}, {**HI, "extra": 1.0}, ("spelling",)),
    "two at once": (call('{"a":1}'), {**call('{"a": 1}'), "refusal": None}, ("arguments", "null_keys")),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_what_is_spelled_differently(spelling: tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]) -> None:
    old, new = message_of(spelling[0]), message_of(spelling[1])
    assert old.digest == new.digest
    assert heals(old, new) == spelling[2]
    assert heals(new, old) == spelling[2]


def test_nothing_to_heal() -> None:
    assert heals(message_of(HI), message_of(dict(HI))) == ()
    other = ImageRef(ref("a").image_id, 1280, 800, "image/webp", 7)
    old, new = ({"role": "user", "content": [part]} for part in (image("a"), ImagePart(other)))
    assert heals(message_of(old), message_of(new)) == ()
