"""The service: what is remembered, shared, bounded, lost and found again."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pybase64
import pytest

from context.errors import ConfigError, ImageError, RequestError
from context.images.base import FetchLimits, ImageLimits, ImageSource
from context.images.png import write_png
from context.images.service import ImageService
from context.store.blobs import BlobStore
from tests.unit.images.bucket import running_bucket
from tests.unit.images.corpus import LIMITS, MANIFEST, PLACE, canonical, data_source, image_id, read, text_of
from tests.unit.images.server import Site, running_site

FETCH = FetchLimits(allow_private=("127.0.0.0/8",))


def make(store: str = "memory://", limits: ImageLimits = LIMITS) -> ImageService:
    return ImageService(limits, FETCH, BlobStore(store, limits.store_max_bytes))


@pytest.fixture
async def service() -> AsyncIterator[ImageService]:
    service = make()
    yield service
    await service.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with running_site() as site:
        yield site


@pytest.mark.case("MC-008")
async def test_a_repeat_is_not_decoded(service: ImageService) -> None:
    source = data_source(read("base.png"))
    first = await service.resolve(source, tenant="t")
    assert await service.resolve(source, tenant="t") == first
    stats = service.stats()
    assert (stats.decodes, stats.wire_hits, stats.byte_hits) == (1, 1, 0)


async def test_the_same_bytes_in_another_spelling_are_not_decoded(service: ImageService) -> None:
    text = text_of(data_source(read("base.png")))
    first = await service.resolve(ImageSource("data", text, PLACE), tenant="t")
    other = await service.resolve(ImageSource("data", text.replace("/png", "/jpeg") + "\n", PLACE), tenant="t")
    assert first == other
    assert (service.stats().decodes, service.stats().byte_hits) == (1, 1)


async def test_concurrent_first_sights_are_decoded_once(service: ImageService) -> None:
    text = text_of(data_source(read("base.png")))
    sources = [ImageSource("data", text + " " * (index % 2), f"messages[{index}]") for index in range(8)]
    refs = await asyncio.gather(*(service.resolve(source, tenant="t") for source in sources))
    assert len(set(refs)) == 1
    assert service.stats().decodes == 1


async def test_a_client_that_leaves_does_not_fail_the_others(service: ImageService) -> None:
    source = data_source(read("base.png"))
    leaving, staying = (asyncio.create_task(service.resolve(source, tenant="t")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying).image_id == image_id("base.png")
    assert leaving.cancelled()
    assert service.stats().decodes == 1


async def test_shared_refusals_name_each_clients_own_place(service: ImageService) -> None:
    sources = [data_source(read("bad_trunc.jpg"), place=f"messages[{index}].content[0]") for index in range(3)]
    errors = await asyncio.gather(*(service.resolve(source, tenant="t") for source in sources), return_exceptions=True)
    assert [error.param for error in errors if isinstance(error, ImageError)] == [source.place for source in sources]


@pytest.mark.case("MC-026")
async def test_same_pixels_keep_the_bytes_that_came_first(service: ImageService) -> None:
    first = await service.resolve(data_source(read("base_level0.png")), tenant="t")
    second = await service.resolve(data_source(read("base_lossless.webp"), "image/webp"), tenant="t")
    assert second == first
    payload = await service.payload(second, tenant="t")
    assert payload == text_of(data_source(read("base_level0.png"))).encode()


@pytest.mark.parametrize("name", [names[-1] for names in MANIFEST["same"].values()])
async def test_payload_shows_the_same_image(service: ImageService, name: str) -> None:
    ref = await service.resolve(data_source(read(name)), tenant="t")
    head, _, body = (await service.payload(ref, tenant="t")).partition(b",")
    data = pybase64.b64decode(body)
    assert head == f"data:{ref.media_type};base64".encode()
    assert len(data) == ref.size_bytes
    found = canonical(data)
    assert (found.image_id, found.width, found.height) == (ref.image_id, ref.width, ref.height)


async def test_tenants_share_nothing(service: ImageService) -> None:
    source = data_source(read("base.png"))
    ref = await service.resolve(source, tenant="a")
    with pytest.raises(ImageError) as caught:
        await service.payload(ref, tenant="b")
    assert caught.value.code == "image_lost"
    await service.resolve(source, tenant="b")
    assert service.stats().decodes == 2


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


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def lose(folder: Path) -> int:
    """Delete all pinned images of the tenant t, as another process's sweep may."""
    lost = list((folder / "t" / "images").iterdir())
    for blob in lost:
        blob.unlink()
    return len(lost)


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


async def test_history_is_fetched_again_only_when_its_bytes_are_lost(site: Site, tmp_path: Path) -> None:
    site.changing = read("base.png")
    source = ImageSource("url", site.url("/changing"), PLACE)
    service = make(str(tmp_path), replace(LIMITS, payload_cache_bytes=0))
    first = await service.resolve(source, tenant="t", record=["here"])
    assert await service.resolve(source, tenant="t", lookup=["here"], record=["here"]) == first
    assert len(site.requests) == 1
    lose(tmp_path)
    assert await service.resolve(source, tenant="t", lookup=["here"], record=["here"]) == first
    assert await service.payload(first, tenant="t")
    assert len(site.requests) == 2
    # The engine may still hold what nobody can load any more.
    lose(tmp_path)
    site.changing = b"<html>gone</html>"
    assert await service.resolve(source, tenant="t", lookup=["here"]) == first
    await service.close()


async def test_what_is_used_is_swept_later(site: Site, tmp_path: Path) -> None:
    source = ImageSource("url", site.url("/image.png"), PLACE)
    service = make(str(tmp_path))
    await service.resolve(source, tenant="t", record=["here"])
    await service.close()
    files = files_in(tmp_path)
    assert len(files) == 2
    for path in files:
        os.utime(path, (1000, 1000))
    service = make(str(tmp_path))
    await service.resolve(source, tenant="t", lookup=["here"])
    assert all(path.stat().st_mtime > 1000 for path in files)
    assert len(site.requests) == 1
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


async def test_a_full_queue_says_try_again() -> None:
    service = make(limits=replace(LIMITS, decode_threads=1, decode_queue=1))
    names = ["base.png", "alpha.png", "gray_l.png", "flat.gif"]
    results = await asyncio.gather(
        *(service.resolve(data_source(read(name)), tenant="t") for name in names), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, RequestError)]
    assert [(error.code, error.status) for error in refused] == [("image_queue_full", 429)] * 2
    assert service.stats().queue_refusals == 2
    assert (await service.resolve(data_source(read(names[3])), tenant="t")).image_id == image_id(names[3])
    await service.close()


async def test_a_requests_own_urls_wait_for_each_other(site: Site) -> None:
    limits = replace(LIMITS, decode_threads=1, decode_queue=1, max_images_per_request=40)
    service = make(limits=limits)
    sources = [ImageSource("url", site.url(f"/picture?{rows}"), PLACE) for rows in range(1, 41)]
    refs = await asyncio.gather(*(service.resolve(source, tenant="t") for source in sources))
    assert [ref.height for ref in refs] == list(range(1, 41))
    assert service.stats().queue_refusals == 0
    await service.close()


@pytest.mark.case("MC-033")
async def test_fetched_bytes_that_are_known_need_no_decoder(site: Site) -> None:
    async with running_bucket() as bucket:
        store = bucket.open()
        service = ImageService(replace(LIMITS, decode_threads=1), FETCH, store)
        first = await service.resolve(data_source(read("base.png")), tenant="t")
        held = bucket.hold("put")
        busy = asyncio.create_task(service.resolve(data_source(read("alpha.png")), tenant="t"))
        await bucket.wait_for("put", 2)
        source = ImageSource("url", site.url("/image.png"), PLACE)
        assert await asyncio.wait_for(service.resolve(source, tenant="t"), 5) == first
        assert not busy.done()
        held.set()
        await busy
        await service.close()
        await store.close()


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


async def test_history_is_never_fetched_again(site: Site, tmp_path: Path) -> None:
    site.changing = read("base.png")
    source = ImageSource("url", site.url("/changing"), PLACE)
    service = make(str(tmp_path))
    first = await service.resolve(source, tenant="t", record=["here", "also"])
    site.changing = read("alpha.png")
    assert await service.resolve(source, tenant="t", lookup=["unknown", "here"], record=["unknown", "here"]) == first
    await service.close()
    restarted = make(str(tmp_path))
    for key in ("also", "here", "unknown"):
        assert await restarted.resolve(source, tenant="t", lookup=[key]) == first
    assert await restarted.payload(first, tenant="t")
    assert len(site.requests) == 1
    assert (await restarted.resolve(source, tenant="t")).image_id == image_id("alpha.png")
    assert (await restarted.resolve(source, tenant="other", lookup=["here"])).image_id == image_id("alpha.png")
    assert len(site.requests) == 3
    await restarted.close()


async def test_a_new_fetch_replaces_what_its_keys_held(site: Site, service: ImageService) -> None:
    source = ImageSource("url", site.url("/changing"), PLACE)
    site.changing = read("base.png")
    old = await service.resolve(source, tenant="t", record=["place-1", "url"])
    site.changing = read("alpha.png")
    new = await service.resolve(source, tenant="t", record=["place-2", "url"])
    # Reading an old place must not make it the newest picture of the URL.
    assert await service.resolve(source, tenant="t", lookup=["place-1"], record=["place-1", "url"]) == old
    assert await service.resolve(source, tenant="t", lookup=["unknown", "url"]) == new
    assert len(site.requests) == 2


async def test_a_fetch_that_fails_falls_back_to_what_was_seen_there(site: Site, service: ImageService) -> None:
    site.changing = read("base.png")
    source = ImageSource("url", site.url("/changing"), PLACE)
    first = await service.resolve(source, tenant="t", record=["here"])
    site.changing = b"<html>gone</html>"
    assert await service.resolve(source, tenant="t", fallback=["here"]) == first
    with pytest.raises(ImageError) as caught:
        await service.resolve(source, tenant="t", fallback=["elsewhere"])
    assert (caught.value.code, caught.value.param) == ("image_fetch_failed", PLACE)


async def test_one_url_asked_for_at_once_is_fetched_once(site: Site, service: ImageService) -> None:
    source = ImageSource("url", site.url("/slow"), PLACE)
    waiting = [asyncio.create_task(service.resolve(source, tenant="t", record=["a"])) for _ in range(4)]
    await site.asked.wait()
    site.release.set()
    assert len({ref.image_id for ref in await asyncio.gather(*waiting)}) == 1
    assert len(site.requests) == 1
    assert service.stats().fetches == 1


async def test_near_duplicates_are_per_tenant(service: ImageService) -> None:
    await service.resolve(data_source(read("base.png")), tenant="a")
    await service.resolve(data_source(read("near_bright.png")), tenant="b")
    await service.settle()
    assert service.near_duplicates("a") == service.near_duplicates("b") == []
    await service.resolve(data_source(read("near_bright.png")), tenant="a")
    await service.settle()
    assert len(service.near_duplicates("a")) == 1


async def test_close_leaves_no_task_and_no_thread() -> None:
    before = set(threading.enumerate())
    service = make()
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    source = data_source(write_png(1500, 1500, [pixels.tobytes()]))
    running = asyncio.create_task(service.resolve(source, tenant="t"))
    await service.resolve(data_source(read("base.png")), tenant="t")
    await service.close()
    await asyncio.gather(running, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("image")]


@pytest.mark.parametrize(
    ("limits", "fetch", "key"),
    [
        (replace(LIMITS, formats=("PNG", "EPS")), FETCH, "images.formats"),
        (LIMITS, FetchLimits(allow_private=("nonsense",)), "fetch.allow_private"),
    ],
)
def test_settings_that_cannot_be_honoured_stop_the_start(limits: ImageLimits, fetch: FetchLimits, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ImageService(limits, fetch, BlobStore("memory://"))
    assert caught.value.key == key
