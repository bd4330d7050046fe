"""Canonical pixels and pinned bytes."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from context.errors import ImageError
from context.images.decode import Canonical
from context.images.png import write_png
from context.images.webp import decode_webp
from tests.unit.images.corpus import LIMITS, MANIFEST, canonical, read

REFUSALS = {
    "empty_image",
    "malformed_image",
    "truncated_image",
    "unsupported_image_format",
    "image_too_large",
    "animated_image",
}


def encode(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def identity(pixels: np.ndarray[Any, Any]) -> str:
    height, width, _ = pixels.shape
    return hashlib.sha256(b"image-rgb8-v1\0" + struct.pack(">II", width, height) + pixels.tobytes()).hexdigest()


def outcome(file: bytes) -> Canonical | ImageError:
    try:
        return canonical(file)
    except ImageError as error:
        return error


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: bytes) -> bytes:
    ihdr = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"".join(
        (b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", ihdr), *extra, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    )


@st.composite
def rgb_arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    width, height = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    data = draw(st.binary(min_size=width * height * 3, max_size=width * height * 3))
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


@given(rgb_arrays(), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
@pytest.mark.case("MC-026")
def test_any_lossless_container_gives_the_documented_id(pixels: np.ndarray[Any, Any], level: int) -> None:
    image = Image.fromarray(pixels)
    files = [
        encode(image, compress_level=level),
        encode(image.convert("RGBA")),
        encode(image, "WEBP", lossless=True, exact=True),
        write_png(image.width, image.height, [pixels.tobytes()]),
    ]
    found = [canonical(file) for file in files]
    assert {one.image_id for one in found} == {identity(pixels)}
    assert all(one.pinned is file for one, file in zip(found, files, strict=True))


@given(rgb_arrays(), st.integers(0, 255))
@settings(max_examples=25, deadline=None)
def test_pinned_bytes_show_the_canonical_pixels(pixels: np.ndarray[Any, Any], alpha: int) -> None:
    image = Image.fromarray(pixels)
    image.putalpha(alpha)
    found = canonical(encode(image))
    seen = np.asarray(Image.open(io.BytesIO(found.pinned)).convert("RGB"))
    assert identity(seen) == found.image_id
    assert canonical(found.pinned).image_id == found.image_id


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("format", "options"), [("JPEG", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
@pytest.mark.case("MC-037")
def test_every_orientation_is_baked_in(orientation: int, format: str, options: dict[str, Any]) -> None:
    pixels = np.random.default_rng(orientation).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = encode(Image.fromarray(pixels), format, exif=exif, **options)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
    found = canonical(file)
    assert found.image_id == identity(np.asarray(upright))
    assert (found.width, found.height) == upright.size
    assert (found.pinned is file) == (orientation == 1)
    assert canonical(found.pinned).image_id == found.image_id


@pytest.mark.parametrize("name", [name for names in MANIFEST["same"].values() for name in names])
def test_an_engine_sees_the_canonical_pixels_of_every_corpus_file(name: str) -> None:
    found = canonical(read(name))
    seen = ImageOps.exif_transpose(Image.open(io.BytesIO(found.pinned))).convert("RGB")
    assert identity(np.asarray(seen)) == found.image_id


@pytest.mark.parametrize("byteorder", ["<u2", ">u2"])
@pytest.mark.case("MC-040")
def test_sixteen_bit_gray_keeps_its_high_byte(byteorder: str) -> None:
    levels = np.arange(0, 65536, 4, dtype=np.uint16).reshape(128, 128)
    big = levels.astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in big)
    expected = np.repeat((levels >> 8).astype(np.uint8)[:, :, None], 3, 2)
    assert canonical(raw_png(128, 128, 16, 0, rows)).image_id == identity(expected)
    # Pillow writes 16-bit gray from either byte order.
    mode = "I;16" if byteorder == "<u2" else "I;16B"
    image = Image.frombytes(mode, (128, 128), levels.astype(byteorder).tobytes())
    assert canonical(encode(image)).image_id == identity(expected)


@pytest.mark.parametrize(
    ("depth", "sample", "level"), [(1, 1, 255), (2, 2, 170), (4, 9, 153), (8, 200, 200), (16, 0x1234, 0x12)]
)
def test_gray_colour_key_counts_in_the_files_own_depth(depth: int, sample: int, level: int) -> None:
    per_row = max(1, 8 // depth)
    packed = sum(sample << (8 - depth * (at + 1)) for at in range(per_row)) if depth < 8 else sample
    other = packed ^ ((1 << max(8, depth)) - 1)
    size = 2 if depth == 16 else 1
    rows = b"\0" + packed.to_bytes(size) + b"\0" + other.to_bytes(size)
    found = canonical(
        raw_png(per_row, 2, depth, 0, rows, chunk(b"tRNS", struct.pack(">H", sample))),
        replace(LIMITS, background=(1, 2, 3)),
    )
    seen = np.asarray(Image.open(io.BytesIO(found.pinned)).convert("RGB"))
    assert seen[0].tolist() == [[1, 2, 3]] * per_row
    assert level not in seen[1]
    assert found.media_type == "image/png"


def test_rgb_colour_key_shows_the_background() -> None:
    pixels = np.array([[[9, 8, 7], [9, 8, 6]]], np.uint8)
    image = Image.fromarray(pixels)
    found = canonical(encode(image, transparency=(9, 8, 7)))
    assert found.image_id == identity(np.array([[[255, 255, 255], [9, 8, 6]]], np.uint8))


def test_background_is_a_setting() -> None:
    image = Image.new("RGBA", (3, 2), (10, 20, 30, 0))
    found = canonical(encode(image), replace(LIMITS, background=(1, 2, 3)))
    assert found.image_id == identity(np.full((2, 3, 3), (1, 2, 3), np.uint8))


def test_webp_beside_pillow_gives_pillows_pixels() -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (65, 43, 4), dtype=np.uint8)
    for alpha in (False, True):
        file = encode(Image.fromarray(pixels if alpha else pixels[:, :, :3]), "WEBP", quality=70)
        found = decode_webp(file, 43, 65, alpha=alpha)
        assert found is not None
        assert (found == np.asarray(Image.open(io.BytesIO(file)))).all()


def test_large_image_in_strips_has_the_id_of_its_whole() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (700, 1100, 3), dtype=np.uint8)
    found = canonical(encode(Image.fromarray(pixels)))
    assert found.image_id == identity(pixels)
    thumbnail = found.thumbnail
    assert len(thumbnail.levels) == thumbnail.width * thumbnail.height
    assert max(thumbnail.width, thumbnail.height) <= 256


def test_wrong_pixel_checksum_is_written_anew() -> None:
    found = canonical(read("pol_crc_idat.png"))
    assert found.media_type == "image/png"
    assert found.pinned != read("pol_crc_idat.png")
    assert canonical(found.pinned).pinned is found.pinned


@given(st.sampled_from(["base.png", "flat.gif", "jpeg_progressive.jpg", "base_exif6.webp", "trns_p.png"]), st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_refused_by_name_or_decoded(name: str, data: st.DataObject) -> None:
    """No other exception than a refusal leaves the decoder, whatever the bytes."""
    file = bytearray(read(name))
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    file = file[: data.draw(st.integers(0, len(file)))]
    found = outcome(bytes(file))
    if isinstance(found, ImageError):
        assert found.code in REFUSALS
        assert "/" not in found.message
        assert "0x" not in found.message
    else:
        assert canonical(found.pinned).image_id == found.image_id


@pytest.mark.parametrize("name", [b"zTXt", b"iTXt", b"iCCP"])
def test_inflating_metadata_is_refused(name: bytes) -> None:
    packed = zlib.compress(bytes(3_000_000))
    body = {b"zTXt": b"k\0\0", b"iTXt": b"k\0\1\0\0\0", b"iCCP": b"k\0\0"}[name] + packed
    with pytest.raises(ImageError) as caught:
        canonical(raw_png(1, 1, 8, 2, b"\0\1\2\3", chunk(name, body)))
    assert caught.value.code == "malformed_image"


def test_many_progressive_scans_are_refused() -> None:
    file = read("jpeg_progressive.jpg")
    at = file.index(b"\xff\xda")
    scan = file[at : file.index(b"\xff", at + 20)]
    with pytest.raises(ImageError) as caught:
        canonical(file[:at] + scan * 200 + file[at:])
    assert caught.value.code == "malformed_image"
