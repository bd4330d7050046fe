"""Every error that Stillframe raises on purpose.

    StillframeError
    ├── ConfigError          a setting or policy stops the start: file, key, reason
    ├── RequestError         the client's request cannot be served as it is (4xx)
    │   └── ImageError       one image of it cannot: code from the image corpus
    └── EngineError          the engine cannot answer (5xx)
        ├── EngineUnavailable    not ready, stopped or crashed (503)
        ├── EngineTimeout        took longer than the setting allows (504)
        └── EngineProtocolError  answered something that is not OpenAI's protocol (502)

    Three more stand where they belong: `context/store/blobs.py::StoreError`,
    `context/store/turn_rows.py::TurnStoreError`, `metrics/bench/errors.py::BenchError`.

Their messages are written for the client: they never carry a library's exception text, a path or a secret. The
library's exception stays reachable as `__cause__` for a debugger and is not logged with its text.
"""

from __future__ import annotations

import traceback
from typing import Any


class StillframeError(Exception):
    """Base of all errors that Stillframe raises on purpose."""


class ConfigError(StillframeError):
    """A setting or a policy is wrong; the start stops.

    Args:
        where: the file, environment variable or flag that holds the value.
        key: the dotted key, empty when the file as a whole is meant.
        reason: what is wrong and what to do about it.
    """

    def __init__(self, where: str, key: str, reason: str) -> None:
        self.where, self.key, self.reason = where, key, reason
        super().__init__(f"{where}: {key}: {reason}" if key else f"{where}: {reason}")


class RequestError(StillframeError):
    """A request that cannot be served as it is; becomes OpenAI's error body.

    Args:
        message: what is wrong and the remedy, for the client's eyes.
        code: a stable machine-readable word.
        param: the place in the body, such as `messages[2].content[0]`.
        status: HTTP status, 4xx.
        retry_after_seconds: when it may be tried again; None where that is not known.
    """

    type = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        param: str | None = None,
        status: int = 400,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.status = message, code, param, status
        self.retry_after_seconds = retry_after_seconds

    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ImageError(RequestError):
    """One image cannot be used. `code` is one of the image corpus (`image_too_large`, `truncated_image`, ...)."""


class EngineError(StillframeError):
    """The engine cannot answer; becomes OpenAI's error body with a 5xx status."""

    status = 500
    type = "server_error"
    code = "engine_error"

    def __init__(self, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.message, self.retry_after_seconds = message, retry_after_seconds

    def body(self) -> dict[str, Any]:
        """OpenAI's error body."""
        return {"error": {"message": self.message, "type": self.type, "param": None, "code": self.code}}


class EngineUnavailable(EngineError):
    """The engine is starting, stopping, crashed, or cannot be reached."""

    status = 503
    code = "engine_unavailable"


class EngineTimeout(EngineError):
    """The engine did not answer within the time that the settings allow."""

    status = 504
    code = "engine_timeout"


class EngineProtocolError(EngineError):
    """The engine's answer is not OpenAI's protocol, or broke off in the middle."""

    status = 502
    code = "engine_protocol_error"


def place_of(error: BaseException) -> str:
    """An exception's kind and place, for a log: its text may hold what a client sent, a path or a secret."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return type(error).__name__ + where
