"""The images of a trace: resolved as the gateway does it, and written for an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from context.alignment.base import SlotMatch
from context.errors import ImageError
from context.images.base import FetchLimits, ImageLimits
from context.images.parts import parse_image_part
from context.images.service import ImageService
from context.store.blobs import BlobStore
from context.tenancy import Tenancy
from context.transcript import ImagePart, parts_of
from metrics.replay.trace import Trace, Wire

_IMAGE_PARTS = frozenset(("image_url", "input_image"))
_HASHING_SECONDS = 10.0
# Nobody else is in the process: a name and a key that are the same every time give the same figures every time.
TENANT = Tenancy(b"stillframe-replay").named("replay")


class TraceImages:
    """Resolves images of traces. Nothing is fetched."""

    def __init__(self, service: ImageService) -> None:
        self._service = service

    async def resolved(self, messages: Sequence[Wire]) -> list[Wire]:
        """The messages with an `ImagePart` for each image part.

        Raises:
            RequestError: an image is refused; names its place.
        """
        return [await self._message(message, f"messages[{at}]") for at, message in enumerate(messages)]

    async def count(self, trace: Trace) -> tuple[int, int]:
        """Image parts that the client sends in all turns, and different images among them. What is no image, or would
        have to be fetched, counts by its text."""
        every: list[str] = []
        for turn in trace.turns:
            for part in _parts(turn.messages):
                try:
                    every.append((await self._image(part, "")).ref.image_id)
                except ImageError:
                    every.append(repr(part))
        return len(every), len(set(every))

    async def written(self, messages: Sequence[Wire], *, held: set[str] | None = None) -> list[dict[str, Any]]:
        """Resolved messages for an engine: data URLs, and with `held` uuids too; what is in there goes by uuid alone.
        `held` is added to. Nothing else is mutated."""
        made: list[dict[str, Any]] = []
        new: set[str] = set()
        for message in messages:
            content: Any = message.get("content")
            if isinstance(content, list):
                parts = [await self._written(part, held, new) for part in cast("list[Any]", content)]
                made.append({**message, "content": parts})
            else:
                made.append(dict(message))
        if held is not None:
            held |= new
        return made

    async def slot_match(self, distance: int | None) -> SlotMatch | None:
        """Which images may stand for others that differ by so many bits of a hash; None for none."""
        if distance is None:
            return None
        await self._service.hashed(_HASHING_SECONDS)
        return self._service.slot_match(TENANT.name, distance)

    async def _message(self, message: Wire, place: str) -> Wire:
        content: Any = message.get("content")
        if not isinstance(content, list):
            return message
        parts: list[Any] = []
        for at, part in enumerate(cast("list[Any]", content)):
            parts.append(await self._image(part, f"{place}.content[{at}]") if _is_image(part) else part)
        return {**message, "content": parts}

    async def _image(self, part: Mapping[str, Any], place: str) -> ImagePart:
        source = parse_image_part(part, place)
        return ImagePart(await self._service.resolve(source, tenant=TENANT.name), source.detail)

    async def _written(self, part: Any, held: set[str] | None, new: set[str]) -> Any:
        if not isinstance(part, ImagePart):
            return part
        uuid = TENANT.image_uuid(part.ref.image_id)
        if held is not None and uuid in held:
            return {"type": "image_url", "image_url": None, "uuid": uuid}
        new.add(uuid)
        url = (await self._service.payload(part.ref, tenant=TENANT.name)).decode()
        shown: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
        return shown if held is None else {**shown, "uuid": uuid}


@asynccontextmanager
async def trace_images() -> AsyncGenerator[TraceImages]:
    """Images in memory, as long as it is open."""
    store = BlobStore("memory://")
    service = ImageService(ImageLimits(), FetchLimits(enabled=False), store)
    try:
        yield TraceImages(service)
    finally:
        await service.close()
        await store.close()


def _parts(messages: Sequence[Wire]) -> Iterator[Mapping[str, Any]]:
    return (part for message in messages for part in parts_of(message) if _is_image(part))


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and cast("dict[str, Any]", part).get("type") in _IMAGE_PARTS
