"""A request's images by content, and what stands for one that cannot be had.

An image that is new is the client's to mend: the request is refused. An image in history is nobody's to mend, and would
fail every request from then on. A fixed text stands in its place, for good: also when the image could be had again,
because what was sent is not rewritten.

History is what an assistant's message follows. So is an image that was refused when it was new, once the client has
gone on behind it without mending it: a refused message has no reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3

from app import history
from app.gateway import Gateway
from app.wire import ChatCall, FoundImage
from context.errors import ImageError, RequestError
from context.images.base import ImageRef
from context.tenancy import Tenant
from context.transcript import SYSTEM_ROLES, ImagePart

# The same bytes in every conversation and version: it is part of what is sent.
NOTE: Mapping[str, Any] = {"type": "text", "text": "[image not available]"}
Pictures = dict[tuple[int, int], "ImagePart | Mapping[str, Any]"]


async def resolve(gateway: Gateway, tenant: Tenant, call: ChatCall, conversation: str | None = None) -> Pictures:
    """Every image part by content, or the note that stands for it. Images that are fetched are fetched side by side,
    the others go one by one. `conversation` is its client's own name for it.

    Raises:
        ImageError: an image that is new cannot be used.
        RequestError: (429) too many images wait; an image in a system message would not reach the model.
    """
    _require_shown(gateway, call)
    places = history.places(tenant, call)

    async def one(found: FoundImage) -> tuple[tuple[int, int], ImagePart | Mapping[str, Any]]:
        keys = places.get((found.message, found.part), history.NOWHERE)
        try:
            picture = await _picture(gateway, tenant, found, keys)
        except ImageError as error:
            if not (found.history or _was_refused_before(gateway, tenant, call, found, conversation)):
                raise
            if error.code != "image_given_up" and found.error is None:
                await gateway.images.give_up(found.source, tenant=tenant.name, record=keys.given_up)
            picture = NOTE
        return (found.message, found.part), picture

    resolved = [await one(found) for found in call.images if found.source.kind == "data"]
    fetched: Sequence[FoundImage] = [found for found in call.images if found.source.kind == "url"]
    if fetched:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(found)) for found in fetched]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        resolved += [task.result() for task in tasks]
    return dict(resolved)


def not_available(pictures: Pictures) -> tuple[str, ...]:
    """The places for which the note stands, in order."""
    return tuple(f"messages[{at}].content[{part}]" for (at, part), one in sorted(pictures.items()) if one is NOTE)


def _require_shown(gateway: Gateway, call: ChatCall) -> None:
    """Refuse images that the model's chat template leaves out.

    Raises:
        RequestError: one stands in a system message.
    """
    if gateway.template.system_images is not False:
        return
    for found in call.images:
        if call.messages[found.message]["role"] in SYSTEM_ROLES:
            raise RequestError(
                f"{found.source.place}: this model is not shown images in {call.messages[found.message]['role']} "
                "messages. Send it in a user message.",
                code="image_in_system",
                param=found.source.place,
            )


async def _picture(gateway: Gateway, tenant: Tenant, found: FoundImage, keys: history.PlaceKeys) -> ImagePart:
    if found.error is not None:
        raise found.error
    ref = await gateway.images.resolve(
        found.source,
        tenant=tenant.name,
        lookup=keys.lookup,
        record=keys.record,
        fallback=keys.fallback,
        is_history=found.history,
    )
    _require_ratio(ref, found.source.place, gateway.engine.info().max_aspect_ratio)
    return ImagePart(ref, found.source.detail)


def _require_ratio(ref: ImageRef, place: str, limit: float | None) -> None:
    """Refuse what the model would, with a place and words of our own.

    Raises:
        ImageError: the image is too long for its width.
    """
    ratio = max(ref.width, ref.height) / min(ref.width, ref.height)
    if limit is not None and ratio > limit:
        raise ImageError(
            f"{place}: the image is {ref.width}x{ref.height}; this model takes a side up to {limit:g} times the other. "
            "Cut or pad it.",
            code="image_dimensions",
            param=place,
        )


def _was_refused_before(
    gateway: Gateway, tenant: Tenant, call: ChatCall, found: FoundImage, conversation: str | None
) -> bool:
    """Whether this conversation was refused for this image, and has gone on since: there are more messages behind it.
    Another conversation that begins as this one did has not been told of it.

    Remembers that this one is, where it is not so.
    """
    said = blake3(tenant.key + (conversation or "").encode("utf-8", "surrogatepass") + f" {found.part} ".encode())
    for at in range(found.message + 1):
        said.update(history.digest_of_message(call.messages[at], history.digests_of_data(call, at)))
    key, now = said.digest(), len(call.messages)
    before = gateway.refused_images.get(key)
    if before is not None and before < now:
        return True
    gateway.refused_images.put(key, now)
    return False
