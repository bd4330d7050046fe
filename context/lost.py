"""A plan with a note in the place of images whose bytes are gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from context.plan import PrefixBreak, PromptPlan, SentMessage
from context.policies.base import Estimate
from context.replay import common
from context.transcript import ImagePart, Message, begun_at, last_reply, parts_of

_WORDS = "images whose bytes are no longer stored give way to a note"


def asked_images(client: tuple[Message, ...]) -> frozenset[str]:
    """Ids of the images that the client has sent since the last reply: those it can send again."""
    end = begun_at([message.role for message in client])
    new = client[last_reply(client[:end]) + 1 : end]
    return frozenset(part.ref.image_id for message in new for _, part in message.images)


def without_images(
    plan: PromptPlan,
    gone: Set[str],
    note: Mapping[str, Any],
    *,
    before: tuple[SentMessage, ...],
    last: int,
    estimate: Estimate,
) -> PromptPlan:
    """The plan with `note` for each image that is gone. Nothing is mutated.

    Args:
        plan: as it was made.
        gone: ids of images.
        note: a text part, always the same one: it is replayed from now on.
        before: what was sent in the turn that this one goes on from.
        last: the index of the client's last message.
        estimate: prompt tokens of a message.
    """
    sent = tuple(_noted(one, gone, note) for one in plan.sent)
    tail = tuple(note if isinstance(part, ImagePart) and part.ref.image_id in gone else part for part in plan.tail)
    same = common(before, sent)
    breaks, reports = plan.breaks, plan.reports
    if same < plan.replayed:
        place = next((one.source for one in sent[same:] if one.source is not None), last)
        lost = sum(estimate(one.wire) for one in before[same:])
        own = (PrefixBreak("policy_eviction", "gateway", place, lost_tokens=lost, detail=_WORDS),)
        is_first = plan.unread_from is None or plan.unread_from[0] >= same
        breaks, reports = (own, (*breaks, *reports)) if is_first else (breaks, (*own, *reports))
    return replace(plan, sent=sent, tail=tail, replayed=same, breaks=breaks, reports=reports)


def images_of(sent: Iterable[SentMessage]) -> Iterator[ImagePart]:
    """All images of messages, in order."""
    return (part for one in sent for part in one.images)


def _noted(one: SentMessage, gone: Set[str], note: Mapping[str, Any]) -> SentMessage:
    if not any(part.ref.image_id in gone for part in one.images):
        return one
    parts = [note if isinstance(part, ImagePart) and part.ref.image_id in gone else part for part in parts_of(one.wire)]
    return replace(one, wire={**one.wire, "content": parts})
