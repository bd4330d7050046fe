"""Image parts of both wire shapes, read into an `ImageSource` without touching the bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from context.errors import ImageError
from context.images.base import ImageSource
from context.images.dataurl import starts_like
from context.images.sniff import has_image_magic

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):")
# A path or a word is base64 by accident only when it is short.
_MIN_BASE64_BYTES = 48
_SHAPE = 'Write {"type": "image_url", "image_url": {"url": "https://... or data:image/png;base64,..."}}.'


def parse_image_part(part: Mapping[str, Any], place: str) -> ImageSource:
    """Where an image part says its bytes are.

    Takes chat's `image_url` parts (object or plain string) and `input_image` parts. A client's `uuid` and any key
    that is not part of the shape is dropped: identity comes from the pixels. `part` is not mutated.

    Args:
        part: the content part.
        place: its place in the body, such as `messages[2].content[0]`.

    Raises:
        ImageError: `invalid_image_part`, `unsupported_image_source`, `invalid_image_data` or `empty_image`; `param`
            names the value that is wrong.
    """
    if part.get("type") not in ("image_url", "input_image"):
        raise _error(f"{place}.type", 'an image part has the type "image_url" or "input_image".', "invalid_image_part")
    value: Any = part.get("image_url")
    at, detail = f"{place}.image_url", part.get("detail")
    if isinstance(value, Mapping):
        holder = cast("Mapping[str, Any]", value)
        value, at = holder.get("url"), f"{at}.url"
        detail = holder.get("detail", detail)
    if value is None:
        raise _error(at, f"the image is missing; an id cannot stand for it. {_SHAPE}", "invalid_image_part")
    if not isinstance(value, str):
        raise _error(at, f"expected a string. {_SHAPE}", "invalid_image_part")
    if detail is not None and not isinstance(detail, str):
        raise _error(f"{place}.detail", 'expected "auto", "low" or "high".', "invalid_image_part")
    return _source(value, place, at, detail)


def _source(value: str, place: str, at: str, detail: str | None) -> ImageSource:
    head = value[:256].lstrip()
    if not head and not value.strip():
        raise _error(at, "the string is empty. Send the image's URL or data.", "empty_image")
    scheme = _SCHEME.match(head)
    if scheme is None:
        start = starts_like(head)
        if has_image_magic(start):
            return ImageSource("data", value, place, detail)
        if len(start) >= _MIN_BASE64_BYTES:
            raise _error(at, "the base64 does not start like an image file.", "invalid_image_data")
        raise _error(
            at, "expected an http or https URL, a data URL, or base64 of an image file.", "unsupported_image_source"
        )
    match scheme[1].lower():
        case "http" | "https":
            return ImageSource("url", value.strip(), place, detail)
        case "data":
            return ImageSource("data", value, place, detail)
        case _:
            raise _error(
                at,
                "only http, https and data URLs are accepted. Send the file as a data URL.",
                "unsupported_image_source",
            )


def _error(at: str, message: str, code: str) -> ImageError:
    return ImageError(f"{at}: {message}", code=code, param=at)
