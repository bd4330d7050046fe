"""Canonical pixels, the identity over them, and the bytes that are pinned for the engine.

The image is decoded once; everything after that goes through it in strips, so that memory stays at one decoded image
and no single call keeps the interpreter lock for more than a few milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from context.errors import ImageError
from context.images.base import ImageLimits
from context.images.header import Header, malformed, truncated
from context.images.png import without_animation, write_png
from context.images.webp import decode_webp

# A truncated file must be refused, whatever else in this process would like Pillow to do.
ImageFile.LOAD_TRUNCATED_IMAGES = False

IDENTITY = b"image-rgb8-v1\0"
_STRIP_PIXELS = 256 * 1024
_THUMB_SIDE = 256
_ORIENTATION = 0x0112
# The classes are called directly: Image.open would try further readers and apply a process-wide pixel limit.
_READERS: dict[str, Callable[[BytesIO], ImageFile.ImageFile]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "JPEG": JpegImagePlugin.JpegImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
}
_T = Image.Transpose
_TURN = {
    2: _T.FLIP_LEFT_RIGHT,
    3: _T.ROTATE_180,
    4: _T.FLIP_TOP_BOTTOM,
    5: _T.TRANSPOSE,
    6: _T.ROTATE_270,
    7: _T.TRANSVERSE,
    8: _T.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """Gray levels of the canonical pixels, at most 256 a side, each axis scaled on its own."""

    width: int
    height: int
    levels: bytes


@dataclass(frozen=True, slots=True)
class Canonical:
    """An image after decoding. `pinned` is the original bytes object when engines see the same pixels in it."""

    image_id: str
    width: int
    height: int
    media_type: str
    pinned: bytes
    thumbnail: Thumbnail


def canonicalize(data: bytes, header: Header, limits: ImageLimits) -> Canonical:
    """Decode an image that `sniff` accepted.

    Returns:
        Its identity, sha256 over `image-rgb8-v1`, NUL, width and height as big-endian 32 bit and the RGB8 rows, and
        the bytes to pin: the original where any decoder that converts to RGB sees those rows, else a PNG of them.

    Raises:
        ImageError: `truncated_image`, `malformed_image` or `image_too_large` (memory).
    """
    try:
        return _canonicalize(data, header, limits)
    except ImageError:
        raise
    except MemoryError:
        raise ImageError("The image needs more memory than there is. Scale it down.", code="image_too_large") from None
    except Exception as error:
        # Readers raise many types on damaged input. The text decides between two codes and is not passed on.
        raise (truncated() if "truncated" in str(error) else malformed()) from error


def _canonicalize(data: bytes, header: Header, limits: ImageLimits) -> Canonical:
    picture = _Picture.open(data, header, limits.background)
    digest = hashlib.sha256(IDENTITY + picture.width.to_bytes(4) + picture.height.to_bytes(4))
    factors = (-(-picture.width // _THUMB_SIDE), -(-picture.height // _THUMB_SIDE))
    levels: list[bytes] = []
    for strip in picture.strips(factors[1]):
        digest.update(strip.tobytes())
        levels.append(strip.convert("L").reduce(factors).tobytes())
    thumbnail = Thumbnail(-(-picture.width // factors[0]), -(-picture.height // factors[1]), b"".join(levels))
    pinned, media_type = data, header.media_type
    if picture.rewrite or header.format in limits.as_png:
        rows = (strip.tobytes() for strip in picture.strips(1))
        pinned, media_type = write_png(picture.width, picture.height, rows), "image/png"
    return Canonical(digest.hexdigest(), picture.width, picture.height, media_type, pinned, thumbnail)


class _Picture:
    """A decoded image that gives canonical RGB8 strips.

    `rewrite` becomes true when the original bytes would show an engine other pixels; it is final once all strips
    were read.
    """

    def __init__(self, pixels: Image.Image | NDArray[np.uint8], header: Header, background: tuple[int, int, int]):
        self._pixels, self._header, self._background = pixels, header, background
        self._turn = 1
        self.rewrite = header.rewrite or header.frames > 1
        self._key: tuple[int, ...] | None = None

    @classmethod
    def open(cls, data: bytes, header: Header, background: tuple[int, int, int]) -> _Picture:
        if header.format == "WEBP" and header.frames == 1 and not header.rewrite:
            array = decode_webp(data, header.width, header.height, alpha=header.alpha)
            if array is not None:
                picture = cls(array, header, background)
                picture._read_orientation(_exif_carrier(header))
                return picture
        if header.format == "PNG" and header.rewrite:
            data = without_animation(data)
        image = _READERS[header.format](BytesIO(data))
        if image.size != (header.width, header.height):
            raise malformed()
        if header.format in ("PNG", "JPEG"):
            # Pillow would take the pixels' memory in pieces and zero it under the interpreter lock, 30 ms for
            # 12 megapixels. One piece comes zeroed from the system, page by page, while the lock is free.
            image.im = Image.core.new_block(image.mode, image.size)
        image.load()
        # Pillow turns a TIFF upright while it loads it.
        header = replace(header, width=image.width, height=image.height)
        picture = cls(image, header, background)
        picture._read_orientation(image)
        picture._key = _colour_key(image, header)
        picture.rewrite |= image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA")
        return picture

    @property
    def width(self) -> int:
        return self._header.height if self._turn >= 5 else self._header.width

    @property
    def height(self) -> int:
        return self._header.width if self._turn >= 5 else self._header.height

    def strips(self, multiple: int) -> Iterator[Image.Image]:
        """RGB strips from top to bottom; all but the last have a multiple of `multiple` rows."""
        rows = max(1, _STRIP_PIXELS // self.width // multiple) * multiple
        for top in range(0, self.height, rows):
            yield self._rgb(self._crop(top, min(top + rows, self.height)))

    def _read_orientation(self, image: Image.Image) -> None:
        try:
            turn = image.getexif().get(_ORIENTATION, 1)
        except Exception:
            # Damaged EXIF does not touch the pixels, but an engine may stumble over it.
            self.rewrite, turn = True, 1
        if turn in _TURN:
            self._turn, self.rewrite = int(turn), True

    def _crop(self, top: int, bottom: int) -> Image.Image:
        """Canonical rows `top` to `bottom`, in the stored mode, turned upright."""
        width, height = self._header.width, self._header.height
        match self._turn:
            case 1 | 2:
                box = (0, top, width, bottom)
            case 3 | 4:
                box = (0, height - bottom, width, height - top)
            case 5 | 6:
                box = (top, 0, bottom, height)
            case _:
                box = (width - bottom, 0, width - top, height)
        if isinstance(self._pixels, Image.Image):
            strip = self._pixels.crop(box)
        else:
            part = self._pixels[box[1] : box[3], box[0] : box[2]]
            mode = "RGBA" if part.shape[2] == 4 else "RGB"
            strip = Image.frombytes(mode, (part.shape[1], part.shape[0]), part.tobytes())
        return strip if self._turn == 1 else strip.transpose(_TURN[self._turn])

    def _rgb(self, strip: Image.Image) -> Image.Image:
        if strip.mode in ("LA", "PA", "RGBA") or (strip.mode == "P" and "transparency" in strip.info):
            return self._flatten(strip.convert("RGBA"))
        if strip.mode.startswith("I"):
            self.rewrite = True
            return self._shorten(strip)
        return self._without_key(strip, strip.convert("RGB")) if self._key else strip.convert("RGB")

    def _flatten(self, strip: Image.Image) -> Image.Image:
        """Composite on the background. Opaque strips keep their colours, and engines see the same ones."""
        alpha = strip.getchannel("A")
        if alpha.getextrema()[0] == 255:
            return strip.convert("RGB")
        self.rewrite = True
        flat = Image.new("RGB", strip.size, self._background)
        flat.paste(strip, mask=alpha)
        return flat

    def _shorten(self, strip: Image.Image) -> Image.Image:
        """16-bit gray to its high byte; a plain convert() would clip everything above 255 to white."""
        dtype = {"I;16B": ">u2", "I": "<i4"}.get(strip.mode, "<u2")
        levels = np.frombuffer(strip.tobytes(), dtype).reshape(strip.height, strip.width)
        gray = Image.fromarray((levels >> 8).astype(np.uint8)).convert("RGB")
        if self._key:
            return self._paint(gray, levels == self._key[0])
        return gray

    def _without_key(self, stored: Image.Image, strip: Image.Image) -> Image.Image:
        levels = np.asarray(stored if stored.mode == "RGB" else stored.convert("L"))
        mask = (levels == self._key).all(-1) if levels.ndim == 3 else levels == (self._key or (0,))[0]
        return self._paint(strip, mask)

    def _paint(self, strip: Image.Image, mask: NDArray[np.bool_]) -> Image.Image:
        if not mask.any():
            return strip
        self.rewrite = True
        pixels = np.array(strip)
        pixels[mask] = self._background
        return Image.fromarray(pixels)


def _exif_carrier(header: Header) -> Image.Image:
    """An image that holds nothing but metadata, so that Pillow's reading of orientation applies to it."""
    carrier = Image.new("L", (1, 1))
    if header.exif:
        carrier.info["exif"] = header.exif
    if header.xmp:
        carrier.info["xmp"] = header.xmp
    return carrier


def _colour_key(image: Image.Image, header: Header) -> tuple[int, ...] | None:
    """PNG's one transparent colour, in the levels that the decoded image has.

    The file gives it in samples of its own bit depth, while Pillow scales low depths up and cuts 16-bit RGB down.
    """
    value = cast("Any", image.info.get("transparency"))
    if header.format != "PNG" or value is None or image.mode in ("P", "LA", "PA", "RGBA"):
        return None
    samples = cast("tuple[int, ...]", value) if isinstance(value, tuple) else (int(value),)
    if image.mode.startswith("I"):
        return samples
    if image.mode == "1":
        return (255 if samples[0] else 0,)
    if header.bit_depth == 16:
        return tuple(sample >> 8 for sample in samples)
    return tuple(sample * (255 // ((1 << header.bit_depth) - 1)) for sample in samples)
