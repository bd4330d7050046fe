"""A body means the same whether its image data was lifted out of it or not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json

from app.call_limits import CallLimits
from app.lift import lift
from app.wire import ChatCall, parse_chat
from context.errors import RequestError

LONG = "data:image/png;base64,iVBORw0K" + "A" * 20_000
TEXTS = st.sampled_from(
    [LONG, LONG + "B", "data:short", "plain", 'quoted "data:' + "x" * 20_000, "back\\slash", "é" * 10_000, "\\"]
)


def parse(raw: bytes) -> ChatCall:
    return parse_chat(raw, default_model=None, limits=CallLimits(100, 100, 1000))


def body(content: Any, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}], **more}).encode()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text_of(call: ChatCall, index: int) -> str:
    value = call.images[index].source.value
    return value if isinstance(value, str) else bytes(value).decode()


def test_an_image_is_a_view_of_the_body() -> None:
    call = parse(body([image(LONG), {"type": "text", "text": "what?"}, image(LONG + "C")]))
    assert [type(found.source.value) for found in call.images] == [memoryview, memoryview]
    assert [text_of(call, index) for index in (0, 1)] == [LONG, LONG + "C"]
    assert LONG not in str(call.body)


def test_a_data_url_in_a_text_stays_a_text() -> None:
    call = parse(body([{"type": "text", "text": LONG}, image(LONG)]))
    assert call.messages[0]["content"][0]["text"] == LONG
    assert text_of(call, 0) == LONG
    assert parse(body(LONG)).messages[0]["content"] == LONG
    assert parse(body("hi", metadata={LONG: LONG})).body["metadata"] == {LONG: LONG}


def test_escapes_are_the_parsers() -> None:
    escaped = json.dumps(LONG + "é/").replace("/", "\\/").encode()
    raw = body([image("X")]).replace(b'"X"', escaped)
    assert text_of(parse(raw), 0) == LONG + "é/"


@pytest.mark.parametrize(("before", "after"), [(b'"', b""), (b'{"a": "b"', b'"}'), (b'"x\\"', b"")])
def test_what_is_no_json_is_none_lifted(before: bytes, after: bytes) -> None:
    with pytest.raises(ValueError, match="line 1"):
        from_json(lift(before + LONG.encode() + after).skeleton)


def test_an_error_names_its_place_in_the_body_as_it_came() -> None:
    raw = body([image(LONG)])[:-1] + b", nope}"
    with pytest.raises(RequestError, match=f"column {len(raw) - 4}"):
        parse(raw)


IMAGES = st.sampled_from([LONG, LONG + "B", "data:short", LONG + "\\", LONG + '"' + LONG])
PARTS = st.one_of(IMAGES.map(image), TEXTS.map(lambda text: {"type": "text", "text": text}))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(TEXTS, st.lists(PARTS, max_size=4)), min_size=1, max_size=4),
    st.dictionaries(TEXTS, TEXTS, max_size=2),
    st.booleans(),
)
def test_any_body_means_the_same(contents: list[Any], more: dict[str, str], ascii_only: bool) -> None:
    messages = [{"role": "user", "content": content} for content in contents]
    raw = json.dumps({"messages": messages, "metadata": more}, ensure_ascii=ascii_only).encode()
    call = parse(raw)
    assert call.body["metadata"] == more
    for found in call.images:
        content: Any = contents[found.message]
        index = call.images.index(found)
        assert text_of(call, index) == content[found.part]["image_url"]["url"]
    for message, content in zip(call.messages, contents, strict=True):
        if isinstance(content, str):
            assert message["content"] == content
            continue
        for part, sent in zip(message["content"], content, strict=True):
            assert part["type"] == "image_url" or part == sent
