"""How much one request may hold besides its bytes: three megabytes can be a hundred thousand messages, each of which is
work of its own."""

from __future__ import annotations

from typing import Any, cast

from context.errors import RequestError
from context.frozen import frozen

# What else a message or a part has: keys, a call's arguments, a tool's schema. Few have three.
_VALUES_EACH = 10


@frozen
class CallLimits:
    """Bounds of one request: `max_images` image parts, `max_messages` messages, `max_parts` content parts over all of
    them."""

    max_images: int
    max_messages: int
    max_parts: int

    @property
    def max_values(self) -> int:
        """How many JSON values the largest request may have, about."""
        return _VALUES_EACH * (self.max_messages + self.max_parts)


def check_values(raw: bytes | bytearray, limits: CallLimits) -> None:
    """Refuse a body of far too many JSON values before it is parsed. Text is none, whatever stands in it.

    Args:
        raw: the body's bytes; they need not be JSON.
        limits: what it may have.

    Raises:
        RequestError: `too_many_values`.
    """
    most = limits.max_values
    # Each value but the first follows a byte of its own.
    if len(raw) <= most or not _has_more_values(bytes(raw), most):
        return
    raise RequestError(
        f"The body has more than {most} JSON values. Send fewer, or raise server.max_parts.", code="too_many_values"
    )


def check_size(messages: list[Any], limits: CallLimits) -> None:
    """Refuse a request of too many messages or parts, of whatever shape, before any of them is looked at.

    Raises:
        RequestError: `too_many_messages`, `too_many_parts`; the latter names the message that has the first too many.
    """
    if len(messages) > limits.max_messages:
        raise RequestError(
            f"The request has {len(messages)} messages; the limit is {limits.max_messages}. Send fewer, or raise "
            "server.max_messages.",
            code="too_many_messages",
            param="messages",
        )
    parts = 0
    for index, message in enumerate(messages):
        content = cast("dict[str, Any]", message).get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            parts += len(cast("list[Any]", content))
            if parts > limits.max_parts:
                raise RequestError(
                    f"The request has more content parts than the limit of {limits.max_parts}. Send fewer, or raise "
                    "server.max_parts.",
                    code="too_many_parts",
                    param=f"messages[{index}].content",
                )


def _has_more_values(raw: bytes, most: int) -> bool:
    """Whether there are more strings, keys among them, or more places for a value outside of strings.

    A quote that is left when all escapes are gone opens or closes a string. To find that out takes about as long as to
    parse a text.
    """
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if raw.count(b'"') > 2 * most:
        return True
    outside = b"".join(raw.split(b'"')[::2])
    return outside.count(b",") + outside.count(b"{") + outside.count(b"[") > most
