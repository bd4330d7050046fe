"""The engine asked once more when the bytes of images in history turn out to be gone: history alone never makes a
request fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from app.outgoing import engine_messages
from app.pictures import NOTE
from app.turn import ServedTurn
from context.errors import ImageError
from context.layout.tail import with_tail
from context.lost import asked_images, images_of, without_images
from context.tenancy import Tenant
from engine.base import ChatRequest, EngineReply


@asynccontextmanager
async def engine_reply(turn: ServedTurn, tenant: Tenant, request: ChatRequest) -> AsyncGenerator[EngineReply]:
    """The engine's reply to a request.

    Raises:
        ImageError: `image_lost`, and it is an image that the client can send again.
    """
    asked = False
    try:
        async with turn.gateway.engine.chat(request) as reply:
            asked = True
            yield reply
            return
    except ImageError as error:
        again = await _without_lost(turn, tenant, request) if not asked and error.code == "image_lost" else None
        if again is None:
            raise
    async with turn.gateway.engine.chat(again) as reply:
        yield reply


async def _without_lost(turn: ServedTurn, tenant: Tenant, request: ChatRequest) -> ChatRequest | None:
    """The request with notes for images that are gone; None where one of them is new, or none is gone."""
    begun, images = turn.begun, turn.gateway.images
    assert begun is not None, "what is sent was planned"
    plan, client = begun.plan, begun.transcript.messages
    refs = {part.ref.image_id: part.ref for part in images_of(with_tail(plan.sent, plan.tail))}
    gone = {one for one, ref in refs.items() if not await images.has(ref, tenant=tenant.name)}
    if not gone or not gone.isdisjoint(asked_images(client)):
        return None
    plan = without_images(plan, gone, NOTE, before=begun.before, last=len(client) - 1, estimate=turn.estimate)
    turn.begun = replace(begun, plan=plan)
    turn.not_available += tuple(
        f"messages[{at}].content[{part}]"
        for at, message in enumerate(client)
        for part, image in message.images
        if image.ref.image_id in gone
    )
    messages = engine_messages(images, tenant, with_tail(plan.sent, plan.tail), client)
    return replace(request, body={**request.body, "messages": messages})
