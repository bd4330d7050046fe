"""What of an engine's error a client may see.

An engine's 4xx usually tells the client what to change (context length, an unknown model), so its words go on when
they are plain. Words that show a library, a path, an object of the process or a key are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from pydantic_core import from_json

_MAX_MESSAGE = 1000
# A traceback, an object's address or rendering, a file path, an exception's name, a validation library's rendering, an
# environment variable, markup.
_PRIVATE = re.compile(
    r"Traceback|0x[0-9a-fA-F]{6,}|<\w+(?:\.\w+)+[ >]|<\w+ object|\bkwargs=|<(?:class|function|module|bound method)\b|"
    r"(?<![\w/.])(?:~|\.{1,2})?(?:/[\w.@+~-]+){2,}|\bfile:|[A-Za-z]:\\|\.py\b|\bErrno\b|[Nn]o such file|"
    r"\b\w+(?:Error|Exception)\b|For further information|validation errors? for|site-packages|"
    r"\bVLLM_[A-Z]|\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET|PASSWORD)\b|(?i:<!doctype|<html|<script|<body)"
)
# A key, or a user name and password in an address.
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|hf|gh[pousr]|xox[abp])[-_][\w*.-]{4,}|(?i:\bbearer\s+)[\w.~+/=*-]{4,}|\bAKIA\w{8,}|"
    r"\beyJ[\w-]{8,}|://[^/\s@]+@|\b[0-9a-fA-F]{32,}\b"
)
_PARAM = re.compile(r"[\w.\[\]-]{1,200}")
_CODE = re.compile(r"[\w.-]{1,64}")
_LOCATED = re.compile(r"'type': '[\w.]+', 'loc': '(?:body\.)?([^']*)', 'msg': '([^']*)'")


def public_error(body: Any, status: int, secrets: Iterable[str] = ()) -> tuple[int, dict[str, Any]]:
    """An engine's error as the client gets it: status and OpenAI's error body.

    Args:
        body: the engine's parsed answer, of any shape.
        status: its HTTP status. A 4xx stays; all else becomes 502 with our own words, but for the 503 of an engine
            that is busy and the 504 of one that is late.
        secrets: what must not stand in it: the keys that the engine was called with.
    """
    error: Any = cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None
    fields = cast("dict[str, Any]", error if isinstance(error, dict) else body if isinstance(body, dict) else {})
    if not 400 <= status < 500:
        kept = status if status in (503, 504) else 502
        return kept, _body("The engine failed to answer this request.", "server_error", None, "engine_error")
    message, param, code = (_cut(fields.get(name)) for name in ("message", "param", "code"))
    if any(secret in str(field) for secret in secrets if secret for field in (message, param, code)):
        message = param = code = None
    if isinstance(message, str) and (located := _LOCATED.search(message)):
        param, message = located.group(1), f"{located.group(1)}: {located.group(2)}."
    if not isinstance(message, str) or not message or is_private(message):
        message = "The engine refused this request; check its parameters."
    param = param.removeprefix("body.") if isinstance(param, str) and _PARAM.fullmatch(param) else None
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    if status == 429:
        kind = "rate_limit_error"
    word = (
        code
        if isinstance(code, str) and _CODE.fullmatch(code)
        else {404: "model_not_found", 401: "invalid_api_key"}.get(status)
    )
    return status, _body(message, kind, param, word or "invalid_value")


def is_private(words: str) -> bool:
    """Whether an engine's words show what is no client's business. Cut them first: they may be long."""
    return _PRIVATE.search(words) is not None or _SECRET.search(words) is not None


def _cut(value: Any) -> Any:
    """A text's beginning. Before anything is looked for in it: what an engine echoes may be megabytes long."""
    return value[:_MAX_MESSAGE] if isinstance(value, str) else value


def public_error_bytes(raw: bytes, status: int, secrets: Iterable[str] = ()) -> tuple[int, dict[str, Any]]:
    """`public_error` on an answer's bytes, which need not be JSON."""
    try:
        body: Any = from_json(raw)
    except ValueError:
        body = None
    return public_error(body, status, secrets)


def _body(message: str, kind: str, param: str | None, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
