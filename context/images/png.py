"""PNG's chunks: checked when read, and written for pinned images."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from context.images.base import ImageLimits
from context.images.header import Header, check_size, malformed, truncated

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
_NAME = re.compile(rb"[A-Za-z]{4}")
# Pillow refuses one inflated text or profile above 1 MiB, so an engine could not open the file either.
_MAX_TEXT_BYTES = 1024 * 1024
_MAX_TEXTS_BYTES = 4 * 1024 * 1024
# 20 MB in chunks of 4 kB are 5,000; each chunk costs a turn of the loop, whatever its size.
_MAX_CHUNKS = 100_000
_ANIMATION = frozenset((b"acTL", b"fcTL", b"fdAT"))


def read_png(data: bytes, limits: ImageLimits) -> Header:
    """Facts of a PNG.

    Raises:
        ImageError: `malformed_image`, `truncated_image`, `image_too_large` or `image_dimensions`.
    """
    ihdr = data[16:29]
    if len(data) < 33 or data[8:16] != b"\0\0\0\x0dIHDR" or zlib.crc32(data[12:29]) != int.from_bytes(data[29:33]):
        raise malformed()
    width, height, depth, colour = int.from_bytes(ihdr[:4]), int.from_bytes(ihdr[4:8]), ihdr[8], ihdr[9]
    if depth not in _DEPTHS.get(colour, ()) or ihdr[10] or ihdr[11] or ihdr[12] > 1 or max(width, height) > 1 << 31:
        raise malformed()
    check_size(width, height, limits)
    frames, animation, damaged, alpha, pixels, budget = 1, False, False, colour in (4, 6), False, _MAX_TEXTS_BYTES
    for name, start, end in chunks(data):
        if name == b"acTL":
            animation, frames = True, 2 if int.from_bytes(data[start : start + 4]) > 1 else frames
        elif name == b"IDAT":
            pixels = True
            # Decoders disagree on a wrong checksum here: some refuse, Pillow does not look.
            damaged |= zlib.crc32(data[start - 4 : end]) != int.from_bytes(data[end : end + 4])
        elif name == b"tRNS":
            alpha = True
        elif name in (b"zTXt", b"iTXt", b"iCCP"):
            budget -= _inflated_bytes(name, data[start:end])
            if budget < 0:
                raise malformed()
    if not pixels:
        raise malformed()
    return Header("PNG", width, height, frames=frames, alpha=alpha, bit_depth=depth, rewrite=damaged or animation)


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of each chunk's body, up to and with IEND.

    Raises:
        ImageError: `truncated_image` when a chunk or IEND is cut off, `malformed_image` for what is no chunk.
    """
    position = len(PNG_SIGNATURE)
    for _ in range(_MAX_CHUNKS):
        if position + 12 > len(data):
            raise truncated()
        length, name = int.from_bytes(data[position : position + 4]), data[position + 4 : position + 8]
        if not _NAME.fullmatch(name):
            raise malformed()
        if position + 12 + length > len(data):
            raise truncated()
        yield name, position + 8, position + 8 + length
        if name == b"IEND":
            return
        position += 12 + length
    raise malformed()


def without_animation(data: bytes) -> bytes:
    """The same PNG as decoders see it that know nothing of APNG: its default image."""
    kept = [PNG_SIGNATURE]
    kept += [data[start - 8 : end + 4] for name, start, end in chunks(data) if name not in _ANIMATION]
    return b"".join(kept)


def write_png(width: int, height: int, strips: Iterable[bytes]) -> bytes:
    """A lossless RGB8 PNG of strips of whole rows, top to bottom.

    One pass, fast compression; memory is one strip and the result. The bytes are a function of the pixels and of
    zlib's version only.
    """
    compressor = zlib.compressobj(level=1)
    parts = [PNG_SIGNATURE, _chunk(b"IHDR", width.to_bytes(4) + height.to_bytes(4) + b"\x08\x02\0\0\0")]
    above = np.zeros((1, width * 3), np.uint8)
    for strip in strips:
        rows = np.frombuffer(strip, np.uint8).reshape(-1, width * 3)
        # Filter 2 (difference to the row above) suits screenshots and photos alike and is one array operation.
        filtered = np.empty((rows.shape[0], width * 3 + 1), np.uint8)
        filtered[:, 0] = 2
        np.subtract(rows[:1], above, out=filtered[:1, 1:])
        np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
        above = rows[-1:]
        if packed := compressor.compress(filtered.tobytes()):
            parts.append(_chunk(b"IDAT", packed))
    parts.append(_chunk(b"IDAT", compressor.flush()))
    parts.append(_chunk(b"IEND", b""))
    return b"".join(parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return b"".join((len(body).to_bytes(4), name, body, zlib.crc32(body, zlib.crc32(name)).to_bytes(4)))


def _inflated_bytes(name: bytes, body: bytes) -> int:
    """Size of a compressed text or profile, counted up to just above what is allowed."""
    rest = body.partition(b"\0")[2]
    if name == b"iTXt":
        if rest[:1] != b"\1":
            return 0
        rest = rest[2:].partition(b"\0")[2].partition(b"\0")[2]
    else:
        rest = rest[1:]
    try:
        size = len(zlib.decompressobj().decompress(rest, _MAX_TEXT_BYTES + 1))
    except zlib.error:
        # Broken text does not touch the pixels, and Pillow drops it as well.
        return 0
    if size > _MAX_TEXT_BYTES:
        raise malformed()
    return size
