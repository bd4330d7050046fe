"""What is sent, as the engine seam takes it: images by the tenant's own names, loaded when they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from context.errors import ImageError
from context.images.base import placed
from context.images.service import ImageService
from context.plan import SentMessage
from context.tenancy import Tenant
from context.transcript import ImagePart, Message
from engine.base import EngineImage


def engine_messages(
    images: ImageService, tenant: Tenant, sent: Sequence[SentMessage], client: Sequence[Message] = ()
) -> list[Mapping[str, Any]]:
    """The messages with an `EngineImage` for each `ImagePart`.

    Args:
        images, tenant: where the bytes are, and whose.
        sent: what is sent, tail included.
        client: the client's messages: an error names the place in them where the image stands.
    """
    places = {
        part.ref.image_id: f"messages[{at}].content[{index}]"
        for at, message in enumerate(client)
        for index, part in message.images
    }
    return [_message(images, tenant, one, places) for one in sent]


def _message(images: ImageService, tenant: Tenant, sent: SentMessage, places: Mapping[str, str]) -> Mapping[str, Any]:
    content = sent.wire.get("content")
    if not isinstance(content, list):
        return sent.wire
    parts = cast("list[Any]", content)
    if not any(isinstance(part, ImagePart) for part in parts):
        return sent.wire
    at = f"messages[{sent.source}]" if sent.source is not None else "messages"
    made = [
        _image(images, tenant, part, places.get(part.ref.image_id, at)) if isinstance(part, ImagePart) else part
        for part in parts
    ]
    return {**sent.wire, "content": made}


def _image(images: ImageService, tenant: Tenant, part: ImagePart, place: str) -> EngineImage:
    async def load() -> bytes:
        try:
            return await images.payload(part.ref, tenant=tenant.name)
        except ImageError as error:
            raise placed(error, place) from error

    return EngineImage(tenant.image_uuid(part.ref.image_id), part.ref, load, part.detail)
