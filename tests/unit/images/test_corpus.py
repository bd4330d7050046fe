"""Every expectation of the corpus manifest, through the service that requests use."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from PIL import Image

from context.errors import ImageError
from context.images.base import FetchLimits, ImageLimits, ImageSource
from context.images.parts import parse_image_part
from context.images.service import ImageService
from context.store.blobs import BlobStore
from tests.unit.images.corpus import LIMITS, MANIFEST, PLACE, canonical, data_source, image_id, read, text_of

SAME: dict[str, list[str]] = MANIFEST["same"]
ALTERNATIVES: dict[str, ImageLimits] = {
    "pol_tiny_1x1.png": replace(LIMITS, min_side=4),
    "pol_wide_2000x4.png": replace(LIMITS, max_aspect_ratio=200.0),
    "pol_base.bmp": replace(LIMITS, formats=(*LIMITS.formats, "BMP")),
    "pol_base.tiff": replace(LIMITS, formats=(*LIMITS.formats, "TIFF")),
}


@pytest.fixture
async def service() -> AsyncIterator[ImageService]:
    service = ImageService(LIMITS, FetchLimits(), BlobStore("memory://"))
    yield service
    await service.close()


def test_files_are_those_of_the_manifest() -> None:
    for name, facts in MANIFEST["files"].items():
        assert hashlib.sha256(read(name)).hexdigest() == facts["sha256"], name


def test_default_limits_are_those_of_the_manifest() -> None:
    policy = MANIFEST["policy"]
    assert tuple(policy["formats"]) == LIMITS.formats
    assert tuple(policy["background"]) == LIMITS.background
    assert (policy["max_pixels"], policy["max_side"]) == (LIMITS.max_pixels, LIMITS.max_side)


@pytest.mark.parametrize("group", SAME)
@pytest.mark.case("MC-026", "MC-038", "MC-039")
async def test_files_of_a_group_share_an_id(service: ImageService, group: str) -> None:
    refs = [await service.resolve(data_source(read(name)), tenant="t") for name in SAME[group]]
    assert len({ref.image_id for ref in refs}) == 1
    assert len(refs[0].image_id) == 64


def test_groups_differ() -> None:
    assert len({image_id(names[0]) for names in SAME.values()}) == len(SAME)


@pytest.mark.parametrize("case", MANIFEST["reject"], ids=lambda case: case["file"])
@pytest.mark.case("MC-042", "MC-043", "MC-045", "MC-046", "MC-048")
async def test_refusals_have_code_place_and_remedy(service: ImageService, case: dict[str, str]) -> None:
    with pytest.raises(ImageError) as caught:
        await service.resolve(data_source(read(case["file"])), tenant="t")
    error = caught.value
    assert (error.code, error.param, error.status) == (case["error"], PLACE, 400)
    assert error.message.startswith(PLACE)
    assert service.stats().decodes <= 1


@pytest.mark.parametrize("case", MANIFEST["policy_files"], ids=lambda case: case["file"])
async def test_policy_files_by_default(service: ImageService, case: dict[str, str]) -> None:
    source = data_source(read(case["file"]))
    if case["default"] == "accept":
        assert (await service.resolve(source, tenant="t")).image_id
    else:
        with pytest.raises(ImageError) as caught:
            await service.resolve(source, tenant="t")
        assert caught.value.code == case["default"]


@pytest.mark.parametrize(
    "case", [case for case in MANIFEST["policy_files"] if case["file"] in ALTERNATIVES], ids=lambda case: case["file"]
)
def test_policy_files_with_the_other_setting(case: dict[str, str]) -> None:
    limits = ALTERNATIVES[case["file"]]
    kind, _, group = case["alt"].partition(":")
    if kind == "same":
        assert image_id(case["file"], limits) == image_id(SAME[group][0])
    else:
        with pytest.raises(ImageError) as caught:
            canonical(read(case["file"]), limits)
        assert caught.value.code == case["alt"]


@pytest.mark.parametrize("case", MANIFEST["dataurl"], ids=lambda case: case["name"])
@pytest.mark.case("MC-053", "MC-054")
async def test_data_urls(service: ImageService, case: dict[str, str]) -> None:
    kind, _, word = case["expect"].partition(":")
    part = {"type": "image_url", "image_url": {"url": case["url"]}}
    if kind == "same":
        ref = await service.resolve(parse_image_part(part, PLACE), tenant="t")
        assert ref.image_id == image_id(SAME[word][0])
    else:
        with pytest.raises(ImageError) as caught:
            await service.resolve(parse_image_part(part, PLACE), tenant="t")
        assert caught.value.code == word
        assert (caught.value.param or "").startswith(PLACE)


@pytest.mark.parametrize("name", ["anim.webp", "anim.png"])
def test_first_frame_of_an_animation(name: str) -> None:
    image = canonical(read(name), replace(LIMITS, animated="first_frame"))
    assert image.image_id == image_id("base.png")
    assert image.media_type == "image/png"
    assert canonical(image.pinned).image_id == image.image_id


@pytest.mark.case("MC-042")
def test_first_frame_of_a_gif_is_pinned_as_a_still_image() -> None:
    image = canonical(read("anim.gif"), replace(LIMITS, animated="first_frame"))
    first = Image.open(io.BytesIO(read("anim.gif"))).convert("RGB")
    assert Image.open(io.BytesIO(image.pinned)).tobytes() == first.tobytes()
    assert canonical(image.pinned).image_id == image.image_id


async def test_near_duplicates_are_reported_and_not_merged(service: ImageService) -> None:
    for case in MANIFEST["near"]:
        a, b = [await service.resolve(data_source(read(case[end])), tenant=case["b"]) for end in "ab"]
        await service.settle()
        assert a.image_id != b.image_id
        (pair,) = service.near_duplicates(case["b"])
        assert {pair.first, pair.second} == {a.image_id, b.image_id}
        assert pair.distance <= case["max_phash"]
        assert pair.low_information == case["a"].startswith("solid")


async def test_wrong_media_type_is_replaced_by_the_sniffed_one(service: ImageService) -> None:
    ref = await service.resolve(data_source(read("base_wrong_ext.jpg"), "image/jpeg"), tenant="t")
    assert ref.media_type == "image/png"
    assert (await service.payload(ref, tenant="t")).startswith(b"data:image/png;base64,iVBOR")


async def test_bare_base64_is_an_image(service: ImageService) -> None:
    text = text_of(data_source(read("base.png"))).partition(",")[2]
    source = parse_image_part({"type": "input_image", "image_url": text}, PLACE)
    assert source == ImageSource("data", text, PLACE)
    assert (await service.resolve(source, tenant="t")).image_id == image_id("base.png")
