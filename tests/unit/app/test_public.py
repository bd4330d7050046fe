"""What of an engine's error a client may see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from app.public import public_error, public_error_bytes

USEFUL = [
    "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens.",
    "The model `gpt-x` does not exist.",
    "n must be at least 1 and at most 128, got 500.",
    "At most 4 image(s) may be provided in one prompt. Set `--limit-mm-per-prompt` to increase this limit.",
    "Parameter 'cache_salt' must not contain '@', '/', '\\\\', or NUL.",
    "Unsupported media type image/png and/or text/plain.",
    "See https://platform.example.com/docs/errors for help.",
    "temperature must be non-negative, got -1.0",
    "Expected a <image> placeholder for each image",
    "Rate limit reached: 3 requests/min",
]
PRIVATE = [
    "Traceback (most recent call last):",
    "cannot open /srv/models/demo",
    "cannot open '/srv/models'",
    "path=/var/lib/x",
    "in `/opt/app/x`",
    "[/opt/app/x]",
    "error:/opt/app/x",
    "file:///opt/x",
    "~/models/x",
    "../models/x",
    "C:\\models\\x",
    "[Errno 2] No such file or directory: 'x'",
    "<vllm.Request object at 0x7f00aa11bb22>",
    "Failed to apply Qwen2_5_VLProcessor on data={'images': [<PIL.Image.Image image mode=RGB size=2000x4>]}",
    "Failed to apply XProcessor with kwargs={'do_rescale': False}",
    "<class 'vllm.Request'>",
    "KeyError('x')",
    "torch.OutOfMemoryError: CUDA",
    "1 validation error for ChatCompletionRequest",
    "set VLLM_USE_V1=1",
    "OPENAI_API_KEY is not set",
    "Incorrect API key provided: sk-proj-****wxyz",
    "token hf_abcdefghijkl",
    "Authorization: Bearer abcd1234",
    "http://user:hunter2@host/",
    "<!DOCTYPE html><p>502",
    "salt 0123456789abcdef0123456789abcdef",
]


def _message(message: Any, status: int = 400) -> str:
    return public_error({"error": {"message": message}}, status)[1]["error"]["message"]


@pytest.mark.parametrize("message", USEFUL)
def test_useful_words_go_on(message: str) -> None:
    assert _message(message) == message


@pytest.mark.parametrize("message", PRIVATE)
def test_private_words_do_not(message: str) -> None:
    for shown in (message, f"Bad: {message}", f"{message}\nand more"):
        assert _message(shown) == "The engine refused this request; check its parameters."


@pytest.mark.parametrize("status", [500, 501, 502, 599, 200, 204, 302, 100])
def test_what_is_no_4xx_is_ours_to_word(status: int) -> None:
    shown, body = public_error({"error": {"message": USEFUL[0], "param": "x", "code": "y"}}, status)
    assert shown == 502
    assert body["error"] == {
        "message": "The engine failed to answer this request.",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }


@pytest.mark.parametrize("status", [503, 504])
def test_busy_and_late_stay(status: int) -> None:
    assert public_error(None, status)[0] == status


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", "invalid_value"),
        (401, "authentication_error", "invalid_api_key"),
        (404, "invalid_request_error", "model_not_found"),
        (429, "rate_limit_error", "invalid_value"),
    ],
)
def test_types(status: int, kind: str, code: str) -> None:
    shown, body = public_error({"error": {"message": "no", "code": status}}, status)
    assert (shown, body["error"]["type"], body["error"]["code"]) == (status, kind, code)


def test_param_and_code_go_on_when_they_are_plain() -> None:
    error = public_error({"error": {"message": "no", "param": "body.messages[0]", "code": "too_long"}}, 400)[1]["error"]
    assert (error["param"], error["code"]) == ("messages[0]", "too_long")
    for wrong in ("/srv/x", "a b", "x" * 300, 5, ["a"], {"a": 1}):
        error = public_error({"error": {"message": "no", "param": wrong, "code": wrong}}, 400)[1]["error"]
        assert (error["param"], error["code"]) == (None, "invalid_value")


def test_a_validation_error_keeps_its_place() -> None:
    message = "[{'type': 'int_parsing', 'loc': 'body.n', 'msg': 'Input should be a valid integer'}]"
    error = public_error({"error": {"message": message}}, 400)[1]["error"]
    assert (error["message"], error["param"]) == ("n: Input should be a valid integer.", "n")


def test_an_error_without_the_envelope() -> None:
    assert (
        public_error({"object": "error", "message": "too long", "code": 400}, 400)[1]["error"]["message"] == "too long"
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_ERROR = st.fixed_dictionaries({}, optional=dict.fromkeys(("error", "message", "param", "code"), _JSON))


@given(raw=st.binary() | _JSON.map(to_json) | _ERROR.map(to_json), status=st.integers(100, 999))
def test_any_answer_becomes_an_error_body(raw: bytes, status: int) -> None:
    shown, body = public_error_bytes(raw, status)
    assert shown == status or shown == 502
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert 0 < len(body["error"]["message"]) <= 1000
    assert body["error"]["param"] is None or isinstance(body["error"]["param"], str)
    assert isinstance(body["error"]["code"], str)
