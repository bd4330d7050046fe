"""A turn's record from its plan, its usage, and what was found out about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from context.conversations import Begun
from context.plan import SentMessage
from context.separation import Allowance
from context.tenancy import Tenant
from context.transcript import ImagePart
from metrics.attribution import Attribution
from metrics.records.record import Outcome, TurnRecord
from metrics.usage import Usage


@dataclass(frozen=True, slots=True)
class Ended:
    """A chat request that has ended.

    Attributes:
        id, request_id: see `TurnRecord`.
        tenant: whose.
        begun: what was planned, accepted or not; None where it was refused before.
        before: what the turn that it goes on from had sent.
        answered: the reply was kept whole.
        estimate: prompt tokens of a message as it is sent.
        traceparent: the client's header of that name.
        allowed: of approximate KV of its images, where the engine will say what came of it.
    """

    id: int
    request_id: str
    tenant: Tenant
    model: str
    policy: str
    policy_version: str
    stream: bool
    outcome: Outcome
    usage: Usage
    begun: Begun | None
    before: Sequence[SentMessage]
    answered: bool
    first_token_seconds: float | None
    total_seconds: float
    estimate: Callable[[Mapping[str, Any]], int]
    traceparent: str | None = None
    allowed: Allowance | None = None


def record_of(turn: Ended, cost: float | None, found: Mapping[str, Any]) -> TurnRecord:
    """The record of a turn, with what was found out about it."""
    begun, usage, allowed = turn.begun, turn.usage, turn.allowed
    return TurnRecord(
        id=turn.id,
        request_id=turn.request_id,
        tenant=turn.tenant.name,
        conversation="" if begun is None else begun.conversation,
        number=0 if begun is None else begun.number,
        model=turn.model,
        policy=turn.policy,
        policy_version=turn.policy_version,
        stream=turn.stream,
        outcome=turn.outcome,
        visual_tokens=usage.visual_tokens,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        read_tokens=usage.read_tokens,
        write_tokens=usage.write_tokens,
        uncached_tokens=usage.uncached_tokens,
        write_derived=usage.write_derived,
        loaded_tokens=usage.loaded_tokens,
        first_token_seconds=turn.first_token_seconds,
        total_seconds=turn.total_seconds,
        cost=cost,
        reuse=None if allowed is None or allowed.reuse is None else allowed.reuse.spelled,
        reuse_by=None if allowed is None or allowed.reuse is None else allowed.actor,
        **found,
    )


def planned(begun: Begun, before: Sequence[SentMessage]) -> dict[str, Any]:
    """What the plan says of a record, its own break as the cause."""
    plan = begun.plan
    counts: dict[str, int] = {}
    for image in (*_images(plan.sent), *(part for part in plan.tail if isinstance(part, ImagePart))):
        counts[image.ref.image_id] = counts.get(image.ref.image_id, 0) + 1
    broken = plan.breaks[0] if plan.breaks else None
    # Without a break all that was sent before is replayed.
    known = {image.ref.image_id for image in _images(plan.sent[: plan.replayed] if broken is None else before)}
    found: dict[str, Any] = {
        "text_only": not counts,
        "images": sum(counts.values()),
        "unique_images": len(counts),
        "new_images": len(counts.keys() - known),
        "epoch": plan.epoch,
        "image_ids": tuple(counts),
        "image_counts": tuple(counts.values()),
    }
    if broken is not None:
        kept = {image.ref.image_id for image in _images(plan.sent)}
        # Other KV of the same images takes none of them out, whoever asked for it.
        rewrote = next((one for one in (*plan.breaks, *plan.reports) if one.cause != "salt"), broken)
        found |= {
            "break_message": broken.message,
            "break_part": broken.part,
            "cause": broken.cause,
            "actor": broken.actor,
            "image_eviction": rewrote.actor == "policy" and rewrote.cause != "salt" and bool(known - kept),
            "summary": rewrote.cause == "summary",
        }
    return found


def attributed(found: Attribution, turn: Ended, begun: Begun) -> dict[str, Any]:
    """What was found out about its loss."""
    return {
        "expected_read": found.expected_read,
        "lost_tokens": found.lost_tokens,
        "cause": found.cause,
        "actor": found.actor,
        "break_token": found.break_token,
        "evicted_image": _image_called(found.evicted_image, turn, begun),
        "evicted_conversation": None if found.evicted_conversation is None else found.evicted_conversation.conversation,
        "evicted_tokens": found.evicted_tokens or None,
    }


def _image_called(uuid: str | None, turn: Ended, begun: Begun) -> str | None:
    """The image that the engine knows by this name, of those that were sent now or before."""
    if uuid is None:
        return None
    for image in _images((*begun.plan.sent, *turn.before)):
        if turn.tenant.image_uuid(image.ref.image_id) == uuid:
            return image.ref.image_id
    return None


def _images(sent: Iterable[SentMessage]) -> list[ImagePart]:
    # Most messages are text; a string is the quickest to tell.
    return [
        part
        for one in sent
        if isinstance(parts := one.wire.get("content"), list)
        for part in parts  # pyright: ignore[reportUnknownVariableType]
        if isinstance(part, ImagePart)
    ]
