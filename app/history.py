"""Where in a conversation an image URL stands, so that history is served from its snapshot and never fetched again.

A URL names a place, not a content. What it showed when its message was new is what the conversation was about; the
same URL in a new message is fetched anew. Three questions are asked of an image by URL:

    is it history?   the picture that was seen at this very place (message and everything before it), else the latest
                     that this tenant saw under the URL (a client may have trimmed what stood before), else nothing
                     where this message's was given up (app/pictures.py)
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
    tried when fetching fails, `given_up` say that there is nothing to be had."""

    lookup: Sequence[str] = ()
    record: Sequence[str] = ()
    fallback: Sequence[str] = ()
    given_up: Sequence[str] = ()


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
        if image.source.kind == "data" and image.message <= last and image.error is None:
            data.setdefault(image.message, {})[image.part] = digest_of_source(image.source.value)
    for index, message in enumerate(call.messages[: last + 1]):
        said = digest_of_message(message, data.get(index, {}))
        chain.update(said)
        so_far = chain.hexdigest()
        for image in at_message.get(index, ()):
            here = f"place-{so_far}-{image.part}"
            url = f"url-{blake3(tenant.key + digest_of_source(image.source.value).encode()).hexdigest()}"
            alone = f"said-{blake3(tenant.key + said).hexdigest()}-{image.part}"
            keys[index, image.part] = PlaceKeys(
                lookup=(here, url, alone) if image.history else (),
                record=(here, url),
                fallback=(here,),
                given_up=(here, alone),
            )
    return keys


def digests_of_data(call: ChatCall, message: int) -> Mapping[int, str]:
    """A digest for each image by data in one message that can be read, by part."""
    return {
        image.part: digest_of_source(image.source.value)
        for image in call.images
        if image.message == message and image.source.kind == "data" and image.error is None
    }


def digest_of_message(message: Mapping[str, Any], data: Mapping[int, str]) -> bytes:
    """A digest of one message as it came. `data` holds a digest for each image by data, by part."""
    return blake3(to_json(_light(message, data))).digest()


def _light(message: Mapping[str, Any], data: Mapping[int, str]) -> Mapping[str, Any]:
    """The message with a digest in the place of each image's data, by part: data is hashed, not serialized."""
    content = message.get("content")
    if not data or not isinstance(content, list):
        return message
    parts = cast("list[dict[str, Any]]", content)
    return {**message, "content": [data.get(index, part) for index, part in enumerate(parts)]}


def digest_of_source(value: str | memoryview) -> str:
    return blake3(value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value).hexdigest()
