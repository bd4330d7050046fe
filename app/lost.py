"""The engine asked once more when the bytes of images in history turn out to be gone: history alone never makes a
request fail."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType

from app.outgoing import engine_messages
from app.pictures import NOTE
from app.turn import ServedTurn
from context.errors import ImageError
from context.layout.tail import with_tail
from context.lost import asked_images, images_of, without_images
from context.tenancy import Tenant
from engine.base import ChatRequest, EngineReply


class engine_reply(AbstractAsyncContextManager[EngineReply]):
    """The engine's reply to a request.

    Raises:
        ImageError: `image_lost`, and it is an image that the client can send again.
    """

    __slots__ = ("_asked", "_request", "_tenant", "_turn")

    def __init__(self, turn: ServedTurn, tenant: Tenant, request: ChatRequest) -> None:
        self._turn, self._tenant, self._request = turn, tenant, request
        self._asked = turn.gateway.engine.chat(request)

    async def __aenter__(self) -> EngineReply:
        try:
            return await self._asked.__aenter__()
        except ImageError as error:
            again = None if error.code != "image_lost" else await _without_lost(self._turn, self._tenant, self._request)
            if again is None:
                raise
        self._asked = self._turn.gateway.engine.chat(again)
        return await self._asked.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._asked.__aexit__(kind, error, trace)


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
    turn.begun, turn.draft = replace(begun, plan=plan), None
    turn.not_available += tuple(
        f"messages[{at}].content[{part}]"
        for at, message in enumerate(client)
        for part, image in message.images
        if image.ref.image_id in gone
    )
    messages = engine_messages(images, tenant, with_tail(plan.sent, plan.tail), client)
    return replace(request, body={**request.body, "messages": messages})
