"""What means the same has the same digest, and what does not has another."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from context.images.base import ImageRef
from context.transcript import ImagePart, message_of, transcript

CAT = ImageRef("ca" * 32, 640, 480, "image/png", 1000)
CAT_AS_WEBP = ImageRef("ca" * 32, 640, 480, "image/webp", 700)
DOG = ImageRef("d0" * 32, 640, 480, "image/png", 1000)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "click", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function, **more}],
    }


SAME: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a string and one text part": (user("hi"), user([{"type": "text", "text": "hi"}])),
    "no content, null, empty string": (user(None), user("")),
    "empty list": (user([]), {"role": "user"}),
    "container of an image": (user([ImagePart(CAT)]), user([ImagePart(CAT_AS_WEBP)])),
    "detail auto is the default": (user([ImagePart(CAT)]), user([ImagePart(CAT, "auto")])),
    "key order of arguments": (call('{"a":1,"b":2}'), call('{"b": 2, "a": 1}')),
    "spelling of a number in arguments": (call('{"x": 1.0}'), call('{"x":1}')),
    "index of a call": (call("{}"), call("{}", index=0)),
    "null keys": (user("hi"), {**user("hi"), "name": None}),
    "empty keys": (user("hi"), {**user("hi"), "name": "", "refusal": "", "audio": {}}),
    "empty keys of a part": (user("hi"), user([{"type": "text", "text": "hi", "annotations": [], "more": ""}])),
    "what a reply says beside its words": (user("hi"), {**user("hi"), "annotations": [{"url": "a"}], "logprobs": None}),
    "an empty text part": (user([{"type": "text", "text": "hi"}, {"type": "text", "text": ""}]), user("hi")),
    "no content and an empty text part": (user(""), user([{"type": "text", "text": ""}])),
    "names of a text part": (user("hi"), user([{"type": "output_text", "text": "hi", "annotations": []}])),
    "key order": ({"role": "user", "content": "a", "name": "b"}, {"name": "b", "content": "a", "role": "user"}),
    "cache_control": (
        user([{"type": "text", "text": "hi"}]),
        user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]),
    ),
}
OTHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": (user("hi"), user("hi ")),
    "unicode form": (user("\u00e9"), user("e\u0301")),
    "role": (user("hi"), {"role": "system", "content": "hi"}),
    "two parts and their sum": (user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), user("ab")),
    "order of parts": (user([ImagePart(CAT), ImagePart(DOG)]), user([ImagePart(DOG), ImagePart(CAT)])),
    "image": (user([ImagePart(CAT)]), user([ImagePart(DOG)])),
    "detail": (user([ImagePart(CAT, "low")]), user([ImagePart(CAT, "high")])),
    "an image and its name as text": (user([ImagePart(CAT)]), user(["image", "ca" * 32, None][1])),
    "arguments": (call('{"a": 1}'), call('{"a": 2}')),
    "arguments that are no JSON": (call("{a"), call("{a ")),
    "text that looks like arguments": (call('{"a": 1}'), call('"{\\"a\\": 1}"')),
    "no JSON and a list that spells it": (call("{a"), call('["text", "{a"]')),
    "order of a list in arguments": (call('{"a": [1, 2]}'), call('{"a": [2, 1]}')),
    "true and one": (call('{"a": true}'), call('{"a": 1}')),
    "name": ({**user("hi"), "name": "ann"}, {**user("hi"), "name": "bob"}),
    "false and no key": (user("hi"), {**user("hi"), "prefix": False}),
    "another type of part with a text": (user("hi"), user([{"type": "thinking", "text": "hi"}])),
    "an unknown key": (user("hi"), {**user("hi"), "reasoning_content": "so"}),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME.keys())
def test_equal_meaning_has_one_digest(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    one, two = map(message_of, pair)
    assert one.digest == two.digest
    assert len(one.digest) == 32


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER.keys())
def test_another_meaning_has_another_digest(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    one, two = map(message_of, pair)
    assert one.digest != two.digest


def test_the_form_tells_spellings_apart() -> None:
    one, two = message_of(call('{"a":1}')), message_of(call('{"a": 1}'))
    assert (one.digest, one.form) != (two.digest, two.form)
    assert one.digest == two.digest
    assert message_of(user("hi")).form == message_of(user("hi")).form


def test_a_chain_holds_every_prefix() -> None:
    messages = [user("one"), {"role": "assistant", "content": "two"}, user("three")]
    short, long = transcript(messages[:2], b"key"), transcript(messages, b"key")
    assert long.chain[:2] == short.chain
    assert len(set(long.chain)) == 3
    assert transcript([messages[1], messages[0]], b"key").chain[1] != short.chain[1]


def test_tenants_have_chains_of_their_own() -> None:
    assert transcript([user("hi")], b"one").chain != transcript([user("hi")], b"two").chain


def test_nothing_that_came_is_changed() -> None:
    wire = call('{"b": 1, "a": 2}')
    before = json.dumps(wire)
    message = message_of(wire)
    assert json.dumps(wire) == before
    assert message.wire is wire


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        keys: list[str] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return [shuffled(one, rng) for one in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType]


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4), st.randoms(use_true_random=False))
def test_arguments_are_compared_by_value_at_any_depth(arguments: dict[str, Any], rng: random.Random) -> None:
    one = call(json.dumps(arguments))
    two = call(json.dumps(shuffled(arguments, rng), indent=1, ensure_ascii=False))
    assert message_of(one).digest == message_of(two).digest
