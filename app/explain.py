"""What a client says about its turn in headers, and what it is told: which conversation, whether the prefix broke, what
was healed, and, where it asks, the whole plan."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, cast

from blake3 import blake3
from pydantic_core import to_json

from app.image_reuse import HEADER_SETTING, remedy
from context.conversations import Begun
from context.errors import RequestError
from context.layout.tail import with_tail
from context.plan import PrefixBreak
from context.policies.base import Estimate, Policy
from context.policies.limits import spelled_tokens
from context.policies.quotas import count_images
from context.reuse import Reuse
from context.transcript import ImagePart
from engine.base import EngineInfo

EXPLAIN_HEADER = b"x-stillframe-explain"
EXPLAIN_KEY = "stillframe"
PIN_HEADER = b"x-stillframe-pin"
_PIN = PIN_HEADER.decode()
REUSE_HEADER = "x-stillframe-reuse"
MAX_PINS = 64
# What may stand in a header as it is; another name gets a digest in its place.
_PLAIN = re.compile(r"[!-~]{1,128}")
_SHARE = re.compile(r"0(\.[0-9]{1,6})?|1(\.0{1,6})?")
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


def wants_explanation(header: str | None) -> bool:
    """Whether `x-stillframe-explain` asks for the plan in the answer's body."""
    return (header or "").strip().lower() in ("1", "true")


def pinned_images(header: str | None) -> frozenset[str]:
    """The ids that `x-stillframe-pin` names, separated by commas.

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


def told_reuse(reuse: Reuse, info: EngineInfo) -> str:
    """What a response says of approximate KV of images."""
    by_layer = "; profile" if reuse.profile and info.has_layer_profile else ""
    return f"position_independent; ratio={reuse.ratio:g}{by_layer}"


def honoured(reuse: Reuse, info: EngineInfo) -> Reuse | None:
    """What the engine makes of it: None where all is exact."""
    if not reuse.approximate or not info.reuses_images:
        return None
    return reuse if info.has_layer_profile or not reuse.profile else Reuse(reuse.ratio)


def asked_reuse(header: str, info: EngineInfo | None, *, allowed: bool) -> Reuse:
    """What a client says about approximate KV of its images, a ratio of 1 for `off`.

    Args:
        header: what it says.
        info: of the engine; None while that is not known, which then refuses the request itself.
        allowed: whether it may say it.

    Raises:
        RequestError: it may not say it, says something else, or wants what the engine cannot: to use images' KV again,
            or ratios by layer.
    """
    keeps = info is None or info.reuses_images
    if not allowed:
        also = "" if info is None or keeps else f" and {remedy(info)}"
        reason = f"{REUSE_HEADER} may not be sent here. Leave it out, or switch {HEADER_SETTING} on{also}."
        raise RequestError(reason, code="reuse_not_allowed", param=REUSE_HEADER)
    if header.strip() == "off":
        return Reuse(1.0)
    share, parted, wish = (part.strip() for part in header.partition(";"))
    if not _SHARE.fullmatch(share) or (parted and wish != "profile"):
        reason = (
            f"{REUSE_HEADER} takes the share of each image's tokens that is computed, such as 0.05; '0.05; profile' "
            "for a mean over the layers; or off."
        )
        raise RequestError(reason, code="invalid_reuse", param=REUSE_HEADER)
    asked = Reuse(float(share), bool(parted))
    if info is not None and not keeps and asked.approximate:
        reason = f"{REUSE_HEADER}: the engine keeps no KV of images. Leave it out, or {remedy(info)}."
        raise RequestError(reason, code="no_image_kv", param=REUSE_HEADER)
    if parted and info is not None and not info.has_layer_profile:
        reason = f"{REUSE_HEADER}: the engine has no profile of its layers. Leave '; profile' out."
        raise RequestError(reason, code="no_reuse_profile", param=REUSE_HEADER)
    return asked


def explanation(begun: Begun, policy: Policy, estimate: Estimate) -> dict[str, Any]:
    """A turn's plan for the eyes of the client that sent it: places, causes, ids and counts, no text.

    Args:
        begun: the turn.
        policy: which policy made the plan.
        estimate: prompt tokens of a message.
    """
    plan = begun.plan
    counts = count_images(plan, (), estimate)
    tools = spelled_tokens(to_json(plan.tools), estimate) if plan.tools else 0
    return {
        "conversation": begun.conversation,
        "turn": begun.number,
        "policy": {"name": policy.name, "version": policy.version},
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
