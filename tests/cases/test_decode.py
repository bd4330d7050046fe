"""What a picture's pixels are, whatever file they came in."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pybase64
import pytest
from PIL import Image

from context.errors import ImageError
from context.images.base import FetchLimits
from context.images.service import ImageService
from context.store.blobs import BlobStore
from tests.api.rig import Rig, blobs, running
from tests.cases.chats import Chat, encoded, part, picture, user_of
from tests.unit.images.corpus import LIMITS, canonical, data_source

EXIF_ORIENTATION = 0x0112
# What a decoder has to do with a file of each orientation to show it upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@pytest.fixture
async def service() -> AsyncGenerator[ImageService]:
    service = ImageService(LIMITS, FetchLimits(), BlobStore("memory://"))
    yield service
    await service.close()


def shown(data: bytes) -> Image.Image:
    """What an engine sees in the bytes that are sent: opened and converted, nothing else."""
    return Image.open(io.BytesIO(canonical(data).pinned)).convert("RGB")


@pytest.mark.case("MC-037")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_is_baked_in_and_its_tag_is_gone(orientation: int) -> None:
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = orientation
    photo = encoded(picture(size=(64, 48)), "JPEG", exif=exif, quality=95)
    decoded = Image.open(io.BytesIO(photo)).convert("RGB")
    upright = decoded.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else decoded
    found = canonical(photo)
    assert found.image_id == canonical(encoded(upright)).image_id
    assert (found.width, found.height) == upright.size
    assert shown(photo).tobytes() == upright.tobytes()
    assert Image.open(io.BytesIO(found.pinned)).getexif().get(EXIF_ORIENTATION, 1) == 1


def logo() -> Image.Image:
    """Red with a transparent half, under which blue is hidden."""
    image = Image.new("RGBA", (20, 10), (255, 0, 0, 255))
    image.paste((0, 0, 255, 0), (10, 0, 20, 10))
    return image


@pytest.mark.case("MC-038")
def test_what_is_transparent_shows_the_background() -> None:
    image = shown(encoded(logo()))
    assert (image.getpixel((2, 2)), image.getpixel((15, 2))) == ((255, 0, 0), (255, 255, 255))
    other = canonical(encoded(logo()), replace(LIMITS, background=(0, 0, 0)))
    assert Image.open(io.BytesIO(other.pinned)).convert("RGB").getpixel((15, 2)) == (0, 0, 0)
    # Another background is another image: it shows other pixels.
    assert other.image_id != canonical(encoded(logo())).image_id


@pytest.mark.case("MC-039")
def test_a_palette_with_transparency_in_bytes() -> None:
    image = Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255, 9, 9, 9])
    image.putdata([0, 1, 2, 3])
    data = encoded(image, transparency=bytes([255, 0, 128, 255]))
    assert isinstance(Image.open(io.BytesIO(data)).info["transparency"], bytes)
    pixels = [shown(data).getpixel((x, 0)) for x in range(4)]
    assert (pixels[0], pixels[1], pixels[3]) == ((255, 0, 0), (255, 255, 255), (9, 9, 9))
    half: Any = pixels[2]
    assert half[2] == 255
    assert 126 <= half[0] == half[1] <= 128
    assert canonical(data).image_id == canonical(encoded(shown(data))).image_id


@pytest.mark.case("MC-040")
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("order", ["<u2", ">u2"])
def test_sixteen_bit_gray_keeps_256_levels(format: str, order: str) -> None:
    ramp = np.arange(0, 65536, 16).astype(order).reshape(64, 64)
    mode = "I;16" if order == "<u2" else "I;16B"
    image = Image.frombytes(mode, (64, 64), ramp.tobytes())
    limits = replace(LIMITS, formats=(*LIMITS.formats, "TIFF"))
    found = canonical(encoded(image, format), limits)
    gray = np.asarray(Image.open(io.BytesIO(found.pinned)).convert("L"))
    assert len(np.unique(gray)) == 256
    assert (gray == (ramp.astype(np.uint16) >> 8)).all()


def animation() -> bytes:
    return encoded(picture(1), "GIF", save_all=True, append_images=[picture(2), picture(3)])


@pytest.mark.case("MC-042")
async def test_an_animation_is_refused_by_default_and_jams_nothing(rig: Rig) -> None:
    chat = Chat(rig)
    answer = await chat.ask(user_of(part(animation(), "image/gif")))
    assert (answer.status, answer.error["code"]) == (400, "animated_image")
    assert (await chat.ask({"role": "user", "content": "never mind"})).status == 200


@pytest.mark.case("MC-042")
async def test_or_its_first_frame_is_a_still_image(tmp_path: Path) -> None:
    async with running(tmp_path, environment={"IMAGES__ANIMATED": "first_frame"}) as rig:
        assert (await Chat(rig).ask(user_of(part(animation(), "image/gif")))).status == 200
        (sent,) = rig.engine.sent[-1]["messages"][0]["content"]
        assert (await Chat(rig).ask(user_of(part(animation(), "image/gif")))).status == 200
        (again,) = rig.engine.sent[-1]["messages"][0]["content"]
    data = pybase64.b64decode(sent["image_url"]["url"].removeprefix("data:image/png;base64,"), validate=True)
    assert not getattr(Image.open(io.BytesIO(data)), "is_animated", False)
    assert again["uuid"] == sent["uuid"]


@pytest.mark.case("MC-043")
@pytest.mark.parametrize("lossless", [True, False])
async def test_webp_can_be_sent_on_as_png(tmp_path: Path, lossless: bool) -> None:
    data = encoded(picture(), "WEBP", lossless=lossless)
    types: list[str] = []
    uuids: set[str] = set()
    for environment in ({}, {"IMAGES__AS_PNG": "[WEBP]"}):
        async with running(tmp_path / str(len(types)), environment=environment) as rig:
            await Chat(rig).ask(user_of(part(data, "image/webp")))
            (sent,) = rig.engine.sent[-1]["messages"][0]["content"]
            types.append(sent["image_url"]["url"].partition(";")[0])
            uuids.add(canonical(pybase64.b64decode(sent["image_url"]["url"].partition(",")[2])).image_id)
    assert types == ["data:image/webp", "data:image/png"]
    assert len(uuids) == 1


@pytest.mark.case("MC-043")
async def test_an_animated_webp_is_refused_by_name(rig: Rig) -> None:
    data = encoded(picture(1), "WEBP", save_all=True, append_images=[picture(2)])
    assert (await Chat(rig).ask(user_of(part(data, "image/webp")))).error["code"] == "animated_image"


@pytest.mark.case("MC-045")
@pytest.mark.parametrize("said", ["image/svg+xml", "image/png"])
async def test_svg_is_refused_unread(rig: Rig, said: str) -> None:
    svg = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    answer = await Chat(rig).ask(user_of(part(svg, said)))
    assert (answer.status, answer.error["code"]) == (400, "unsupported_image_format")
    assert rig.engine.wire == []


@pytest.mark.case("MC-046")
async def test_a_photo_that_lost_its_end_is_refused_and_kept_nowhere(rig: Rig, tmp_path: Path) -> None:
    data = encoded(picture(size=(200, 200)), "JPEG", quality=90)[:-128]
    for _ in range(2):
        answer = await Chat(rig).ask(user_of({"type": "text", "text": "see"}, part(data, "image/jpeg")))
        assert (answer.status, answer.error["code"]) == (400, "truncated_image")
        assert answer.error["param"] == "messages[0].content[1]"
    assert rig.engine.wire == []
    assert blobs(tmp_path) == []


@pytest.mark.case("MC-048")
async def test_a_bomb_is_refused_by_its_header(service: ImageService) -> None:
    """44 KB that would be a gigabyte of pixels."""
    bomb = encoded(Image.new("1", (19_000, 19_000)))
    assert len(bomb) < 100_000
    with pytest.raises(ImageError) as caught:
        await service.resolve(data_source(bomb), tenant="t")
    assert (caught.value.code, caught.value.status) == ("image_too_large", 400)
    # The bound is lower than the one at which Pillow begins to warn.
    assert LIMITS.max_pixels < Image.MAX_IMAGE_PIXELS  # pyright: ignore[reportOperatorIssue]
