"""What a client is told about its turn: which conversation, whether the prefix broke, and what was healed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from blake3 import blake3

from context.conversations import Begun
from context.plan import PrefixBreak

# What may stand in a header as it is; another name gets a digest in its place.
_PLAIN = re.compile(r"[!-~]{1,128}")
_MOST_PLACES = 8


def client_conversation(header: str | None, body: Mapping[str, Any]) -> str | None:
    """The client's own name for the conversation: its header, `prompt_cache_key`, or `metadata.conversation_id`."""
    metadata = body.get("metadata")
    named = cast("dict[str, Any]", metadata).get("conversation_id") if isinstance(metadata, dict) else None
    for name in (header, body.get("prompt_cache_key"), named):
        if isinstance(name, str) and name:
            return name if _PLAIN.fullmatch(name) else blake3(name.encode("utf-8", "replace")).hexdigest()[:32]
    return None


def plan_headers(begun: Begun) -> list[tuple[bytes, bytes]]:
    """Response headers about a turn. Those of a break and of what was healed are absent when there was none."""
    found = [
        (b"x-stillframe-conversation", begun.conversation.encode()),
        (b"x-stillframe-turn", str(begun.number).encode()),
    ]
    if begun.plan.breaks:
        found.append((b"x-stillframe-break", _break(begun.plan.breaks[0]).encode()))
    if begun.plan.healed:
        places = [f"{one.what}@{_at(one.message)}" for one in begun.plan.healed[:_MOST_PLACES]]
        more = len(begun.plan.healed) - len(places)
        found.append((b"x-stillframe-healed", ", ".join([*places, *([f"+{more}"] if more else [])]).encode()))
    return found


def _break(broken: PrefixBreak) -> str:
    character = "" if broken.character is None else f"; character={broken.character}"
    return f"{broken.cause}; actor={broken.actor}; at={broken.place}{character}; lost_tokens={broken.lost_tokens}"


def _at(message: int) -> str:
    return "tools" if message < 0 else f"messages[{message}]"
