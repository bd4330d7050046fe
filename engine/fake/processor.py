"""The processor cache: which images the engine knows by name, and how many tokens each takes.

Source: vLLM 0.32, multimodal/cache/lru.py::LruKeyReplicatedSenderCache, multimodal/processing/processor.py::
BaseMultiModalProcessor._get_cache_missing_items and _merge_mm_kwargs, multimodal/processing/inputs.py::get_mm_hashes.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pybase64
from PIL import Image, UnidentifiedImageError

from context.visual_tokens import VisualShape, scaled_size, visual_tokens
from engine.fake.errors import Refused

# Bytes of one patch after the processor: 3 channels, 2 frames, 2 bytes a value (bfloat16).
_PATCH_BYTES_PER_PIXEL = 3 * 2 * 2


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image of a request: its uuid, its data URL, or both."""

    uuid: str | None
    url: str | None


@dataclass(frozen=True, slots=True)
class KnownImage:
    """An image after the processor: its identity in all caches, its placeholder tokens, its size in this cache."""

    identity: str
    tokens: int
    size_bytes: int


class ProcessorCache:
    """Processed images by identity, bounded by bytes, least recently used out first.

    `queries` and `hits` count images as vLLM's `mm_cache_*` metrics do.
    """

    def __init__(self, capacity_bytes: int, shape: VisualShape) -> None:
        self._capacity, self._shape = capacity_bytes, shape
        self._entries: OrderedDict[str, KnownImage] = OrderedDict()
        self._size = 0
        self.queries = 0
        self.hits = 0

    def __len__(self) -> int:
        return len(self._entries)

    def process(self, parts: Sequence[ImagePart]) -> list[KnownImage]:
        """All images of one request. Looks every one up before it stores any: of two equal ones neither is a hit.

        Raises:
            Refused: an image is named and not held, or its data is no image.
        """
        images = [self._look_up(index, part) for index, part in enumerate(parts)]
        for image in images:
            if image.identity in self._entries:
                self._entries.move_to_end(image.identity)
        for image in images:
            self.queries += 1
            if image.identity in self._entries:
                self.hits += 1
                self._entries.move_to_end(image.identity)
            else:
                self._store(image)
        return images

    def clear(self) -> None:
        """Forget all images."""
        self._entries.clear()
        self._size = 0

    def _look_up(self, index: int, part: ImagePart) -> KnownImage:
        if part.uuid is not None and part.uuid in self._entries:
            return self._entries[part.uuid]
        if part.url is None:
            raise Refused(f"Cache miss for image at index {index} but data is not provided.")
        data = _decoded(part.url)
        identity = part.uuid or blake2b(data, digest_size=32).hexdigest()
        return self._entries.get(identity) or self._measure(identity, data)

    def _measure(self, identity: str, data: bytes) -> KnownImage:
        try:
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
            tokens = visual_tokens(width, height, self._shape)
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
            raise Refused("Failed to load image: cannot identify the data as an image.", status=400) from error
        scaled_width, scaled_height = scaled_size(width, height, self._shape)
        return KnownImage(identity, tokens, scaled_width * scaled_height * _PATCH_BYTES_PER_PIXEL + 24)

    def _store(self, image: KnownImage) -> None:
        if image.size_bytes > self._capacity:
            return
        while self._size + image.size_bytes > self._capacity:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size_bytes
        self._entries[image.identity] = image
        self._size += image.size_bytes


def _decoded(url: str) -> bytes:
    scheme, comma, payload = url.partition(",")
    if not comma or not scheme.startswith("data:") or not scheme.endswith(";base64"):
        raise Refused("The fake engine loads images from base64 data URLs alone.")
    try:
        return pybase64.b64decode(payload)
    except ValueError as error:
        raise Refused("Failed to load image: its base64 is broken.") from error
