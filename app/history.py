"""Where in a conversation an image URL stands, so that history is served from its snapshot and never fetched again.

A URL names a place, not a content. What it showed when its message was new is what the conversation was about; the
same URL in a new message is fetched anew. Three questions are asked of an image by URL:

    is it history?   the picture that was seen at this very place (message and everything before it), else the latest
                     that this tenant saw under the URL (a client may have trimmed what stood before)
    is it new?       fetched; if that fails, the picture that was seen at this very place: the client tries again
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from blake3 import blake3
from pydantic_core import to_json

from app.wire import ChatCall, FoundImage
from context.tenancy import Tenant


@dataclass(frozen=True, slots=True)
class PlaceKeys:
    """Keys of one image place: `lookup` are tried before fetching, `record` get what was fetched, `fallback` are
    tried when fetching fails."""

    lookup: Sequence[str] = ()
    record: Sequence[str] = ()
    fallback: Sequence[str] = ()


NOWHERE = PlaceKeys()


def places(tenant: Tenant, call: ChatCall) -> Mapping[tuple[int, int], PlaceKeys]:
    """The keys of every image by URL; images by data need none."""
    by_url = {(image.message, image.part): image for image in call.images if image.source.kind == "url"}
    if not by_url:
        return {}
    at_message: dict[int, list[FoundImage]] = {}
    for image in by_url.values():
        at_message.setdefault(image.message, []).append(image)
    keys: dict[tuple[int, int], PlaceKeys] = {}
    chain = blake3(tenant.key)
    last = max(message for message, _ in by_url)
    data: dict[int, dict[int, str]] = {}
    for image in call.images:
        if image.source.kind == "data" and image.message <= last:
            data.setdefault(image.message, {})[image.part] = _digest(image.source.value)
    for index, message in enumerate(call.messages[: last + 1]):
        chain.update(blake3(to_json(_light(message, data.get(index, {})))).digest())
        so_far = chain.hexdigest()
        for image in at_message.get(index, ()):
            here = f"place-{so_far}-{image.part}"
            url = f"url-{blake3(tenant.key + _digest(image.source.value).encode()).hexdigest()}"
            keys[index, image.part] = PlaceKeys(
                lookup=(here, url) if image.history else (), record=(here, url), fallback=(here,)
            )
    return keys


def _light(message: Mapping[str, Any], data: Mapping[int, str]) -> Mapping[str, Any]:
    """The message with a digest in the place of each image's data, by part: data is hashed, not serialized."""
    content = message.get("content")
    if not data or not isinstance(content, list):
        return message
    parts = cast("list[dict[str, Any]]", content)
    return {**message, "content": [data.get(index, part) for index, part in enumerate(parts)]}


def _digest(value: str | memoryview) -> str:
    return blake3(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value).hexdigest()
