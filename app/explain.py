"""What a client says about its turn in headers, and what it is told: which conversation, whether the prefix broke, what
was healed, and, where it asks, the whole plan."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

from blake3 import blake3
from pydantic_core import to_json

from context.conversations import Begun
from context.errors import RequestError
from context.layout.tail import with_tail
from context.plan import PrefixBreak
from context.policies.base import Estimate, Policy
from context.policies.limits import spelled_tokens
from context.policies.quotas import count_images
from context.separation import Allowance
from context.transcript import ImagePart

CONVERSATION_HEADER = b"x-stillframe-conversation"
EXPLAIN_HEADER = b"x-stillframe-explain"
EXPLAIN_KEY = "stillframe"
PIN_HEADER = b"x-stillframe-pin"
_PIN = PIN_HEADER.decode()
MAX_PINS = 64
# What may stand in a header as it is; another name gets a digest in its place.
_PLAIN = re.compile(r"[!-~]{1,128}")
_IMAGE_ID = re.compile(r"[0-9a-f]{64}")
_MOST_PLACES = 8
# A role is a client's word like any other.
_MOST_ROLE_CHARACTERS = 32


def client_conversation(header: str | None, body: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The client's own name for the conversation, and whether others may have the same.

    Its header and `metadata.conversation_id` say which conversation it is. `prompt_cache_key` says which requests are
    alike, and an app may give one to all of its users.
    """
    metadata = body.get("metadata")
    named = cast("dict[str, Any]", metadata).get("conversation_id") if isinstance(metadata, dict) else None
    for name, is_shared in ((header, False), (named, False), (body.get("prompt_cache_key"), True)):
        if isinstance(name, str) and name:
            plain = _PLAIN.fullmatch(name) is not None
            return name if plain else blake3(name.encode("utf-8", "replace")).hexdigest()[:32], is_shared
    return None, False


def plan_headers(begun: Begun) -> list[tuple[bytes, bytes]]:
    """Response headers about a turn. Those of a break and of what was healed are absent when there was none."""
    found = [
        (CONVERSATION_HEADER, begun.conversation.encode()),
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


def wants_explanation(header: str | None) -> bool:
    """Whether `x-stillframe-explain` asks for the plan in the answer's body."""
    return (header or "").strip().lower() in ("1", "true")


def pinned_images(header: str | None) -> frozenset[str]:
    """The ids that `x-stillframe-pin` names, separated by commas; all lines of the header, joined.

    Raises:
        RequestError: there are too many, or one is no image_id.
    """
    names = [name.strip() for name in (header or "").split(",") if name.strip()]
    if len(names) > MAX_PINS:
        raise RequestError(
            f"{_PIN} names {len(names)} images; it takes up to {MAX_PINS}.", code="invalid_pin", param=_PIN
        )
    for at, name in enumerate(names):
        if not _IMAGE_ID.fullmatch(name):
            raise RequestError(
                f"{_PIN}: item {at + 1} is not an image_id, which has 64 digits of 0-9 and a-f. "
                f"'{EXPLAIN_HEADER.decode()}: 1' shows those of a request.",
                code="invalid_pin",
                param=_PIN,
            )
    return frozenset(names)


def explanation(begun: Begun, policy: Policy, estimate: Estimate, allowed: Allowance | None = None) -> dict[str, Any]:
    """A turn's plan for the eyes of the client that sent it: places, causes, ids and counts, no text.

    Args:
        begun: the turn.
        policy: which policy made the plan.
        estimate: prompt tokens of a message.
        allowed: of approximate KV of the images that are sent; None where all is exact.
    """
    plan = begun.plan
    reuse = None if allowed is None else allowed.reuse
    counts = count_images(plan, (), estimate)
    tools = spelled_tokens(to_json(plan.tools), estimate) if plan.tools else 0
    return {
        "conversation": begun.conversation,
        "turn": begun.number,
        "policy": {"name": policy.name, "version": policy.version},
        **({} if allowed is None or reuse is None else {"reuse": {**asdict(reuse), "by": allowed.actor}}),
        "replayed": plan.replayed,
        "epoch": plan.epoch,
        "breaks": [_break_object(one) for one in plan.breaks],
        "reports": [_break_object(one) for one in plan.reports],
        "healed": [{"what": one.what, "place": _at(one.message), "message": one.message} for one in plan.healed],
        "tail": [_kind(part) for part in plan.tail],
        "sent": [
            {
                "role": str(one.wire.get("role"))[:_MOST_ROLE_CHARACTERS],
                "source": one.source,
                "origin": one.origin,
                "images": [image.ref.image_id for image in one.images],
            }
            for one in plan.sent
        ],
        "estimates": {
            "prompt_tokens": tools + sum(estimate(one.wire) for one in with_tail(plan.sent, plan.tail)),
            "visual_tokens": counts.visual_tokens,
            "images": counts.images,
            "unique_images": counts.unique_images,
        },
    }


def explained_answer(answer: Mapping[str, Any], told: Mapping[str, Any]) -> bytes:
    """An answer that was not streamed, with the plan as one more key."""
    return to_json({**answer, EXPLAIN_KEY: told})


def explained_event(request_id: str, model: str, told: Mapping[str, Any]) -> bytes:
    """The plan as an event of a stream: a chunk without choices, as the one with the usage is."""
    chunk: dict[str, Any] = {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": model,
        "choices": [],
        EXPLAIN_KEY: told,
    }
    return b"data: " + to_json(chunk) + b"\n\n"


def _break_object(one: PrefixBreak) -> dict[str, Any]:
    return {
        "cause": one.cause,
        "actor": one.actor,
        "place": one.place,
        "message": one.message,
        "part": one.part,
        "character": one.character,
        "lost_tokens": one.lost_tokens,
        "detail": one.detail,
    }


def _kind(part: Any) -> str:
    if isinstance(part, ImagePart):
        return "image"
    kind = cast("Mapping[str, Any]", part).get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else "text"
