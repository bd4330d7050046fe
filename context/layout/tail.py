"""What stands behind everything in one turn alone, put behind what is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from context.plan import SentMessage


def with_tail(sent: Sequence[SentMessage], tail: Sequence[Any]) -> tuple[SentMessage, ...]:
    """The messages with `tail` at their end. Nothing is mutated.

    Its parts are added to the last message where that is a user's, behind an empty line: a template joins texts without
    one. Else they are a user message of their own. What the client has begun of the reply stays last.
    """
    if not tail:
        return tuple(sent)
    end = len(sent)
    while end and sent[end - 1].wire["role"] == "assistant" and not sent[end - 1].wire.get("tool_calls"):
        end -= 1
    before = sent[end - 1] if end else None
    if before is None or before.wire["role"] != "user":
        message = SentMessage({"role": "user", "content": list(tail)}, None, "tail")
        return (*sent[:end], message, *sent[end:])
    content: Any = before.wire.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else cast("list[Any]", content or [])
    wire = {**before.wire, "content": [*parts, *_set_off(tail, is_behind=bool(parts))]}
    return (*sent[: end - 1], replace(before, wire=wire), *sent[end:])


def _set_off(tail: Sequence[Any], *, is_behind: bool) -> list[Any]:
    first = tail[0]
    if not is_behind or not isinstance(first, Mapping):
        return list(tail)
    known = cast("Mapping[str, Any]", first)
    return [{**known, "text": f"\n\n{known['text']}"}, *tail[1:]]
