"""What a request or an engine could make large is bounded before it costs anything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from app.call_limits import CallLimits
from app.public import public_error
from app.wire import parse_chat
from context.errors import EngineProtocolError, RequestError
from engine.base import EngineReply


def test_numbers_that_overflow_are_found_in_one_pass() -> None:
    # 308 digits and a letter, again and again: a search that starts anew at each digit would take minutes.
    text = ("1" * 308 + "a") * 50_000
    raw = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert parse_chat(raw, default_model=None, limits=CallLimits(1, 100, 1000)).messages[0]["content"] == text
    with pytest.raises(RequestError, match="too large"):
        parse_chat(raw[:-1] + b', "seed": ' + b"9" * 400 + b".0}", default_model=None, limits=CallLimits(1, 100, 1000))


def test_images_beyond_the_limit_are_not_looked_at() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
    parts = [part] * 3 + [{"type": "image_url", "image_url": 5}]
    raw = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    with pytest.raises(RequestError) as refused:
        parse_chat(raw, default_model=None, limits=CallLimits(2, 100, 1000))
    assert (refused.value.code, refused.value.param) == ("too_many_images", "messages[0].content[2]")


LIMITS = CallLimits(1, 20, 100)


def test_a_body_of_far_too_many_values_is_not_parsed() -> None:
    most = LIMITS.max_values
    for piece in (b"0,", b"{},", b"[],", b'"",', b'{"a":0},', b'"\\\\",', b'"\\"",'):
        # It is no JSON: a parser would have said so.
        with pytest.raises(RequestError, match=r"more than 1200 JSON values.*server\.max_parts") as refused:
            parse_chat(b"[" + piece * (most + 1), default_model=None, limits=LIMITS)
        assert refused.value.code == "too_many_values"


@pytest.mark.parametrize("text", [",", "{[,", 'a "b", c\\', "\\", '\\\\"', "\n,"])
def test_text_is_one_value_whatever_stands_in_it(text: str) -> None:
    text *= 100_000
    raw = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    for body in (raw, bytearray(raw)):
        assert parse_chat(body, default_model=None, limits=LIMITS).messages[0]["content"] == text


def test_the_largest_request_has_not_too_many_values() -> None:
    part = {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "name": "n", "content": [part] * 5} for _ in range(20)]
    raw = json.dumps({"messages": messages}).encode()
    assert len(raw) > LIMITS.max_values
    assert len(parse_chat(raw, default_model=None, limits=LIMITS).messages) == 20


def test_a_key_of_the_configuration_never_comes_back() -> None:
    secret = "Zx9-topsecret.value_777"
    said = {"error": {"message": f"no {secret}", "param": secret, "code": secret}}
    assert secret not in str(public_error(said, 422, (secret,)))
    assert secret in str(public_error(said, 422))


def test_a_long_error_is_cut_before_it_is_searched() -> None:
    _, body = public_error({"error": {"message": "a " * 5_000_000}}, 404)
    assert len(body["error"]["message"]) <= 1000


async def test_an_answer_has_an_end() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    with pytest.raises(EngineProtocolError, match="too long"):
        await EngineReply(200, {}, endless()).read(10_000)
