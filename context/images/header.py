"""Facts that an image file states of itself, and the refusals that they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from context.errors import ImageError
from context.images.base import ImageLimits

Format = Literal["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]
MEDIA_TYPES: dict[str, str] = {
    "PNG": "image/png",
    "JPEG": "image/jpeg",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "TIFF": "image/tiff",
}


@dataclass(frozen=True, slots=True)
class Header:
    """Facts of an image file. `width` and `height` are pixels as stored, before EXIF orientation.

    `frames` stops counting at 2. `alpha` is what the container declares. `bit_depth` is bits per channel.
    `rewrite` says that decoders may disagree on these bytes, so they must not be what an engine is sent.
    `exif` and `xmp` are filled for WebP only, whose chunks are read here.
    """

    format: Format
    width: int
    height: int
    frames: int = 1
    alpha: bool = False
    bit_depth: int = 8
    rewrite: bool = False
    exif: bytes = b""
    xmp: bytes = b""

    @property
    def media_type(self) -> str:
        return MEDIA_TYPES[self.format]


def check_size(width: int, height: int, limits: ImageLimits) -> None:
    """Refuse dimensions (pixels) outside the limits."""
    if width <= 0 or height <= 0:
        raise malformed()
    if width > limits.max_side or height > limits.max_side or width * height > limits.max_pixels:
        raise ImageError(
            f"The image is {width} x {height} pixels. At most {limits.max_pixels} pixels and {limits.max_side} a side "
            "are accepted; scale it down.",
            code="image_too_large",
        )
    short, long = min(width, height), max(width, height)
    if short < limits.min_side or (limits.max_aspect_ratio and long > limits.max_aspect_ratio * short):
        raise ImageError(
            f"The image is {width} x {height} pixels, which the model cannot take: each side needs at least "
            f"{limits.min_side} pixels, and the longer at most {limits.max_aspect_ratio or 'any number of'} times the "
            "shorter. Pad or crop it.",
            code="image_dimensions",
        )


def malformed() -> ImageError:
    return ImageError("The image file is damaged or not valid. Save it again and resend.", code="malformed_image")


def truncated() -> ImageError:
    return ImageError("The image file ends too early. Send the whole file.", code="truncated_image")
