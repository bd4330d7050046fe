"""What a request or an engine could make large is bounded before it costs anything."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from app.public import public_error
from app.wire import parse_chat
from context.errors import EngineProtocolError, RequestError
from engine.base import EngineReply


def test_numbers_that_overflow_are_found_in_one_pass() -> None:
    # 308 digits and a letter, again and again: a search that starts anew at each digit would take minutes.
    text = ("1" * 308 + "a") * 50_000
    raw = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    assert parse_chat(raw, default_model=None, max_images=1).messages[0]["content"] == text
    with pytest.raises(RequestError, match="too large"):
        parse_chat(raw[:-1] + b', "seed": ' + b"9" * 400 + b".0}", default_model=None, max_images=1)


def test_images_beyond_the_limit_are_not_looked_at() -> None:
    part = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
    parts = [part] * 3 + [{"type": "image_url", "image_url": 5}]
    raw = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    with pytest.raises(RequestError) as refused:
        parse_chat(raw, default_model=None, max_images=2)
    assert (refused.value.code, refused.value.param) == ("too_many_images", "messages[0].content[2]")


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
