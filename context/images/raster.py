"""BMP and TIFF headers: formats that are off unless the operator adds them, and are always pinned as PNG."""

from __future__ import annotations

from context.errors import ImageError
from context.images.base import ImageLimits
from context.images.header import Header, check_size, malformed, truncated

_MAX_TIFF_TAGS = 512
# None, LZW, deflate (two numbers) and PackBits. The others are JPEG and fax variants that scanners use.
_TIFF_COMPRESSIONS = frozenset((1, 5, 8, 32946, 32773))


def read_bmp(data: bytes, limits: ImageLimits) -> Header:
    """Facts of a BMP. Run-length coded ones are refused: their reader is slow enough to be an attack."""
    if len(data) < 34:
        raise truncated()
    if int.from_bytes(data[14:18], "little") == 12:
        width, height = int.from_bytes(data[18:20], "little"), int.from_bytes(data[20:22], "little")
    else:
        width = int.from_bytes(data[18:22], "little", signed=True)
        height = abs(int.from_bytes(data[22:26], "little", signed=True))
        if int.from_bytes(data[30:34], "little") not in (0, 3):
            raise _unsupported("run-length coded BMP")
    check_size(width, height, limits)
    return Header("BMP", width, height, rewrite=True)


def read_tiff(data: bytes, limits: ImageLimits) -> Header:
    """Facts of a TIFF's first page; more pages count as animation."""
    order = "little" if data[:2] == b"II" else "big"
    at = int.from_bytes(data[4:8], order)
    count = int.from_bytes(data[at : at + 2], order)
    if at < 8 or not 0 < count <= _MAX_TIFF_TAGS:
        raise malformed()
    end = at + 2 + count * 12
    if end + 4 > len(data):
        raise truncated()
    tags: dict[int, int] = {}
    for entry in range(at + 2, end, 12):
        kind = int.from_bytes(data[entry + 2 : entry + 4], order)
        size = 2 if kind == 3 else 4
        tags[int.from_bytes(data[entry : entry + 2], order)] = int.from_bytes(data[entry + 8 : entry + 8 + size], order)
    check_size(tags.get(256, 0), tags.get(257, 0), limits)
    if tags.get(259, 1) not in _TIFF_COMPRESSIONS:
        raise _unsupported("this compression of TIFF")
    frames = 2 if any(data[end : end + 4]) else 1
    return Header("TIFF", tags[256], tags[257], frames=frames, rewrite=True)


def _unsupported(what: str) -> ImageError:
    return ImageError(f"The image is {what}, which is not accepted. Send a PNG.", code="unsupported_image_format")
