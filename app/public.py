"""What of an engine's error a client may see.

An engine's 4xx usually tells the client what to change (context length, an unknown model), so its words go on when
they are plain. Words that show a library, a path or an object of the process are replaced.
"""

from __future__ import annotations

import re
from typing import Any, cast

from pydantic_core import from_json

_MAX_MESSAGE = 1000
# A traceback, an object's address, a file path, a validation library's rendering, an environment variable.
_PRIVATE = re.compile(
    r"Traceback|0x[0-9a-fA-F]{6,}|<[\w.]+ object|(?:^|[\s'\"(=])(?:/[\w.@+-]+){2,}|[A-Za-z]:\\|\.py\b|"
    r"For further information|validation errors? for|\bVLLM_[A-Z]|site-packages"
)
_LOCATED = re.compile(r"'type': '[\w.]+', 'loc': '(?:body\.)?([^']*)', 'msg': '([^']*)'")


def public_error(body: Any, status: int) -> tuple[int, dict[str, Any]]:
    """An engine's error as the client gets it: status and OpenAI's error body.

    Args:
        body: the engine's parsed answer, of any shape.
        status: its HTTP status; 5xx become 502 with our own words.
    """
    error: Any = cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None
    fields = cast("dict[str, Any]", error if isinstance(error, dict) else body if isinstance(body, dict) else {})
    if status >= 500:
        return 502, _body("The engine failed to answer this request.", "server_error", None, "engine_error")
    message, param, code = fields.get("message"), fields.get("param"), fields.get("code")
    if isinstance(message, str) and (located := _LOCATED.search(message)):
        param, message = located.group(1), f"{located.group(1)}: {located.group(2)}."
    if not isinstance(message, str) or not message or _PRIVATE.search(message):
        message = "The engine refused this request; check its parameters."
    if isinstance(param, str):
        param = param.removeprefix("body.")
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    if status == 429:
        kind = "rate_limit_error"
    word = code if isinstance(code, str) else {404: "model_not_found", 401: "invalid_api_key"}.get(status)
    return status, _body(
        message[:_MAX_MESSAGE], kind, param if isinstance(param, str) else None, word or "invalid_value"
    )


def public_error_bytes(raw: bytes, status: int) -> tuple[int, dict[str, Any]]:
    """`public_error` on an answer's bytes, which need not be JSON."""
    try:
        body: Any = from_json(raw)
    except ValueError:
        body = None
    return public_error(body, status)


def _body(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
