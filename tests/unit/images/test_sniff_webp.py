"""WebP files whose parts contradict each other."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from context.errors import ImageError
from context.images.base import ImageLimits
from context.images.decode import canonicalize
from context.images.sniff import sniff

LIMITS = ImageLimits()


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + len(data).to_bytes(4, "little") + data + b"\0" * (len(data) & 1)


def _extended(pictures: int, flags: int) -> bytes:
    image = Image.new("RGBA", (40, 30), (200, 10, 10, 128))
    plain = io.BytesIO()
    image.save(plain, "WEBP", lossless=True, exact=True)
    body = plain.getvalue()[12:]
    start = body.index(b"VP8L")
    picture = body[start : start + 8 + int.from_bytes(body[start + 4 : start + 8], "little")]
    picture += b"\0" * (len(picture) & 1)
    size = (39).to_bytes(3, "little") + (29).to_bytes(3, "little")
    chunks = _chunk(b"VP8X", bytes([flags, 0, 0, 0]) + size) + picture * pictures
    return b"RIFF" + (4 + len(chunks)).to_bytes(4, "little") + b"WEBP" + chunks


def test_alpha_that_the_header_denies_is_seen() -> None:
    denied, said = _extended(1, 0), _extended(1, 0x10)
    ids = {canonicalize(data, sniff(data, LIMITS), LIMITS).image_id for data in (denied, said)}
    assert len(ids) == 1
    # An engine that goes by the flag would show other pixels than one that goes by the picture.
    assert canonicalize(denied, sniff(denied, LIMITS), LIMITS).media_type == "image/png"


def test_two_pictures_in_one_file_are_refused() -> None:
    with pytest.raises(ImageError) as refused:
        sniff(_extended(2, 0x10), LIMITS)
    assert refused.value.code == "malformed_image"
