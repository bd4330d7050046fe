"""What an image file says of itself, read from its structure before anything is decoded.

Every refusal that does not need pixels happens here, at a cost that does not depend on what the header claims.
"""

from __future__ import annotations

from collections.abc import Callable

from context.errors import ImageError
from context.images.base import ImageLimits
from context.images.header import Format, Header, check_size, malformed, truncated
from context.images.png import PNG_SIGNATURE, read_png
from context.images.raster import read_bmp, read_tiff

# Known only to be refused by name: their bytes are an image, but not one that may be decoded.
_OTHER_MAGIC = (b"qoif", b"%!PS", b"\0\0\1\0", b"8BPS", b"\xff\x0a", b"\0\0\0\x0cjP")
# A scan costs a pass over all pixels; encoders write about ten.
_MAX_PROGRESSIVE_SCANS = 128
_SOF = frozenset((0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF))


def image_format(data: bytes) -> Format | None:
    """The format that the magic bytes name, of those that can be decoded at all."""
    if data[:8] == PNG_SIGNATURE:
        return "PNG"
    if data[:3] == b"\xff\xd8\xff":
        return "JPEG"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "GIF"
    if data[:2] == b"BM":
        return "BMP"
    if data[:4] in (b"II*\0", b"MM\0*"):
        return "TIFF"
    return None


def has_image_magic(data: bytes) -> bool:
    """Whether the first bytes are those of an image file, also of one that will be refused."""
    return image_format(data) is not None or data.startswith(_OTHER_MAGIC) or data[4:8] == b"ftyp"


def sniff(data: bytes, limits: ImageLimits) -> Header:
    """Read and check the structure of an image file.

    Raises:
        ImageError: `empty_image`, `unsupported_image_format`, `malformed_image`, `truncated_image`,
            `image_too_large`, `image_dimensions` or `animated_image`. `param` is not set.
    """
    if not data:
        raise ImageError("The image holds no bytes. Send the whole file.", code="empty_image")
    found = image_format(data)
    if found is None or found not in limits.formats:
        raise ImageError(
            f"The file is not one of the accepted formats: {', '.join(limits.formats)}. Convert it first.",
            code="unsupported_image_format",
        )
    header = _READERS[found](data, limits)
    if header.frames > 1 and limits.animated == "reject":
        raise ImageError("The image is animated. Send one frame as a still image.", code="animated_image")
    return header


def _read_jpeg(data: bytes, limits: ImageLimits) -> Header:
    position, size, progressive, depth = 2, (0, 0), False, 8
    while True:
        while data[position : position + 2] == b"\xff\xff":
            position += 1
        if position + 4 > len(data):
            raise truncated()
        if data[position] != 0xFF:
            raise malformed()
        marker = data[position + 1]
        if marker == 0x01 or 0xD0 <= marker <= 0xD7:
            position += 2
            continue
        length = int.from_bytes(data[position + 2 : position + 4])
        if length < 2:
            raise malformed()
        if marker in _SOF:
            if position + 10 > len(data):
                raise truncated()
            depth = data[position + 4]
            size = (
                int.from_bytes(data[position + 7 : position + 9]),
                int.from_bytes(data[position + 5 : position + 7]),
            )
            check_size(*size, limits)
            progressive = marker in (0xC2, 0xC6, 0xCA, 0xCE)
        if marker == 0xDA:
            break
        position += 2 + length
    if size == (0, 0):
        raise malformed()
    if data.rfind(b"\xff\xd9", position) < 0:
        raise truncated()
    if progressive and data.count(b"\xff\xda") > _MAX_PROGRESSIVE_SCANS:
        raise malformed()
    return Header("JPEG", *size, bit_depth=depth)


def _read_webp(data: bytes, limits: ImageLimits) -> Header:
    if len(data) < 30:
        raise truncated()
    kind = data[12:16]
    match kind:
        case b"VP8X":
            size = 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L" if data[20] == 0x2F:
            bits = int.from_bytes(data[21:25], "little")
            size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 " if data[23:26] == b"\x9d\x01\x2a":
            size = int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
        case _:
            raise malformed()
    check_size(*size, limits)
    if int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise truncated()
    if kind != b"VP8X":
        alpha = kind == b"VP8L" and bool(data[24] & 0x10)
        return Header("WEBP", *size, alpha=alpha)
    animated, metadata = bool(data[20] & 0x02), {b"EXIF": b"", b"XMP ": b""}
    end, position, frames, pictures = int.from_bytes(data[4:8], "little") + 8, 12, 0, 0
    said = alpha = bool(data[20] & 0x10)
    for _ in range(10_000):
        if position + 8 > end or frames > 1:
            break
        name, length = data[position : position + 4], int.from_bytes(data[position + 4 : position + 8], "little")
        if position + 8 + length > end:
            raise truncated()
        frames += name == b"ANMF"
        pictures += name in (b"VP8 ", b"VP8L")
        # Readers go by the flag or by the picture itself; where the two differ, engines would not see the same.
        alpha |= name == b"ALPH" or (name == b"VP8L" and length > 5 and bool(data[position + 12] & 0x10))
        if name in metadata and not metadata[name]:
            metadata[name] = data[position + 8 : position + 8 + length]
        position += 8 + length + (length & 1)
    if pictures > 1:
        raise malformed()
    # The animated layout of a single frame may place it on a larger canvas; decoders differ, so it is rewritten.
    return Header(
        "WEBP",
        *size,
        frames=2 if frames > 1 else 1,
        alpha=alpha,
        rewrite=animated or alpha != said,
        exif=metadata[b"EXIF"],
        xmp=metadata[b"XMP "],
    )


def _read_gif(data: bytes, limits: ImageLimits) -> Header:
    if len(data) < 13:
        raise truncated()
    width, height = int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little")
    check_size(width, height, limits)
    position = 13 + _palette_bytes(data[10])
    frames = 0
    while position < len(data) and data[position] != 0x3B and frames < 2:
        if data[position] == 0x2C:
            if position + 10 > len(data):
                raise truncated()
            left, top, w, h = (int.from_bytes(data[position + at : position + at + 2], "little") for at in (1, 3, 5, 7))
            # A decoder may grow the canvas to the frame, or cut the frame; the claim is bounded either way.
            check_size(max(width, left + w), max(height, top + h), limits)
            if not w or not h or left + w > width or top + h > height:
                raise malformed()
            frames += 1
            position = _skip_gif_blocks(data, position + 11 + _palette_bytes(data[position + 9]))
        elif data[position] == 0x21:
            position = _skip_gif_blocks(data, position + 2)
        elif data[position] == 0x00:
            # Stray terminators between blocks are common and every decoder skips them.
            position += 1
        else:
            break
    if not frames:
        raise malformed()
    return Header("GIF", width, height, frames=frames)


def _palette_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _skip_gif_blocks(data: bytes, position: int) -> int:
    while position < len(data):
        length = data[position]
        position += 1 + length
        if not length:
            return position
    raise truncated()


_READERS: dict[Format, Callable[[bytes, ImageLimits], Header]] = {
    "PNG": read_png,
    "JPEG": _read_jpeg,
    "WEBP": _read_webp,
    "GIF": _read_gif,
    "BMP": read_bmp,
    "TIFF": read_tiff,
}
