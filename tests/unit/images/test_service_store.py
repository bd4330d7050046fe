"""The service and its store: what lasts, what is lost and found again, and what a failing store costs."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from context.errors import ImageError
from context.images.service import ImageService
from tests.unit.images.bucket import running_bucket
from tests.unit.images.corpus import LIMITS, data_source, image_id, read, text_of
from tests.unit.images.services import FETCH, lose, make


async def test_blobs_lie_in_the_tenants_own_folder(tmp_path: Path) -> None:
    service = make(str(tmp_path))
    for tenant in ("plain", "../../escape"):
        await service.resolve(data_source(read("base.png")), tenant=tenant)
    await service.close()
    blobs = [Path(folder, name).relative_to(tmp_path).parts for folder, _, names in os.walk(tmp_path) for name in names]
    assert ("plain", "images", image_id("base.png")) in blobs
    assert len(blobs) == 2
    assert all(len(parts) == 3 and ".." not in parts for parts in blobs)


async def test_payload_survives_a_restart(tmp_path: Path) -> None:
    service = make(str(tmp_path))
    ref = await service.resolve(data_source(read("base_exif6.png")), tenant="t")
    payload = await service.payload(ref, tenant="t")
    await service.close()
    again = make(str(tmp_path))
    assert await again.payload(ref, tenant="t") == payload
    assert (await again.resolve(data_source(read("base.png")), tenant="t")) == ref
    await again.close()


async def test_what_a_crash_left_behind_is_replaced(tmp_path: Path) -> None:
    blob = tmp_path / "t" / "images" / image_id("base.png")
    blob.parent.mkdir(parents=True)
    blob.write_bytes(read("base.png")[:1000])
    service = make(str(tmp_path))
    ref = await service.resolve(data_source(read("base.png")), tenant="t")
    assert blob.read_bytes() == read("base.png")
    assert ref.size_bytes == len(read("base.png"))
    await service.close()


async def test_lost_bytes_are_named(tmp_path: Path) -> None:
    service = make(str(tmp_path), replace(LIMITS, payload_cache_bytes=0))
    ref = await service.resolve(data_source(read("base.png")), tenant="t")
    lose(tmp_path)
    with pytest.raises(ImageError) as caught:
        await service.payload(ref, tenant="t")
    assert caught.value.code == "image_lost"
    await service.close()


@pytest.mark.parametrize("damage", ["gone", "cut"])
async def test_a_request_that_brings_lost_images_is_served(tmp_path: Path, damage: str) -> None:
    service = make(str(tmp_path), replace(LIMITS, payload_cache_bytes=0))
    sources = [data_source(read(name)) for name in ("base.png", "alpha.png", "gray_l.png")]
    refs = [await service.resolve(source, tenant="t") for source in sources]
    if damage == "gone":
        assert lose(tmp_path) == 3
    else:
        for blob in (tmp_path / "t" / "images").iterdir():
            blob.write_bytes(b"cut")
    again = [await service.resolve(source, tenant="t") for source in sources]
    assert again == refs
    for ref in again:
        assert await service.payload(ref, tenant="t")
    await service.close()


async def test_lost_pixels_are_pinned_in_another_encoding(tmp_path: Path) -> None:
    service = make(str(tmp_path), replace(LIMITS, payload_cache_bytes=0))
    first = await service.resolve(data_source(read("base_level0.png")), tenant="t")
    lose(tmp_path)
    other = await service.resolve(data_source(read("base_lossless.webp"), "image/webp"), tenant="t")
    assert (other.image_id, other.media_type) == (first.image_id, "image/webp")
    assert (await service.payload(other, tenant="t")).startswith(b"data:image/webp;")
    await service.close()


async def test_images_in_memory_need_no_store(tmp_path: Path) -> None:
    service = make(str(tmp_path))
    source = data_source(read("base.png"))
    ref = await service.resolve(source, tenant="t")
    lose(tmp_path)
    assert await service.resolve(source, tenant="t") == ref
    assert await service.payload(ref, tenant="t")
    assert service.stats().decodes == 1
    await service.close()


async def test_a_store_that_cannot_be_read_any_more_leaves_the_request_to_memory(tmp_path: Path) -> None:
    payload = text_of(data_source(read("base.png"))).encode()
    service = make(str(tmp_path), replace(LIMITS, payload_cache_bytes=len(payload)))
    source = data_source(read("base.png"))
    await service.resolve(source, tenant="t")
    await service.resolve(data_source(read("gray_l.png")), tenant="t")
    shutil.rmtree(tmp_path / "t")
    (tmp_path / "t").write_text("a file where the tenant's folder should be")
    assert await service.payload(await service.resolve(source, tenant="t"), tenant="t") == payload
    await service.close()


async def test_the_store_is_closed_by_whoever_opened_it() -> None:
    async with running_bucket() as bucket:
        store = bucket.open(1000)
        held = bucket.hold("delete")
        for key in ("t/a", "t/b"):
            await store.put(key, bytes(600))
        await bucket.wait_for("delete")
        await asyncio.wait_for(ImageService(LIMITS, FETCH, store).close(), 5)
        held.set()
        await store.close()
        assert list(bucket.blobs) == ["t/b"]


async def test_a_store_that_fails_leaves_the_request_to_memory(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file where the tenant's folder should be")
    service = make(str(tmp_path))
    ref = await service.resolve(data_source(read("base.png")), tenant="t")
    assert await service.payload(ref, tenant="t") == text_of(data_source(read("base.png"))).encode()
    assert service.stats().store_failures == 1
    await service.close()


async def test_a_server_is_not_asked_for_every_image_of_every_request() -> None:
    async with running_bucket() as bucket:
        service = ImageService(replace(LIMITS, payload_cache_bytes=0), FETCH, bucket.open())
        sources = [data_source(read(name)) for name in ("base.png", "alpha.png", "gray_l.png")]
        refs = [await service.resolve(source, tenant="t") for source in sources * 3]
        assert bucket.asked.count("head") == 3
        bucket.blobs.clear()
        with pytest.raises(ImageError):
            await service.payload(refs[0], tenant="t")
        # One loss is enough to look for all of them.
        for ref in [await service.resolve(source, tenant="t") for source in sources]:
            assert await service.payload(ref, tenant="t")
        await service.close()


async def test_memory_is_bounded_and_forgetting_is_harmless(tmp_path: Path) -> None:
    service = make(str(tmp_path), replace(LIMITS, memo_entries=2, payload_cache_bytes=1000))
    names = ["base.png", "alpha.png", "gray_l.png"]
    refs = [await service.resolve(data_source(read(name)), tenant="t") for name in names]
    for name, ref in zip(names, refs, strict=True):
        assert await service.payload(ref, tenant="t")
        assert await service.resolve(data_source(read(name)), tenant="t") == ref
    assert service.stats().decodes > len(names)
    assert service.stats().payload_hits == 0
    await service.close()
