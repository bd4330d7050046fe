"""What an image is to the rest of Stillframe: types and limits, no code that decodes.

docs/adr/0002-image-identity.md says what an identity is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from context.errors import ImageError
from context.frozen import frozen

# Up to here hashing or encoding takes less than about 1 ms, and a thread's round trip would cost more than it saves.
INLINE_BYTES = 2 * 1024 * 1024


@frozen
class ImageRef:
    """One image of a request, by content.

    `image_id` is 64 lower-case hex digits over the canonical RGB8 pixels; `width` and `height` are pixels of that
    canonical form. `media_type` and `size_bytes` describe the pinned bytes: what an engine is sent.
    """

    image_id: str
    width: int
    height: int
    media_type: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where an image part says its bytes are, before anything was fetched or decoded.

    `kind` is `data` (a data URL or bare base64) or `url` (http or https). `value` is the text; data may be a view of
    the request's own bytes, so that megabytes of it are never copied. `place` names the part in the client's body
    (`messages[2].content[0]`) for errors. `detail` is OpenAI's option, kept as it came.
    """

    kind: Literal["data", "url"]
    value: str | memoryview
    place: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Bounds of decoding. All are settings (`images.*`).

    `min_side` (pixels) and `max_aspect_ratio` (longer side over shorter, 0 for no bound) are for models that cannot
    take tiny or very long images; such an image is refused as `image_dimensions`. Formats in `as_png` are never sent as
    they are; what was pinned before stays.
    """

    max_image_bytes: int = 20 * 1024 * 1024
    max_pixels: int = 50_000_000
    max_side: int = 65_535
    min_side: int = 1
    max_aspect_ratio: float = 0.0
    max_images_per_request: int = 256
    formats: tuple[str, ...] = ("PNG", "JPEG", "WEBP", "GIF")
    as_png: tuple[str, ...] = ()
    background: tuple[int, int, int] = (255, 255, 255)
    animated: Literal["reject", "first_frame"] = "reject"
    decode_threads: int = 2
    decode_queue: int = 64
    memo_entries: int = 65_536
    payload_cache_bytes: int = 64 * 1024 * 1024
    store_max_bytes: int = 10 * 1024 * 1024 * 1024
    near_duplicate_distance: int = 8


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of fetching an image by URL. All are settings (`fetch.*`)."""

    enabled: bool = True
    timeout_seconds: float = 10.0
    max_redirects: int = 3
    max_concurrent: int = 16
    allow_private: tuple[str, ...] = field(default=())
    user_agent: str = "stillframe"


# Stands for an image that was given up at a place: nothing, now and later.
NO_IMAGE = ImageRef("", 0, 0, "", 0)


def placed(error: ImageError, place: str) -> ImageError:
    """The same refusal, naming the part of the client's body that it is about."""
    return ImageError(f"{place}: {error.message}", code=error.code, param=place, status=error.status)
