"""A refusal of the fake engine, in vLLM's words and body.

Source: vLLM 0.32, entrypoints/serve/exception_handling/error_response.py::create_error_response.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeGuard

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError", 503: "ServiceUnavailableError"}


class Refused(Exception):
    """The engine answers with an error instead of a completion."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, type: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param = message, status, param
        self.type = type or _TYPES.get(status) or HTTPStatus(status).phrase

    def body(self) -> dict[str, Any]:
        """vLLM's error body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}


def is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a JSON value is an object."""
    return isinstance(value, Mapping)


def invalid(message: str, param: str) -> Refused:
    """A body that does not have the shape of a chat (validation.py::validation_exception_handler)."""
    return Refused(f"1 validation error:\n  {message}", param=param, type="Bad Request")
